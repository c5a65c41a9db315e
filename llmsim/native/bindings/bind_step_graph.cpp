// The nodes of single steps, for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "step/folded.h"

namespace llmsim {

using namespace nanobind::literals;

namespace {

Items items_of(const Batch& batch) {
  Items items;
  for (const Item& item : batch.items) items.emplace_back(item.tokens, item.computed_before);
  return items;
}

// (unit, stream, role, operator, execution, lane, ps, end, bytes, what it waits for) of each node.
nb::list nodes_of(const StepGraph& graph, const StepPrices& prices, std::span<const Ps> ends) {
  nb::list nodes;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const StepNode& node = graph.nodes[i];
    std::vector<std::int32_t> after;
    for (const Wait& wait : graph.waits_of(node))
      if (wait.from == WaitFor::kNode) after.push_back(wait.index);
    const bool streams = node.stream != kNoStream;
    nodes.append(nb::make_tuple(graph.unit_of(node),
                                streams ? node.stream % kNumDeviceStreams : kNoStream, node.role,
                                node.op, node.execution, node.lane, prices.of(graph, node, 0),
                                ends[i], prices.bytes[at(node.price)], after));
  }
  return nodes;
}

// The nodes of a step, and the halves of its batches.
nb::tuple step_nodes(const std::shared_ptr<Program>& program,
                     const std::shared_ptr<const OffloadConfig>& offload,
                     const std::vector<Items>& items, std::int64_t step) {
  std::vector<std::unique_ptr<GroupCosts>> owned;
  std::vector<GroupCosts*> members;
  std::vector<Batch> batches;
  for (const Items& one : items) {
    owned.push_back(std::make_unique<GroupCosts>(program));
    owned.back()->usage().steps = step - 1;
    members.push_back(owned.back().get());
    batches.push_back(batch_of(one));
  }
  std::vector<const Batch*> pointers;
  for (const Batch& batch : batches) pointers.push_back(&batch);
  std::vector<std::shared_ptr<const OffloadConfig>> configs;
  if (offload) configs.assign(items.size(), offload);
  StepPricer pricer(members, configs);
  StepTimer timer(full_graphs(pricer), std::make_unique<FoldedTiming>());
  StepCarry chosen(timer.graphs().whole), nothing(timer.graphs().whole);
  const bool may_split = pricer.begin(pointers);
  const StepTimer::Timed step_timed = timer.run(pricer, may_split, 0, chosen);
  FoldedTiming timing;
  std::vector<Ps> starts(items.size()), ends(items.size());
  timing.run(step_timed.graph, step_timed.prices, 0, nothing, starts, ends);
  nb::list halves;
  if (&step_timed.graph == &timer.graphs().halves)
    for (const auto& [first, second] : pricer.halves())
      halves.append(nb::make_tuple(items_of(first), items_of(second)));
  nb::list counted;
  for (std::size_t m = 0; m < members.size(); ++m) {
    pricer.open(m, step_timed.graph, step_timed.prices);
    counted.append(costs_activity(*members[m]));
  }
  return nb::make_tuple(nodes_of(step_timed.graph, step_timed.prices, timing.node_ends()), halves,
                        counted);
}

}  // namespace

void bind_step_graph(nb::module_& m) {
  nb::enum_<DeviceStream>(m, "DeviceStream")
      .value("COMPUTE", DeviceStream::kCompute)
      .value("PULL", DeviceStream::kPull)
      .value("COPY_IN", DeviceStream::kCopyIn)
      .value("COPY_OUT", DeviceStream::kCopyOut)
      .value("PIM", DeviceStream::kPim)
      .value("HOST", DeviceStream::kHost)
      .value("SEND", DeviceStream::kSend);
  nb::enum_<NodeRole>(m, "NodeRole")
      .value("BEGIN", NodeRole::kBegin)
      .value("RECEIVE", NodeRole::kReceive)
      .value("MEET", NodeRole::kMeet)
      .value("LAUNCH", NodeRole::kLaunch)
      .value("DRAFTS", NodeRole::kDrafts)
      .value("END", NodeRole::kEnd)
      .value("OPERATOR", NodeRole::kOperator)
      .value("COPY", NodeRole::kCopy)
      .value("TO_HOST", NodeRole::kToHost)
      .value("FROM_HOST", NodeRole::kFromHost)
      .value("QUERIES", NodeRole::kQueries)
      .value("IN_MEMORY", NodeRole::kInMemory)
      .value("RESULTS", NodeRole::kResults)
      .value("CONTEXT", NodeRole::kContext)
      .value("PROMPTS", NodeRole::kPrompts)
      .value("M2N_SEND", NodeRole::kM2nSend)
      .value("M2N_RECEIVE", NodeRole::kM2nReceive)
      .value("M2N_LATENCY", NodeRole::kM2nLatency);
  m.def(
      "step_nodes", &step_nodes, "program"_a, "offload"_a.none(), "items"_a, "step"_a,
      "The nodes of the run's step of that number, from 1, if nothing ran before: (unit, stream, "
      "role, operator, execution, lane, ps, end ps, bytes, nodes before) each; of each member its "
      "two halves, if they alternate; and what each member counts (`Simulation.activity`).");
}

}  // namespace llmsim
