#include "strict/loop/workload.h"

#include <algorithm>
#include <functional>

#include "model/base/input_error.h"
#include "strict/base/whole_ns.h"

namespace astra_sim::strict {

using chakra::CollectiveKind;
using chakra::NodeType;
using model::InputError;

namespace {

constexpr std::int64_t kMaxChunks = 1 << 20;

config::Collective native_kind(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return config::Collective::kAllGather;
    case CollectiveKind::kReduceScatter:
      return config::Collective::kReduceScatter;
    case CollectiveKind::kAllToAll:
      return config::Collective::kAllToAll;
    default:
      return config::Collective::kAllReduce;
  }
}

}  // namespace

std::uint32_t Workload::npu_of(std::uint32_t node) const {
  const auto after = std::upper_bound(trace_.first.begin(), trace_.first.end(), node);
  return static_cast<std::uint32_t>(after - trace_.first.begin()) - 1;
}

std::string Workload::name(std::uint32_t node) const {
  return "NPU " + std::to_string(npu_of(node)) + ", node " + std::to_string(trace_.nodes[node].id);
}

void Workload::fail(std::uint32_t node, const std::string& what) const {
  throw InputError(name(node) + ": " + what);
}

Workload::Slot Workload::slot_of(const TraceNode& node) {
  if (node.on_cpu) return cpu;
  if (node.type == NodeType::kComp) return compute;
  return node.type == NodeType::kCommRecv ? unlimited : communication;
}

void Workload::start() {
  const auto count = static_cast<std::uint32_t>(trace_.first.size() - 1);
  npus_.resize(count);
  for (std::uint32_t npu = 0; npu < count; ++npu) {
    for (std::uint32_t node = trace_.first[npu]; node < trace_.first[npu + 1]; ++node) {
      if (trace_.nodes[node].parents_left == 0) make_ready(npus_[npu], node);
    }
  }
  for (std::uint32_t npu = 0; npu < count; ++npu) pass(npu);
}

void Workload::make_ready(Npu& npu, std::uint32_t node) {
  trace_.nodes[node].state = NodeState::kReady;
  if (npu.in_pass) {
    npu.late.push_back(node);
    return;
  }
  std::vector<std::uint32_t>& heap = npu.ready[slot_of(trace_.nodes[node])];
  heap.push_back(node);
  if (heap.size() > 1) std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

// Issues, by ascending id, every ready node whose slot is free. What becomes ready meanwhile waits
// for the next pass.
void Workload::pass(std::uint32_t at) {
  Npu& npu = npus_[at];
  npu.in_pass = true;
  for (;;) {
    std::uint32_t best = kNone;
    std::size_t from = 0;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (npu.busy[slot] || npu.ready[slot].empty() || npu.ready[slot].front() >= best) continue;
      best = npu.ready[slot].front();
      from = slot;
    }
    if (best == kNone) break;
    std::vector<std::uint32_t>& heap = npu.ready[from];
    if (heap.size() > 1) std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    issue(at, best);
  }
  npu.in_pass = false;
  if (npu.late.empty()) return;
  for (const std::uint32_t node : npu.late) make_ready(npu, node);
  npu.late.clear();
}

void Workload::issue(std::uint32_t at, std::uint32_t index) {
  TraceNode& node = trace_.nodes[index];
  Npu& npu = npus_[at];
  const Slot slot = slot_of(node);
  npu.busy[slot] = slot != unlimited;
  ++npu.running;
  node.state = NodeState::kRunning;
  node.issued_ns = parts().clock.now();
  note(Happening::kIssued, index);
  if (system_.replay_only) {
    parts().clock.local(at, node.duration_ns, {EventKind::kNodeDone, index});
    return;
  }
  switch (node.type) {
    case NodeType::kComp:
      if (!issue_compute(at, index)) complete_at_once(at, index);
      return;
    case NodeType::kCommColl:
      issue_collective(at, index);
      return;
    case NodeType::kCommSend:
    case NodeType::kCommRecv:
      issue_message(at, node, index);
      return;
    case NodeType::kMemLoad:
    case NodeType::kMemStore:
      if (!parts().memory.present())
        fail(index, "it uses remote memory and memory-type is NO_MEMORY_EXPANSION");
      parts().memory.access(at, index, node.bytes);
      return;
    case NodeType::kMetadata:
      parts().clock.local(at, 0, {EventKind::kNodeDone, index});
      return;
    case NodeType::kInvalid:
      complete_at_once(at, index);
      return;
  }
}

bool Workload::issue_compute(std::uint32_t npu, std::uint32_t index) {
  const TraceNode& node = trace_.nodes[index];
  Ns span = node.duration_ns;
  if (system_.roofline && !node.on_cpu) {
    if (node.bytes == 0) return false;
    const double intensity = static_cast<double>(node.operations) / static_cast<double>(node.bytes);
    const double rate =
        std::min(system_.local_memory_gb_per_s * 1e9 * intensity, system_.peak_tflops * 1e12);
    span = rate == 0 ? 0 : whole_ns(static_cast<double>(node.operations) / rate * 1e9, "compute");
  }
  parts().clock.local(npu, span, {EventKind::kNodeDone, index});
  return true;
}

