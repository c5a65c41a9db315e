// The tree that describes a simulation, for Python: every part is given to a constructor and never
// changes.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <variant>

#include "afd/afd_executor.h"
#include "bindings/bindings.h"
#include "bindings/python/python_scheduler.h"
#include "router/registry.h"
#include "scheduler/impl/no_requests.h"
#include "scheduler/registry.h"
#include "step/batch_runner.h"
#include "step/executors/contended.h"
#include "step/executors/expanded.h"
#include "step/executors/folded.h"
#include "step/executors/outside.h"
#include "step/round_runner.h"

using namespace nanobind::literals;

namespace llmsim {
namespace {

// A scheduler that is a Python object (llmsim.scheduling.base.Scheduler), and what the core has to
// know of it.
struct PythonSchedulerConfig {
  SharedObject scheduler;
  KvCacheConfig kv;
  SpeculationConfig speculation;
  LoraSlotsConfig lora;
};

using Pairs = std::vector<std::pair<NetworkNodeId, NetworkNodeId>>;
using CollectivePart = std::tuple<Pairs, std::int64_t, std::int64_t>;

std::vector<FlowEnds> flows(const Pairs& pairs) {
  std::vector<FlowEnds> flows;
  for (const auto& [from, to] : pairs) flows.push_back({from, to});
  return flows;
}

using SchedulerMaker = decltype(GroupSpec::make_scheduler);

SchedulerMaker maker_of(const SchedulerConfig* config) {
  return [config = *config](SequenceTable& sequences, RequestLog& log) {
    return make_scheduler(config, sequences, log);
  };
}

SchedulerMaker maker_of(const PythonSchedulerConfig* config) {
  return [config = *config](SequenceTable& sequences, RequestLog& log) {
    const nb::gil_scoped_acquire lock;
    return std::make_unique<PythonScheduler>(*config.scheduler, config.kv, config.speculation,
                                             config.lora, sequences, log);
  };
}

SchedulerMaker maker_of(std::nullptr_t) {
  return [](SequenceTable&, RequestLog&) { return std::make_unique<NoRequests>(); };
}

std::vector<GroupCosts*> costs_of(const std::vector<Group*>& members) {
  std::vector<GroupCosts*> costs;
  for (Group* member : members) costs.push_back(&member->costs());
  return costs;
}

GroupCosts make_costs(const GroupConfig& config, const std::shared_ptr<Program>& program) {
  GroupCosts costs(program, config.drafter);
  if (config.drafter && config.drafter->first_expanded() != nullptr)
    costs.set_pass_timer(std::make_unique<ExpandedPasses>(*config.drafter));
  return costs;
}

// By member; empty where one of them keeps all on its devices.
std::vector<std::shared_ptr<const OffloadConfig>> offload_of(const std::vector<Group*>& members) {
  std::vector<std::shared_ptr<const OffloadConfig>> offload;
  for (const Group* member : members)
    if (member->config().offload) offload.push_back(member->config().offload);
  if (offload.size() < members.size()) offload.clear();
  return offload;
}

std::unique_ptr<StepExecutor> folded_executor(StepPricer pricer) {
  StepGraphs graphs = folded_graphs(pricer);
  return std::make_unique<GraphExecutor>(std::move(pricer), std::move(graphs),
                                         std::make_unique<FoldedTiming>());
}

// Of one group, or of all members of a lock-step group, on links that nobody else uses.
std::unique_ptr<StepExecutor> make_executor(const std::vector<Group*>& members,
                                            const ExpandedConfig* expanded) {
  const std::vector<std::shared_ptr<const OffloadConfig>> offload = offload_of(members);
  StepPricer pricer(costs_of(members), offload);
  if (!offload.empty() && offload[0]->shared)
    return std::make_unique<ContendedExecutor>(std::move(pricer));
  // Copies and collectives of an offloaded step are known durations in the engine, too.
  if (!offload.empty() && offload[0]->expanded)
    return expanded_executor(std::move(pricer), nullptr);
  if (offload.empty() && expanded != nullptr) return expanded_executor(std::move(pricer), expanded);
  return folded_executor(std::move(pricer));
}

// From a callable in Python: (tokens, computed before[, drafts]) of each member's items, the step's
// number, and of each member how many drafts its sequences get and the passes of its drafter so
// far; null: none.
OutsideTimes outside_times(nb::object callable) {
  if (callable.is_none()) return nullptr;
  const SharedObject shared = share(std::move(callable));
  return [shared](const OutsideStep& step) {
    const nb::gil_scoped_acquire locked;
    std::vector<std::vector<std::vector<std::int64_t>>> members;
    std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> drafts;
    for (std::size_t m = 0; m < step.batches.size(); ++m) {
      auto& items = members.emplace_back();
      for (const Item& item : step.batches[m]->items) {
        items.push_back({item.tokens, item.computed_before});
        if (item.drafts > 0) items.back().push_back(item.drafts);
      }
      const OutsideStep::Passes& passes = step.passes[m];
      drafts.emplace_back(step.batches[m]->drafts_after, passes.first, passes.next);
    }
    return nb::cast<std::vector<Ps>>((*shared)(members, step.number, drafts));
  };
}

std::unique_ptr<StepExecutor> timed_outside(const std::vector<Group*>& members,
                                            OutsideTimes times) {
  return std::make_unique<OutsideExecutor>(StepPricer(costs_of(members), offload_of(members)),
                                           std::move(times));
}

// Null: the group's steps follow its program.
std::unique_ptr<StepExecutor> make_group_executor(Group& group, const ExpandedConfig* expanded) {
  const bool follows = !group.config().offload && expanded == nullptr && !group.overlaps();
  return follows ? nullptr : make_executor({&group}, expanded);
}

const ExpandedConfig* pointer_to(const std::optional<ExpandedConfig>& expanded) {
  return expanded ? &*expanded : nullptr;
}

using AnyScheduler = std::variant<const SchedulerConfig*, const PythonSchedulerConfig*>;

// None: the group gets no requests.
SchedulerMaker maker_of_any(const std::optional<AnyScheduler>& scheduler) {
  if (!scheduler) return maker_of(nullptr);
  return std::visit([](const auto* one) { return maker_of(one); }, *scheduler);
}

void check_reach(const SchedulerConfig& scheduler, const Program& program) {
  if (scheduler.max_num_scheduled_tokens > program.most_tokens())
    throw std::invalid_argument("steps of " + std::to_string(scheduler.max_num_scheduled_tokens) +
                                " tokens; the program's tables end at " +
                                std::to_string(program.most_tokens()));
}

void make_group_spec(GroupSpec* spec, const GroupConfig& config,
                     const std::optional<AnyScheduler>& scheduler, std::shared_ptr<Program> program,
                     std::optional<ExpandedConfig> expanded, bool record_steps,
                     bool record_schedule, nb::object outside) {
  if (scheduler && std::holds_alternative<const SchedulerConfig*>(*scheduler))
    check_reach(*std::get<const SchedulerConfig*>(*scheduler), *program);
  new (spec) GroupSpec{
      config,
      maker_of_any(scheduler),
      [config, program = std::move(program)] { return make_costs(config, program); },
      [expanded = std::move(expanded), outside = outside_times(std::move(outside))](Group& group) {
        return outside ? timed_outside({&group}, outside)
                       : make_group_executor(group, pointer_to(expanded));
      },
      record_steps,
      record_schedule};
}

void make_batch_runner(BatchRunner* runner, const GroupConfig& config,
                       const std::shared_ptr<Program>& program,
                       const std::optional<ExpandedConfig>& expanded) {
  if (config.offload) throw std::invalid_argument("steps with copies need a network");
  const auto make = [&](GroupCosts& costs) -> std::unique_ptr<StepExecutor> {
    if (expanded) return expanded_executor(StepPricer({&costs}), &*expanded);
    return program->num_stages() > 1 ? folded_executor(StepPricer({&costs})) : nullptr;
  };
  new (runner) BatchRunner(make_costs(config, program), make);
}

void bind_batch_runner(nb::module_& m) {
  nb::class_<BatchRunner>(
      m, "BatchRunner",
      "Times batches that somebody else forms, a real engine, on the devices of one group.")
      .def("__init__", &make_batch_runner, "config"_a, "program"_a, "expanded"_a = nb::none())
      .def(
          "run",
          [](BatchRunner& runner, const Items& items, Ps now_ps, Ps known_ps,
             std::int32_t drafts_after, Ps posting_ps, const std::vector<std::int32_t>& counts) {
            Batch batch = batch_of(items, counts);
            batch.drafts_after = drafts_after;
            batch.posting = posting_ps;
            const StepTimes times = runner.run(batch, now_ps, known_ps);
            return std::pair{times.start, times.end};
          },
          "items"_a, "now_ps"_a, "known_ps"_a = 0, "drafts_after"_a = 0, "posting_ps"_a = 0,
          "counts"_a = std::vector<std::int32_t>{},
          "(start, end) in ps of the next step, which the host has at now_ps and which may start "
          "when its input tokens are known; items as of Program.step_ps, drafts_after are proposed "
          "for each sequence at its end, and its hosts post reads of KV for posting_ps first. "
          "counts: none, or those of LoraSlots.begin_step, and perhaps tokens and pairs of tokens "
          "that its encoder computes.");
}

void make_round_runner(RoundRunner* runner, const std::vector<GroupConfig>& configs,
                       const std::vector<std::shared_ptr<Program>>& programs,
                       const std::optional<ExpandedConfig>& expanded,
                       const ContentionSpec* contention, std::shared_ptr<OutsideNetwork> network) {
  if (configs.empty() || configs.size() != programs.size())
    throw std::invalid_argument("a round has members, each with a program");
  std::vector<GroupCosts> costs;
  for (std::size_t m = 0; m < configs.size(); ++m) {
    if (configs[m].offload) throw std::invalid_argument("steps with copies need a network");
    costs.push_back(make_costs(configs[m], programs[m]));
  }
  const auto make = [&](std::vector<GroupCosts*> members) -> std::unique_ptr<StepExecutor> {
    StepPricer pricer(std::move(members));
    if (contention != nullptr)
      return std::make_unique<ContendedExecutor>(std::move(pricer), contention->links);
    return expanded ? expanded_executor(std::move(pricer), &*expanded)
                    : folded_executor(std::move(pricer));
  };
  new (runner) RoundRunner(std::move(costs), make, contention ? std::move(network) : nullptr);
}

void bind_round_runner(nb::module_& m) {
  nb::class_<RoundRunner>(
      m, "RoundRunner",
      "Times rounds of batches that real engines form, on the devices of a lock-step group.")
      .def("__init__", &make_round_runner, "configs"_a, "programs"_a, "expanded"_a = nb::none(),
           "contention"_a.none() = nb::none(), "network"_a.none() = nb::none(),
           "configs, programs: of each member. contention: what they move on the network, where "
           "they meet others; None: they meet nobody.")
      .def(
          "begin",
          [](RoundRunner& runner, const std::vector<Items>& batches, Ps now_ps, Ps ready_ps,
             const std::vector<Ps>& posting_ps, const std::vector<std::int32_t>& drafts_after) {
            std::vector<Batch> members;
            for (const Items& items : batches) members.push_back(batch_of(items));
            for (std::size_t m = 0; m < std::min(members.size(), posting_ps.size()); ++m)
              members[m].posting = posting_ps[m];
            for (std::size_t m = 0; m < std::min(members.size(), drafts_after.size()); ++m)
              members[m].drafts_after = drafts_after[m];
            runner.begin(members, now_ps, ready_ps);
          },
          "batches"_a, "now_ps"_a, "ready_ps"_a = 0, "posting_ps"_a = std::vector<Ps>{},
          "drafts_after"_a = std::vector<std::int32_t>{},
          "Begins the next round, which the hosts have at now_ps and which may start at ready_ps; "
          "items as of Program.step_ps, none for a member without work. posting_ps: how long the "
          "hosts of each member post reads of KV first. "
          "drafts_after: proposed for each sequence of a member at its end. Both may be empty.")
      .def(
          "take_timed",
          [](RoundRunner& runner) {
            std::vector<std::tuple<std::size_t, Ps, Ps>> timed;
            for (const RoundRunner::Timed& one : runner.take_timed())
              timed.emplace_back(one.member, one.times.start, one.times.end);
            return timed;
          },
          "(member, start, end) in ps of the steps whose times have become known since this was "
          "asked last, of each member in the order of its steps.");
}

void bind_source(nb::module_& m) {
  nb::class_<ClientsConfig>(m, "ClientsConfig",
                            "When clients give up, and how many of them ask in turn.")
      .def(
          "__init__",
          [](ClientsConfig* config, const In<std::int64_t>& timeout_ps,
             const In<std::int32_t>& cancel_after_tokens, std::int32_t count,
             const In<std::int64_t>& think_ps) {
            new (config) ClientsConfig{to_vector(timeout_ps), to_vector(cancel_after_tokens), count,
                                       to_vector(think_ps)};
          },
          "timeout_ps"_a, "cancel_after_tokens"_a, "count"_a, "think_ps"_a,
          "timeout_ps: from a request's arrival until its client gives up (-1: never). "
          "cancel_after_tokens: it leaves "
          "with that many tokens (0: never). count: clients of a closed loop, 0 in an open loop. "
          "think_ps: from a "
          "row's answer to the client's next request. Each array may be empty.");
  nb::class_<Source>(m, "Source", "The workload of a simulation, by row, and its clients.")
      .def(
          "__init__",
          [](Source* source, const In<std::int64_t>& arrival_ps,
             const In<std::int32_t>& input_tokens, const In<std::int32_t>& output_tokens,
             const In<std::int16_t>& model, const In<std::int32_t>& next_call,
             const In<std::int64_t>& tool_delay_ps, const In<std::int32_t>& priority,
             const In<std::int64_t>& key_offsets, const In<std::uint64_t>& keys,
             std::int32_t granularity, const ClientsConfig* clients,
             const std::optional<In<std::int32_t>>& adapter) {
            new (source) Source{to_vector(arrival_ps),
                                to_vector(input_tokens),
                                to_vector(output_tokens),
                                to_vector(priority),
                                adapter ? to_vector(*adapter) : std::vector<std::int32_t>{},
                                to_vector(model),
                                to_vector(next_call),
                                to_vector(tool_delay_ps),
                                {to_vector(key_offsets), to_vector(keys), granularity},
                                clients == nullptr ? ClientsConfig{} : *clients};
          },
          "arrival_ps"_a, "input_tokens"_a, "output_tokens"_a, "model"_a, "next_call"_a,
          "tool_delay_ps"_a, "priority"_a, "key_offsets"_a, "keys"_a, "granularity"_a,
          "clients"_a.none() = nb::none(), "adapter"_a.none() = nb::none(),
          "adapter: LoRA of each row, from 1; 0: the model itself.");
}

void bind_group_specs(nb::module_& m) {
  nb::class_<PythonSchedulerConfig>(
      m, "PythonSchedulerConfig",
      "A scheduler in Python (llmsim.scheduling.base.Scheduler) and its limits.")
      .def(
          "__init__",
          [](PythonSchedulerConfig* config, nb::object scheduler, const KvCacheConfig& kv,
             const SpeculationConfig& speculation, const LoraSlotsConfig& lora) {
            new (config) PythonSchedulerConfig{share(std::move(scheduler)), kv, speculation, lora};
          },
          "scheduler"_a, "kv"_a, "speculation"_a = SpeculationConfig{},
          "lora"_a = LoraSlotsConfig{});
  nb::class_<GroupSpec>(m, "GroupSpec",
                        "A model serving group: its configuration, its scheduler and its program.")
      .def("__init__", &make_group_spec, "config"_a, "scheduler"_a.none(), "program"_a,
           "expanded"_a = nb::none(), "record_steps"_a = false, "record_schedule"_a = false,
           "outside"_a = nb::none(),
           "scheduler: None for a group that gets no requests. expanded: every rank's nodes run in "
           "the engine instead of the folded program. outside: a callable that gets (tokens, "
           "computed before) of each member's items and the number "
           "of the step, and returns how much later than in its graph each stage of each member is "
           "done, in ps.");
  nb::class_<LockstepSpec>(m, "LockstepSpec", "Groups that run in lock-step.")
      .def(
          "__init__",
          [](LockstepSpec* spec, std::vector<std::size_t> groups, std::int32_t sync_interval,
             std::optional<ExpandedConfig> expanded, nb::object outside, bool syncs_first) {
            new (spec) LockstepSpec{
                std::move(groups), sync_interval,
                [expanded = std::move(expanded),
                 outside = outside_times(std::move(outside))](const std::vector<Group*>& members) {
                  return outside ? timed_outside(members, outside)
                                 : make_executor(members, pointer_to(expanded));
                },
                syncs_first};
          },
          "groups"_a, "sync_interval"_a, "expanded"_a = nb::none(), "outside"_a = nb::none(),
          "syncs_first"_a = false,
          "groups: by index. sync_interval: rounds between two agreements that nobody has work; 0: "
          "no round runs without work, and nobody agrees. "
          "syncs_first: they also agree behind the first round of a wave.")
      .def(
          "__init__",
          [](LockstepSpec* spec, std::vector<std::size_t> groups, std::int32_t sync_interval,
             AfdConfig afd, bool exact, std::vector<SharedPort> ports, bool syncs_first,
             bool splits_waiting) {
            afd.splits_waiting = splits_waiting;
            new (spec) LockstepSpec{std::move(groups), sync_interval,
                                    [afd = std::move(afd), exact,
                                     ports = std::move(ports)](const std::vector<Group*>& members) {
                                      return afd_executor(costs_of(members), afd, exact, ports);
                                    },
                                    syncs_first};
          },
          "groups"_a, "sync_interval"_a, "afd"_a, "exact"_a = false,
          "ports"_a = std::vector<SharedPort>{}, "syncs_first"_a = false, "splits_waiting"_a = true,
          "groups: attention members, then FFN members. exact: every node runs in the engine. "
          "ports: those that other transfers use, too. splits_waiting: what steps wait for rows is "
          "told from other waiting.");
  nb::class_<PlannedCollective>(m, "PlannedSpec",
                                "What a collective moves by the plan of its size.")
      .def(
          "__init__",
          [](PlannedCollective* spec, std::int32_t op, std::int32_t member, std::int64_t from_units,
             const std::vector<CollectivePart>& parts) {
            new (spec) PlannedCollective{op, member, from_units, {}};
            for (const auto& [pairs, share, of] : parts)
              spec->parts.push_back({flows(pairs), share, of});
          },
          "op"_a, "member"_a, "from_units"_a, "parts"_a,
          "member: 0 for collectives of all members. from_units: tokens or sequences from which on "
          "the plan is taken. parts: (nodes (from, to) of flows that carry equal bytes, and these "
          "bytes as a numerator and a denominator, of the vector).");
  nb::class_<ContentionSpec>(
      m, "ContentionSpec",
      "Members of a lock-step group, or one group in stages, that send over shared links.")
      .def(
          "__init__",
          [](ContentionSpec* spec, std::vector<std::size_t> groups,
             std::vector<NetworkNodeId> places, std::vector<CollectiveSpec> collectives,
             std::vector<PlannedCollective> planned) {
            new (spec) ContentionSpec{
                std::move(groups), {std::move(places), std::move(collectives), std::move(planned)}};
          },
          "groups"_a, "places"_a, "collectives"_a, "planned"_a = std::vector<PlannedCollective>{},
          "groups: by index. places: the node of every device, ranks of a stage first, then "
          "stages, then members. "
          "collectives: what is between members or stages, with its bytes. "
          "planned: what those of them that a library plans move.");
}

void bind_frontend(nb::module_& m) {
  nb::class_<FrontendConfig>(m, "Frontend",
                             "What happens to a request between its arrival and its group.")
      .def(
          "__init__",
          [](FrontendConfig* config, const RouterMaker* router, const RouterMaker* decode_router,
             const AdmissionMaker* admission) {
            new (config) FrontendConfig{};
            if (router != nullptr) config->make_router = *router;
            if (decode_router != nullptr) config->make_decode_router = *decode_router;
            if (admission != nullptr) config->make_admission = *admission;
          },
          "router"_a.none() = nb::none(), "decode_router"_a.none() = nb::none(),
          "admission"_a.none() = nb::none(),
          "router: needed where several groups serve a model. decode_router: needed where several "
          "groups decode for "
          "one. admission: None takes every request in.");
}

template <typename T>
std::optional<T> copied(const T* given) {
  return given == nullptr ? std::nullopt : std::optional<T>(*given);
}

}  // namespace

void bind_simulation_config(nb::module_& m) {
  bind_batch_runner(m);
  bind_round_runner(m);
  bind_source(m);
  bind_group_specs(m);
  bind_frontend(m);
  nb::class_<ObserversConfig>(m, "Observers",
                              "What is recorded and checked while a simulation runs.")
      .def(
          "__init__",
          [](ObserversConfig* config, Ps series_interval_ps, bool device_shares,
             bool check_every_step, bool transfers) {
            new (config)
                ObserversConfig{series_interval_ps, device_shares, check_every_step, transfers};
          },
          "series_interval_ps"_a = 0, "device_shares"_a = false, "check_every_step"_a = false,
          "transfers"_a = false,
          "series_interval_ps: between two samples, 0 for none. device_shares: groups note for "
          "whom their devices "
          "worked. check_every_step: recounts the blocks of every tier at every step. transfers: "
          "all of the network are kept.");
  nb::class_<LimitsConfig>(m, "Limits", "Where a simulation ends before its work does.")
      .def(
          "__init__",
          [](LimitsConfig* config, Ps horizon_ps) { new (config) LimitsConfig{horizon_ps}; },
          "horizon_ps"_a);
  nb::class_<SimulationConfig>(m, "SimulationConfig", "Everything that a simulation is made of.")
      .def(
          "__init__",
          [](SimulationConfig* config, std::shared_ptr<Source> source,
             std::vector<GroupSpec> groups, std::vector<LockstepSpec> lockstep,
             const NetworkConfig* network, std::vector<ContentionSpec> contention,
             const KvTiersConfig* kv_tiers, const KvTransferConfig* kv_transfer,
             const FrontendConfig* frontend, const ObserversConfig* observers,
             const LimitsConfig* limits, std::vector<ControllerMaker> controllers,
             const LiveConfig* live, const LayoutsConfig* layouts,
             std::vector<GroupCopiesConfig> kv_offloading) {
            new (config) SimulationConfig{
                std::move(source),
                copied(live),
                std::move(groups),
                std::move(lockstep),
                copied(network),
                std::move(contention),
                copied(kv_tiers),
                std::move(kv_offloading),
                copied(kv_transfer),
                copied(frontend).value_or(FrontendConfig{}),
                copied(observers).value_or(ObserversConfig{}),
                copied(limits).value_or(LimitsConfig{}),
                std::move(controllers),
                layouts == nullptr ? nullptr : std::make_shared<const LayoutsConfig>(*layouts)};
          },
          "source"_a.none(), "groups"_a, nb::kw_only(), "lockstep"_a = nb::list(),
          "network"_a.none() = nb::none(), "contention"_a = nb::list(),
          "kv_tiers"_a.none() = nb::none(), "kv_transfer"_a.none() = nb::none(),
          "frontend"_a.none() = nb::none(), "observers"_a.none() = nb::none(),
          "limits"_a.none() = nb::none(), "controllers"_a = nb::list(),
          "live"_a.none() = nb::none(), "layouts"_a.none() = nb::none(),
          "kv_offloading"_a = nb::list(),
          "source: the workload, or None where `live` says that requests come while the simulation "
          "runs.");
}

}  // namespace llmsim
