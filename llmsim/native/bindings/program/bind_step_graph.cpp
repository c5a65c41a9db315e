// The nodes of single steps, for Python.
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <ranges>

#include "afd/afd_graph.h"
#include "afd/afd_pricer.h"
#include "bindings/bindings.h"
#include "step/executors/folded.h"

namespace llmsim {

using namespace nanobind::literals;

namespace {

nb::list items_of(const Batch& batch) {
  nb::list items;
  for (const Item& item : batch.items) {
    if (item.drafts > 0) {
      items.append(nb::make_tuple(item.tokens, item.computed_before, item.drafts));
    } else {
      items.append(nb::make_tuple(item.tokens, item.computed_before));
    }
  }
  return items;
}

// Passes of a drafter so far, and how many drafts each sequence gets at the end of the step.
struct Drafts {
  std::shared_ptr<const Drafter> drafter;  // null: none
  std::vector<std::int32_t> after;         // by member
  std::int64_t first_passes = 0, next_passes = 0;
};

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

// A step that nothing runs before, the first of whose members begins at 0: their hosts have its
// batch as much earlier as they need to prepare it.
struct LoneStep {
  StepStart start;
  StepCarry carry;

  LoneStep(const StepGraph& graph, std::span<const Program* const> members,
           std::span<const Batch> batches)
      : carry(graph) {
    Ps least = std::numeric_limits<Ps>::max();
    for (std::size_t member = 0; member < members.size(); ++member)
      least = std::min(least, members[member]->graphs().preparing(batches[member].host_work()));
    start.now = -least;
    for (std::int32_t unit = 0; unit < graph.units; ++unit)
      carry.free[at(stream_of(unit, DeviceStream::kHost))] = start.now;
  }
};

// The nodes of a step, and the halves of its batches.
nb::tuple step_nodes(const std::shared_ptr<Program>& program,
                     const std::shared_ptr<const OffloadConfig>& offload,
                     const std::vector<Items>& items, std::int64_t step, const Drafts& drafts,
                     const std::vector<std::vector<std::int32_t>>& adapters,
                     const std::vector<Ps>& slowed_ps) {
  std::vector<std::unique_ptr<GroupCosts>> owned;
  std::vector<GroupCosts*> members;
  std::vector<Batch> batches;
  for (const Items& one : items) {
    owned.push_back(std::make_unique<GroupCosts>(program, drafts.drafter));
    owned.back()->usage().steps = step - 1;
    owned.back()->slow_by(slowed_ps.empty() ? 0 : slowed_ps.at(batches.size()));
    owned.back()->drafter_usage().first.steps = drafts.first_passes;
    owned.back()->drafter_usage().next.steps = drafts.next_passes;
    members.push_back(owned.back().get());
    const std::size_t member = batches.size();
    batches.push_back(adapters.empty() ? batch_of(one) : batch_of(one, adapters.at(member)));
    if (drafts.drafter) batches.back().drafts_after = drafts.after.at(batches.size() - 1);
  }
  std::vector<const Batch*> pointers;
  for (const Batch& batch : batches) pointers.push_back(&batch);
  std::vector<std::shared_ptr<const OffloadConfig>> configs;
  if (offload) configs.assign(items.size(), offload);
  StepPricer pricer(members, configs);
  StepTimer timer(full_graphs(pricer), std::make_unique<FoldedTiming>());
  const std::vector<const Program*> programs(items.size(), program.get());
  LoneStep chosen(timer.graphs().whole, programs, batches), lone = chosen;
  const bool may_split = pricer.begin(pointers, 0);
  const StepTimer::Timed step_timed = timer.run(pricer, may_split, chosen.start, chosen.carry);
  FoldedTiming timing;
  std::vector<Ps> starts(items.size()), ends(items.size());
  timing.run(step_timed.graph, step_timed.prices, lone.start, lone.carry, starts, ends);
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

// The nodes of a step of attention and FFN members; by lane and member, its items and the features
// that it reads the tables at; and what each member counts.
nb::tuple afd_nodes(const AfdConfig& config, const std::vector<std::shared_ptr<Program>>& programs,
                    const std::vector<Items>& items, std::int64_t step, const Drafts& drafts) {
  std::vector<std::unique_ptr<GroupCosts>> owned;
  std::vector<GroupCosts*> members;
  std::vector<const Program*> known;
  std::vector<Batch> batches;
  for (const auto& program : programs) {
    const std::size_t member = batches.size();
    const bool proposes = drafts.drafter && member < at(config.attention_members);
    owned.push_back(std::make_unique<GroupCosts>(program, proposes ? drafts.drafter : nullptr));
    owned.back()->usage().steps = step - 1;
    if (proposes) {
      owned.back()->drafter_usage().first.steps = drafts.first_passes;
      owned.back()->drafter_usage().next.steps = drafts.next_passes;
    }
    members.push_back(owned.back().get());
    known.push_back(program.get());
    batches.push_back(batch_of(items.at(member)));
    if (proposes) batches.back().drafts_after = drafts.after.at(member);
  }
  std::vector<const Batch*> pointers;
  for (const Batch& batch : batches) pointers.push_back(&batch);
  StepGraph graph = afd_graph(config, known, true, drafts.drafter != nullptr);
  number_rows(graph);
  AfdPricer pricer(members, config);
  pricer.begin(pointers);
  StepPrices prices;
  pricer.fill(graph, prices);
  LoneStep lone(graph, known, batches);
  FoldedTiming timing;
  std::vector<Ps> starts(members.size()), ends(members.size());
  timing.run(graph, prices, lone.start, lone.carry, starts, ends);
  nb::list lanes, counted;
  for (std::size_t lane = 0; lane < at(config.lanes); ++lane) {
    nb::list mine;
    for (std::size_t m = 0; m < members.size(); ++m) {
      const Program::Place& at = pricer.lane(lane, m).place;
      mine.append(nb::make_tuple(items_of(pricer.batch(lane, m)), at.rows()));
    }
    lanes.append(mine);
  }
  for (const GroupCosts* member : members) counted.append(costs_activity(*member));
  return nb::make_tuple(nodes_of(graph, prices, timing.node_ends()), lanes, counted);
}

// Of each pass: whether it is the first, its items, the features that it reads the tables at, what
// it takes, and its nodes.
nb::list draft_nodes(const std::shared_ptr<Drafter>& drafter, const Items& items,
                     std::int32_t drafts_after, std::int64_t first_passes,
                     std::int64_t next_passes) {
  nb::list passes;
  Batch batch = batch_of(items);
  batch.drafts_after = drafts_after;
  drafter->each_pass(batch, [&](const Batch& pass, bool first) {
    GroupCosts costs(first ? drafter->first_program() : drafter->next_program());
    const Program& program = costs.program();
    costs.usage().steps = first ? first_passes : next_passes++;
    StepPricer pricer({&costs});
    const StepGraphs graphs = full_graphs(pricer);
    const Batch* one = &pass;
    pricer.begin({&one, 1}, 0);
    StepPrices prices;
    pricer.fill(graphs.whole, prices);
    StepCarry carry(graphs.whole);
    FoldedTiming timing;
    Ps start = 0, end = 0;
    timing.run(graphs.whole, prices, {}, carry, {&start, 1}, {&end, 1});
    const std::int64_t padded = program.padded(program.rank_features(pass));
    const Program::Place at = program.place(pass, padded, 0);
    const auto place = at.rows();
    const GraphMode mode = program.graph_mode(program.rank_features(pass));
    const Ps took = program.launched(pricer.open(0, graphs.whole, prices).busy, mode);
    passes.append(nb::make_tuple(first, items_of(pass), place, took,
                                 nodes_of(graphs.whole, prices, timing.node_ends())));
  });
  return passes;
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
      .value("PREPARE", NodeRole::kPrepare)
      .value("SLOWED", NodeRole::kSlowed)
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
      "step_nodes",
      [](const std::shared_ptr<Program>& program, const std::shared_ptr<OffloadConfig>& offload,
         const std::vector<Items>& items, std::int64_t step,
         const std::shared_ptr<Drafter>& drafter, std::vector<std::int32_t> drafts_after,
         std::int64_t first_passes, std::int64_t next_passes,
         const std::vector<std::vector<std::int32_t>>& adapters, const std::vector<Ps>& slowed_ps) {
        return step_nodes(program, offload, items, step,
                          {drafter, std::move(drafts_after), first_passes, next_passes}, adapters,
                          slowed_ps);
      },
      "program"_a, "offload"_a.none(), "items"_a, "step"_a, "drafter"_a.none() = nb::none(),
      "drafts_after"_a = std::vector<std::int32_t>{}, "first_passes"_a = 0, "next_passes"_a = 0,
      "adapters"_a = std::vector<std::vector<std::int32_t>>{}, "slowed_ps"_a = std::vector<Ps>{},
      "The nodes of the run's step of that number, from 1, if nothing ran before: (unit, stream, "
      "role, operator, execution, lane, ps, end ps, bytes, nodes before) each; of each member its "
      "two halves, if they alternate; and what each member counts (`Simulation.activity`). "
      "`drafts_after` are each member's, of a drafter that has run so many passes before; "
      "`adapters` each member's counts of `Simulation.schedule`'s `adapter_use`, and `slowed_ps` "
      "what the power limit added to each of its stages (none: nothing).");
  m.def(
      "afd_nodes",
      [](const AfdConfig& config, const std::vector<std::shared_ptr<Program>>& programs,
         const std::vector<Items>& items, std::int64_t step,
         const std::shared_ptr<Drafter>& drafter, std::vector<std::int32_t> drafts_after,
         std::int64_t first_passes, std::int64_t next_passes) {
        return afd_nodes(config, programs, items, step,
                         {drafter, std::move(drafts_after), first_passes, next_passes});
      },
      "config"_a, "programs"_a, "items"_a, "step"_a, "drafter"_a.none() = nb::none(),
      "drafts_after"_a = std::vector<std::int32_t>{}, "first_passes"_a = 0, "next_passes"_a = 0,
      "The nodes of the run's step of that number, from 1, of attention and FFN members, if "
      "nothing ran before, as `step_nodes` has them; by lane and member, its items and its value "
      "of each feature; and what each member counts. `items` of FFN members are none; drafts are "
      "those of `step_nodes`, of attention members.");
  m.def("draft_nodes", &draft_nodes, "drafter"_a, "items"_a, "drafts_after"_a, "first_passes"_a,
        "next_passes"_a,
        "The passes of a drafter at the end of a step: whether it is the first, its items, its "
        "value of each feature, ps, and its nodes, as `step_nodes` has them.");
}

}  // namespace llmsim
