#include "strict/collectives/custom.h"

#include <algorithm>

#include "model/base/input_error.h"

namespace astra_sim::strict {

namespace {

// Upstream enters the steps of a file in a hash table, then takes them from there: that order, and
// not that of the file, is the one in which it meets steps and their children.
void order_steps(Trace& trace) {
  HashOrder table;
  for (const std::uint32_t at : trace.order) table.insert(trace.nodes[at].id);
  std::vector<std::uint32_t> met;
  for (const std::uint32_t at : table.take()) met.push_back(trace.order[at]);
  trace.order = std::move(met);
}

// Upstream keeps the children of a step in a hash set too, and frees them in its order.
void order_children(Trace& trace) {
  std::vector<std::uint32_t> place(trace.nodes.size());
  for (std::uint32_t at = 0; at < trace.order.size(); ++at) place[trace.order[at]] = at;
  for (const TraceNode& node : trace.nodes) {
    if (node.child_count < 2) continue;
    const auto first = trace.children.begin() + node.first_child;
    std::vector<std::uint32_t> children(first, first + node.child_count);
    std::sort(children.begin(), children.end(),
              [&](std::uint32_t a, std::uint32_t b) { return place[a] < place[b]; });
    HashOrder set;
    for (const std::uint32_t child : children) set.insert(trace.nodes[child].id);
    const std::vector<std::uint32_t> order = set.take();
    for (std::size_t at = 0; at < order.size(); ++at) {
      trace.children[node.first_child + at] = children[order[at]];
    }
  }
}

}  // namespace

const Trace& CustomCollectives::trace(const std::string& prefix, std::uint32_t rank,
                                      std::uint32_t ranks) {
  std::unique_ptr<Trace>& found = traces_[{prefix, rank}];
  if (found == nullptr) {
    chakra::FieldRules rules;
    rules.custom = true;
    rules.npus = ranks;
    auto loaded = std::make_unique<Trace>();
    load_trace(prefix + "." + std::to_string(rank) + ".et", rank, rules, *loaded);
    order_steps(*loaded);
    order_children(*loaded);
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
  runs_.push_back(
      {&steps, npu, node, group, static_cast<std::uint32_t>(nodes_.size()), count, {}, {}});
  nodes_.resize(nodes_.size() + count, run);
  if (nodes_.size() >= kBit)
    throw model::InputError("custom collectives of more than 2^31 nodes in all are too many");
  for (const TraceNode& step : steps.nodes) runs_[run].parents_left.push_back(step.parents_left);
  std::vector<std::uint32_t> roots;
  for (const std::uint32_t at : steps.order) {
    if (steps.nodes[at].parents_left == 0) roots.push_back(at);
  }
  issue_all(run, roots);
}

void CustomCollectives::issue_all(std::uint32_t run, const std::vector<std::uint32_t>& steps) {
  if (steps.size() == 1) return issue(run, steps[0]);
  const Trace& trace = *runs_[run].trace;
  for (const std::uint32_t at : steps) runs_[run].free.insert(trace.nodes[at].id);
  for (const std::uint32_t at : runs_[run].free.take()) issue(run, steps[at]);
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
  std::vector<std::uint32_t> freed;
  for (std::uint32_t k = 0; k < step.child_count; ++k) {
    const std::uint32_t child = steps.children[step.first_child + k];
    if (--runs_[run].parents_left[child] == 0) freed.push_back(child);
  }
  if (!freed.empty()) issue_all(run, freed);
  if (--runs_[run].left == 0) {
    runs_[run].parents_left = {};
    runs_[run].free = {};
    sink_.node_done(runs_[run].node);
  }
}

}  // namespace astra_sim::strict
