// ExecutionGraph: one iteration made concrete; compressed columns, immutable, shared by every
// submission.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/base/types.h"
#include "model/collective/collective.h"

namespace astra_sim::model {

// What a node does; the meaning of its `amount` and `peer` columns follows.
enum class NodeKind : std::uint8_t {
  kCompute,     // amount: duration, ps
  kCollective,  // amount: bytes (see CollectiveKind); peer: plan; call: joins the ranks' nodes of
                // one call
  kTransfer,    // amount: bytes; peer: destination device; ends when the message has arrived
  kSend,  // amount: bytes; peer: destination device; call: joins it to its recv; ends on arrival
  kRecv,  // amount: bytes; peer: source device; call: as its send; ends when the message is there
  kMemoryLoad,   // amount: bytes; peer: memory tier
  kMemoryStore,  // amount: bytes; peer: memory tier
};

// Nodes of one stream of one device run one at a time, in the order of their index in the graph,
// and graphs in the order of their submission, as on a GPU; or, in a graph served by readiness, the
// lowest index that is ready. A node on `none` waits for its dependencies only.
enum class Stream : std::uint8_t { kCompute, kComm, kCopyIn, kCopyOut, kPim, kHost, kNone };
inline constexpr std::uint32_t kNumStreams = 7;
inline constexpr std::uint32_t kNumPowerClasses = 16;

const char* name_of(NodeKind kind);
const char* name_of(Stream stream);

// A stream of a device as far as this graph uses it: nodes lane_nodes()[first .. first + count).
struct Lane {
  DeviceId device;
  Stream stream;
  std::uint32_t first;
  std::uint32_t count;
};

// One call of a collective: its ranks are rank_slots()[first .. first + num_ranks), in the order of
// the group.
struct Call {
  PlanId plan;
  std::uint32_t first;
  std::uint32_t num_ranks;
};

// One rank of one call.
struct RankSlot {
  NodeIndex node;
  std::uint32_t call;  // index into calls()
  std::uint32_t rank;
  DeviceId device;
  DeviceId next_device;  // of rank + 1, around the group
};

class ExecutionGraph {
 public:
  std::uint32_t num_nodes() const { return static_cast<std::uint32_t>(kind.size()); }
  std::string describe(NodeIndex node) const;  // e.g. `node 7 (collective on device 3)`
  std::span<const NodeIndex> children(NodeIndex node) const {
    return {child.data() + child_begin[node], child.data() + child_begin[node + 1]};
  }
  std::span<const DeviceId> group(GroupId index) const {
    return {group_device.data() + group_begin[index], group_device.data() + group_begin[index + 1]};
  }

  // Columns, one entry per node. Only GraphBuilder writes them.
  std::vector<NodeKind> kind;
  std::vector<Stream> stream;
  std::vector<std::uint8_t> power_class;
  std::vector<DeviceId> device;
  std::vector<std::int64_t> amount;
  std::vector<std::uint32_t> peer;  // device, plan or tier; kNone for compute
  std::vector<std::uint64_t> id;    // the caller's number, used in messages; empty: the index
  std::vector<std::uint32_t> lane;  // index into lanes; kNone on Stream::kNone
  std::vector<std::uint32_t>
      slot;  // collective: index into rank_slots; send and recv: the partner's node
  std::vector<std::uint32_t> num_parents;

  std::vector<std::uint32_t> child_begin;  // length num_nodes + 1
  std::vector<NodeIndex> child;
  std::vector<Lane> lanes;
  std::vector<NodeIndex> lane_nodes;
  std::vector<NodeIndex> free_roots;  // on Stream::kNone, without parents
  std::vector<CollectivePlan> plans;
  std::vector<std::uint32_t> group_begin;  // length groups + 1
  std::vector<DeviceId> group_device;
  std::vector<Call> calls;
  std::vector<RankSlot> rank_slots;
  std::uint32_t num_devices = 0;
  bool has_recv = false;
  bool by_readiness =
      false;  // what a stream runs next: the lowest node that is ready, not the next one
  NodeIndex memory_node = kNone;  // the first one that needs a memory tier, if any

 private:
  friend class GraphBuilder;
  ExecutionGraph() = default;
};

}  // namespace astra_sim::model
