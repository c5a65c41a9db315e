// A step as nodes on the streams of one or several units (a stage of a member): each stream runs
// its nodes in order, one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"

namespace llmsim {

// Copies in bring weights, copies out carry activations and KV to another memory, pulls bring
// results back; the host computes for the unit, and sends go to the next pipeline stage.
enum class DeviceStream : std::uint8_t { kCompute, kPull, kCopyIn, kCopyOut, kPim, kHost, kSend };
inline constexpr std::int32_t kNumDeviceStreams = 7;

constexpr std::int32_t stream_of(std::int32_t unit, DeviceStream stream) {
  return unit * kNumDeviceStreams + static_cast<std::int32_t>(stream);
}

// Waiting for kCarried + k means: for when what the step before left in place k was done.
inline constexpr std::int32_t kCarried = 1 << 30;

struct StreamNode {
  std::int32_t stream = 0;
  std::int32_t price = 0;  // index of its duration among the step's prices
  std::int32_t first = 0,
               count =
                   0;   // what it waits for, in StreamGraph::after: earlier nodes, or kCarried + k
  bool begins = false;  // not before the step is given
};

// What a node does, for those who look at single steps.
enum class NodeRole : std::uint8_t {
  kBegin,     // of a member's step
  kEnd,       // of it, with the gap between steps
  kOperator,  // of the program, wherever it runs
  kCopy,      // weights of the operator's execution
  kToHost,    // activations that the operator takes there
  kFromHost,  // activations that it leaves there, back
  kQueries,   // to the memory that computes, of decodes
  kInMemory,  // decodes attend
  kResults,   // of them, back
  kContext,   // KV of prompts' earlier chunks, back
  kPrompts    // KV of prompts, to the memory
};

struct NodeLabel {
  NodeRole role = NodeRole::kOperator;
  std::int32_t op = -1;         // of the program
  std::int32_t execution = -1;  // of the operator, in its stage
  std::int32_t lane = 0;        // 0: of the whole batch; 1, 2: of a half
};

// The same for every step but for the prices. Nodes are in the order of each stream.
struct StreamGraph {
  // The first and the last node of a member: its step lasts from the end of the one to the end of
  // the other, and at least one picosecond. The last one is alone on its stream's end: the member's
  // next step comes after it.
  struct Member {
    std::int32_t begin = 0, end = 0;
  };

  std::int32_t units = 1;
  std::vector<StreamNode> nodes;
  std::vector<NodeLabel> labels;  // of each node
  std::vector<std::int32_t> after;
  std::vector<std::pair<std::int32_t, std::int32_t>>
      carries;  // (node, place): its end is kept for the next step
  std::vector<Member> members;

  std::span<const std::int32_t> after_of(const StreamNode& node) const {
    return std::span(after).subspan(static_cast<std::size_t>(node.first),
                                    static_cast<std::size_t>(node.count));
  }
};

// What one step leaves to the next: when the streams are free, and the ends that later nodes wait
// for.
struct StreamCarry {
  std::vector<Ps> free, places;
};

// Both ways agree to the picosecond (invariant 9): first come first served on each stream leaves no
// choice.
class StreamTiming {
 public:
  virtual ~StreamTiming() = default;
  // When the step that may start at `now` starts and ends, for each member.
  virtual void run(const StreamGraph& graph, std::span<const Ps> prices, Ps now, StreamCarry& carry,
                   std::span<Ps> starts, std::span<Ps> ends) = 0;
};

// Max-plus arithmetic over the nodes, in order.
class FoldedStreams final : public StreamTiming {
 public:
  void run(const StreamGraph& graph, std::span<const Ps> prices, Ps now, StreamCarry& carry,
           std::span<Ps> starts, std::span<Ps> ends) override;
  // Of each node of the last step.
  std::span<const Ps> node_ends() const { return end_; }

 private:
  std::vector<Ps> end_;
};

// Every node in the engine; devices of their own hold back what the step before still keeps busy.
class ExpandedStreams final : public StreamTiming {
 public:
  void run(const StreamGraph& graph, std::span<const Ps> prices, Ps now, StreamCarry& carry,
           std::span<Ps> starts, std::span<Ps> ends) override;
};

}  // namespace llmsim
