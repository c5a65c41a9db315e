#include "strict/collectives/custom.h"

#include <algorithm>

#include "model/base/input_error.h"

namespace astra_sim::strict {

const Trace& CustomCollectives::trace(const std::string& prefix, std::uint32_t rank,
                                      std::uint32_t ranks) {
  std::unique_ptr<Trace>& found = traces_[{prefix, rank}];
  if (found == nullptr) {
    chakra::FieldRules rules;
    rules.custom = true;
    rules.npus = ranks;
    auto loaded = std::make_unique<Trace>();
    load_trace(prefix + "." + std::to_string(rank) + ".et", rank, rules, *loaded);
    found = std::move(loaded);
  }
  return *found;
}

void CustomCollectives::start(std::uint32_t npu, std::uint32_t node, std::uint32_t group,
                              const std::string& prefix) {
  const std::vector<std::uint32_t>& members = plans_.members(group);
  const auto rank = static_cast<std::uint32_t>(std::count_if(
      members.begin(), members.end(), [&](std::uint32_t other) { return other < npu; }));
  const Trace& steps = trace(prefix, rank, static_cast<std::uint32_t>(members.size()));
  const auto run = static_cast<std::uint32_t>(runs_.size());
  const auto count = static_cast<std::uint32_t>(steps.nodes.size());
  runs_.push_back({&steps, npu, node, group, static_cast<std::uint32_t>(nodes_.size()), count, {}});
  nodes_.resize(nodes_.size() + count, run);
  if (nodes_.size() >= kBit)
    throw model::InputError("custom collectives of more than 2^31 nodes in all are too many");
  for (const TraceNode& step : steps.nodes) runs_[run].parents_left.push_back(step.parents_left);
  for (std::uint32_t at = 0; at < count; ++at) {
    if (steps.nodes[at].parents_left == 0) issue(run, at);
  }
}

void CustomCollectives::issue(std::uint32_t run, std::uint32_t at) {
  const Run& part = runs_[run];
  const TraceNode& step = part.trace->nodes[at];
  const std::uint32_t node = kBit | (part.first + at);
  const std::vector<std::uint32_t>& members = plans_.members(part.group);
  if (step.type != chakra::NodeType::kComp && members[step.peer] == part.npu) {
    throw model::InputError(
        "NPU " + std::to_string(part.npu) + ": rank " + std::to_string(step.peer) +
        " of its custom collective is itself in the list of group " + std::to_string(part.group) +
        "; ranks are places by ascending number, so list its NPUs so");
  }
  switch (step.type) {
    case chakra::NodeType::kCommSend:
      messages_.send({part.npu, members[step.peer], step.tag, step.bytes}, node);
      return;
    case chakra::NodeType::kCommRecv:
      messages_.receive({members[step.peer], part.npu, step.tag, step.bytes}, node);
      return;
    default:
      clock_.local(part.npu, step.duration_ns, {EventKind::kCustomDone, node});
  }
}

void CustomCollectives::node_done(std::uint32_t at) {
  const std::uint32_t index = at & ~kBit;
  const std::uint32_t run = nodes_[index];
  const Trace& steps = *runs_[run].trace;
  const TraceNode& step = steps.nodes[index - runs_[run].first];
  for (std::uint32_t k = 0; k < step.child_count; ++k) {
    const std::uint32_t child = steps.children[step.first_child + k];
    if (--runs_[run].parents_left[child] == 0) issue(run, child);
  }
  if (--runs_[run].left == 0) {
    runs_[run].parents_left = {};
    sink_.node_done(runs_[run].node);
  }
}

}  // namespace astra_sim::strict
