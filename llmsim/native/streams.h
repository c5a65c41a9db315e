// A step as nodes on the streams of one device: each stream runs its nodes in order, one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "types.h"

namespace llmsim {

// Copies in bring weights, copies out carry queries and KV to another memory, pulls bring results back.
enum class DeviceStream : std::uint8_t { kCompute, kPull, kCopyIn, kCopyOut, kPim };
inline constexpr std::size_t kNumDeviceStreams = 5;

// `after` names nodes of the same step, or kCarried + k: when what the step before left in place k was done. -1: none.
inline constexpr std::int32_t kCarried = 1 << 30;

struct StreamNode {
  DeviceStream stream = DeviceStream::kCompute;
  bool after_start = false;  // not before the step itself starts; others may run ahead
  std::int32_t price = 0;    // index of its duration among the step's prices
  std::array<std::int32_t, 3> after{-1, -1, -1};
};

// The same for every step but for the prices. Nodes are in the order of each stream.
struct StreamGraph {
  std::vector<StreamNode> nodes;
  std::vector<std::pair<std::int32_t, std::int32_t>> carries;  // (node, place): its end is kept for the next step
  std::int32_t last = 0;                                       // its end is the step's
};

// What one step leaves to the next: when the streams are free, and the ends that later nodes wait for.
struct StreamCarry {
  std::array<Ps, kNumDeviceStreams> free{};
  std::vector<Ps> places;
};

// Both ways agree to the picosecond (invariant 9): first come first served on each stream leaves no choice.
class StreamTiming {
 public:
  virtual ~StreamTiming() = default;
  // When the step that starts at `start` ends.
  virtual Ps run(const StreamGraph& graph, std::span<const Ps> prices, Ps start, StreamCarry& carry) = 0;
};

// Max-plus arithmetic over the nodes, in order.
class FoldedStreams final : public StreamTiming {
 public:
  Ps run(const StreamGraph& graph, std::span<const Ps> prices, Ps start, StreamCarry& carry) override;

 private:
  std::vector<Ps> end_;
};

// Every node in the engine; devices of their own hold back what the step before still keeps busy.
class ExpandedStreams final : public StreamTiming {
 public:
  Ps run(const StreamGraph& graph, std::span<const Ps> prices, Ps start, StreamCarry& carry) override;
};

}  // namespace llmsim
