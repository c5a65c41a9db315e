// A step as nodes on the streams of one or several units (a stage of a member): each stream runs
// its nodes in order, one at a time. Executors run it (executor.h); StepPricer fills its prices.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "offload/offload_config.h"
#include "program/program.h"

namespace llmsim {

// Copies in bring weights, copies out carry activations and KV to another memory, pulls bring
// results back; the host computes for the unit, and sends go to the next pipeline stage.
enum class DeviceStream : std::uint8_t { kCompute, kPull, kCopyIn, kCopyOut, kPim, kHost, kSend };
inline constexpr std::int32_t kNumDeviceStreams = 7;

constexpr std::int32_t stream_of(std::int32_t unit, DeviceStream stream) {
  return unit * kNumDeviceStreams + static_cast<std::int32_t>(stream);
}

// A node on no stream waits for other nodes alone.
inline constexpr std::int32_t kNoStream = -1;

enum class NodeRole : std::uint8_t {
  kBegin,       // of a member's step
  kReceive,     // hidden states are there, and the stage's devices are free
  kMeet,        // all members are there
  kLaunch,      // the host launches a stage's kernels; no end of the stage comes before its own
  kDrafts,      // passes of the drafter
  kEnd,         // of a member's step, with the gap between steps
  kOperator,    // of the program, wherever it runs
  kCopy,        // weights of the operator's execution
  kToHost,      // activations that the operator takes there
  kFromHost,    // activations that it leaves there, back
  kQueries,     // to the memory that computes, of decodes
  kInMemory,    // decodes attend
  kResults,     // of them, back
  kContext,     // KV of prompts' earlier chunks, back
  kPrompts,     // KV of prompts, to the memory
  kM2nSend,     // hidden states leave, between attention and FFN devices
  kM2nReceive,  // and come in
  kM2nLatency,  // and are on their way
  kCorrection,  // what another program's time of a stage differs by (step/executors/outside.h)
  kPrepare,     // the host prepares a stage's launches, from when it has the batch
  kSlowed       // what the power limit adds to a stage's operators
};

// What a node waits for, besides the node before it on its stream.
enum class WaitFor : std::uint8_t {
  kNode,         // an earlier node; of a repeated block, its last execution so far
  kLayerBefore,  // a node of the same block, one run ago; in the block's first run, whatever that
                 // node's stream ran last
  kStepBefore    // what the step before left in a slot
};

struct Wait {
  WaitFor from = WaitFor::kNode;
  std::int32_t index = 0;  // node or slot
  // Of kLayerBefore: the node that counts in the block's first layer; -1: as said there.
  std::int32_t entry = -1;
};

// Entries of a vector that stands beside the nodes.
struct Range {
  std::int32_t first = 0, count = 0;
};

struct StepNode {
  NodeRole role = NodeRole::kOperator;
  std::uint8_t lane = 0;    // 0: of the whole batch; 1, 2: of a half
  bool ahead = false;       // its price is known before the step is: it may run during the last one
  std::int16_t route = -1;  // of what it moves, among the executor's; -1: nothing
  std::int32_t member = 0;
  std::int32_t stream = kNoStream;
  std::int32_t price = 0;  // among the step's prices
  std::int32_t op = -1;    // of the program; -1: none, or several
  std::int32_t execution =
      -1;                   // of the operator, in its stage; in a repeated block, of its first run
  std::int32_t stride = 1;  // executions of the operator in each run of its block
  Range waits;
  Range draws;  // what is sampled of it, beside its price
};

// Sampled times of `count` executions of an operator that follow each other, the first one
// `first + stride x run` of the step's, in that run of its block.
struct Draws {
  std::int64_t first = 0;
  std::int32_t count = 1, stride = 1;
};

// Nodes that run `repeat` times: a layer, or several that recur in one order. Nodes of a repeated
// block wait for such of the block alone: when all its streams have moved alike in one run, they do
// in all that follow (A6).
struct Block {
  std::int32_t first = 0, last = 0;  // nodes first .. last - 1
  std::int32_t repeat = 1;
};

// Operators of one member that run one after the other, as one node: their tables added up.
struct Segment {
  // Operators and how often each of them runs.
  using Parts = std::vector<std::pair<std::int32_t, std::int32_t>>;
  Segment(const Program& program, const Parts& parts);
  Ps price(const Program::Place& place, const AttentionPrices& attention) const;

  std::array<std::int32_t, kMaxAttentions> attention{};
  std::array<std::vector<Ps>, kNumFeatures> ps;
};

// What an entry of a step's prices is the price of. Nodes of the same key share it.
struct PriceKey {
  NodeRole role = NodeRole::kOperator;
  std::uint8_t lane = 0;
  bool ahead = false;
  std::int32_t member = 0, op = -1, execution = -1;
  std::int32_t segment = -1;  // instead of `op`
  std::int32_t hop = -1;      // kind of what travels between attention and FFN
  auto operator<=>(const PriceKey&) const = default;
};

// The same for every step of a layout but for the prices; immutable once built.
struct StepGraph {
  // The first and the last node of a member: its step lasts from the end of the one to the end of
  // the other, and at least one picosecond. The last one is alone on its stream's end: the member's
  // next step comes after it.
  struct Member {
    std::int32_t begin = 0, end = 0;
    std::int32_t launched = -1;  // the host's last node of its step; -1: none
    // In a graph in which each node has the number that `numbers` says.
    Member moved(std::span<const std::int32_t> numbers) const {
      return {numbers[at(begin)], numbers[at(end)], launched < 0 ? -1 : numbers[at(launched)]};
    }
  };