void Workload::issue_message(std::uint32_t npu, const TraceNode& node, std::uint32_t index) {
  if (node.type == NodeType::kCommSend) {
    parts().messages.send({npu, node.peer, node.tag, node.bytes}, index);
  } else {
    parts().messages.receive({node.peer, npu, node.tag, node.bytes}, index);
  }
}

void Workload::issue_collective(std::uint32_t npu, std::uint32_t index) {
  const TraceNode& node = trace_.nodes[index];
  if (node.collective == CollectiveKind::kBroadcast) {
    parts().clock.local(npu, node.duration_ns, {EventKind::kNodeDone, index});
    return;
  }
  if (!parts().plans.known(node.group))
    fail(index, "pg_name is " + std::to_string(node.group) + ", which is no comm group");
  if (parts().plans.place_in(node.group, npu) == kNone)
    fail(index, "group " + std::to_string(node.group) + " does not hold this NPU");
  const config::Collective kind = native_kind(node.collective);
  note_ring(npu, node.group, kind);
  const std::int64_t splits = system_.dataset_splits;
  if (splits == 0)
    fail(index, "preferred-dataset-splits is missing in " + system_.path +
                    "; 1 makes one chunk of a collective");
  const auto by_node = system_.custom_by_node.find(node.id);
  const std::string& custom = by_node != system_.custom_by_node.end()
                                  ? by_node->second
                                  : system_.custom[static_cast<std::size_t>(kind)];
  if (!custom.empty()) {
    if (splits != 1)
      fail(index,
           "a custom collective needs preferred-dataset-splits 1, not " + std::to_string(splits));
    parts().collectives.count_stream(npu);
    parts().custom.start(npu, index, node.group, custom);
    return;
  }
  if (splits > kMaxChunks)
    fail(index,
         "preferred-dataset-splits is " + std::to_string(splits) + "; at most 2^20 are taken");
  const auto npus = static_cast<std::int64_t>(npus_.size());
  std::int64_t bytes = node.bytes;
  std::int64_t chunk = bytes / splits;
  if (kind != config::Collective::kAllGather && chunk < npus) {
    chunk = npus;
    bytes = splits * chunk;
  }
  if (chunk == 0)
    fail(index, "an all-gather of " + std::to_string(bytes) + " bytes cannot be cut into " +
                    std::to_string(splits) + " chunks");
  // Every chunk has full size, a remainder too.
  const std::int64_t chunks = (bytes + chunk - 1) / chunk;
  try {
    const Plan& plan = parts().plans.plan(kind, node.group, node.dimensions);
    parts().collectives.start(
        {npu, index, node.group, static_cast<std::uint32_t>(chunks), chunk, &plan});
  } catch (const InputError& error) {
    fail(index, error.what());
  }
}

void Workload::fail(const CollectiveMismatch& mismatch) const {
  throw InputError(
      name(mismatch.second_node) + " joins a collective as " + mismatch.second_kind + " of " +
      std::to_string(mismatch.second_bytes) + "-byte chunks that " + name(mismatch.first_node) +
      " began as " + mismatch.first_kind + " of " + std::to_string(mismatch.first_bytes) +
      "-byte chunks; the NPUs of a group have to issue its collectives in the same order");
}

void Workload::note_ring(std::uint32_t npu, std::uint32_t group, config::Collective kind) {
  if (!parts().plans.smaller(group)) return;
  const std::uint64_t key = (static_cast<std::uint64_t>(group) << 26) |
                            (static_cast<std::uint64_t>(npu) << 2) |
                            static_cast<std::uint64_t>(kind);
  if (!rings_.insert(key).second) return;
  note(Happening::kRing, static_cast<std::uint32_t>(journal_.rings.size()));
  const Plans& plans = parts().plans;
  journal_.rings.push_back(
      {npu, static_cast<std::uint32_t>(plans.members(group).size()), plans.place_in(group, npu)});
}

// Without a pass: the children wait for the next completion.
void Workload::complete(std::uint32_t at, std::uint32_t index) {
  TraceNode& node = trace_.nodes[index];
  Npu& npu = npus_[at];
  node.state = NodeState::kDone;
  node.done_ns = parts().clock.now();
  npu.busy[slot_of(node)] = false;
  --npu.running;
  for (std::uint32_t k = 0; k < node.child_count; ++k) {
    const std::uint32_t child = trace_.children[node.first_child + k];
    if (--trace_.nodes[child].parents_left == 0) make_ready(npu, child);
  }
}

void Workload::complete_at_once(std::uint32_t at, std::uint32_t index) {
  note(Happening::kEnded, index);
  complete(at, index);
}

void Workload::node_done(std::uint32_t index) {
  const std::uint32_t at = npu_of(index);
  if (system_.trace_enabled) note(Happening::kEnded, index);
  complete(at, index);
  pass(at);
  const Npu& npu = npus_[at];
  const bool idle = npu.running == 0 && std::all_of(npu.ready.begin(), npu.ready.end(),
                                                    [](const auto& heap) { return heap.empty(); });
  if (!idle) return;
  npus_[at].finish_ns = parts().clock.now();
  note(Happening::kFinished, at);
}

void Workload::message_done(std::uint32_t node) {
  if ((node & CustomCollectives::kBit) != 0) {
    parts().custom.node_done(node);
  } else {
    node_done(node);
  }
}

}  // namespace astra_sim::strict