  std::int32_t units = 1, stages = 1, slots = 0;
  std::vector<StepNode> nodes;  // in the order of each stream
  std::vector<Block> blocks;    // all nodes, in order
  std::vector<Wait> waits;
  std::vector<Draws> draws;
  std::vector<std::pair<std::int32_t, std::int32_t>>
      kept;  // (node, slot): its end, for the next step
  std::vector<Member> members;
  std::vector<PriceKey> prices;
  std::vector<std::shared_ptr<const Segment>> segments;

  std::span<const Wait> waits_of(const StepNode& node) const {
    return std::span(waits).subspan(at(node.waits.first), at(node.waits.count));
  }
  std::span<const Draws> draws_of(const StepNode& node) const {
    return std::span(draws).subspan(at(node.draws.first), at(node.draws.count));
  }
  // Of a node on no stream, the member's first.
  std::int32_t unit_of(const StepNode& node) const {
    return node.stream == kNoStream ? node.member * stages : node.stream / kNumDeviceStreams;
  }
};

// What one step leaves to the next: when the streams are free, and the ends that later nodes wait
// for.
struct StepCarry {
  // Before the first step, which may come long after `now`.
  explicit StepCarry(const StepGraph& graph, Ps now = 0)
      : free(at(graph.units * kNumDeviceStreams), now), slots(at(graph.slots), now) {}
  std::vector<Ps> free, slots;
};

// What the host does for the step of a member, by stage; empty: nothing.
struct HostNodes {
  std::vector<std::int32_t> prepared, launched;
  // What a stage's begin, and what leaves it, wait for besides.
  void add_begin(std::int32_t stage, std::vector<Wait>& waits) const {
    add(prepared, stage, waits);
  }
  void add_end(std::int32_t stage, std::vector<Wait>& waits) const { add(launched, stage, waits); }

 private:
  static void add(const std::vector<std::int32_t>& nodes, std::int32_t stage,
                  std::vector<Wait>& waits) {
    if (!nodes.empty()) waits.push_back({WaitFor::kNode, nodes[at(stage)]});
  }
};

// Appends nodes and closes blocks.
class StepGraphBuilder {
 public:
  StepGraphBuilder(std::int32_t members, std::int32_t stages);
  // Appends a node to the block that is open. Nodes with equal keys share a price.
  std::int32_t add(StepNode node, const PriceKey& key, std::span<const Wait> waits,
                   std::span<const Draws> draws = {});
  // Appends what the host does for the member's step: it prepares and launches one stage after the
  // other, each on that stage's host. Without launches that take time nothing is appended.
  HostNodes add_host(std::int32_t member, std::int32_t stages, const GraphRules& rules);
  // Closes the block of the nodes since the last call.
  void end_block(std::int32_t repeat = 1);
  StepGraph& graph() { return graph_; }

 private:
  StepGraph graph_;
  std::map<PriceKey, std::int32_t> price_of_;
};

// Layers first, first + 1, ... of a program, `period` of them, and what follows runs the same
// operators in the same order, `repeat` times in all.
struct LayerRun {
  std::size_t first = 0, period = 1;
  std::int32_t repeat = 1;
};
// The program's layers in as few runs as periods of up to a dozen layers give, taken greedily.
std::vector<LayerRun> layer_runs(const Program& program);

// The step of a program that keeps nothing elsewhere: each operator is a node of each member,
// layers that recur are one block. Members start what works on gathered tokens together.
StepGraph program_graph(const Program& program, std::int32_t members, bool drafts);

// Routes of an offloaded step behind those from the sources of weights.
enum class OffloadRoute : std::uint8_t { kToMemory, kFromMemory, kToHost, kFromHost };
inline constexpr std::size_t kNumOffloadRoutes = 4;

// The step of a program that keeps weights, KV or operators elsewhere. With two lanes, halves of
// the batch alternate in the layers: one computes while the other attends elsewhere.
StepGraph offload_graph(const Program& program, const OffloadConfig& config, std::int32_t members,
                        std::int32_t lanes);

// The same times in fewer nodes: those that follow each other on a stream, with nobody waiting for
// one between them, are one segment. Operators that are set in `apart` stay nodes of their own.
StepGraph folded(const Program& program, const StepGraph& graph,
                 const std::vector<bool>& apart = {});

// The same nodes without repeated blocks: each layer has its own.
StepGraph unrolled(const StepGraph& graph);

// By member and number of a layer: the nodes after which its KV and its state are there, wherever
// they run, with copies of the KV that they make; of a graph without repeated blocks.
using LayerNodes = std::vector<std::map<std::int32_t, std::vector<std::int32_t>>>;
LayerNodes caching_nodes(const Program& program, const StepGraph& graph);
// By operator of the program: whether it caches something.
std::vector<bool> caching_operators(const Program& program);

// The same nodes, and in each unit, before it hands over or ends, a correction on its computing
// stream and one of the same price on what else the hand-over or the end waits for. `marks` gets
// for each unit the node whose end is that of the unit's work.
StepGraph corrected(const StepGraph& graph, std::vector<std::int32_t>& marks);

}  // namespace llmsim
