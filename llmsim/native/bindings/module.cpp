// The Python face of the serving core: objects and arrays in, arrays out; every decision stays in
// the core.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/wall_clock.h"
#include "bindings/bindings.h"
#include "bindings/python_scheduler.h"
#include "python/bindings.h"
#include "request/content_hasher.h"
#include "results/token_times.h"
#include "scheduler/registry.h"
#include "step/contended.h"
#include "step/expanded.h"

using namespace nanobind::literals;

namespace llmsim {
namespace {

void add_tokens(ContentHasher& hasher, const nb::list& ids) {
  for (const nb::handle id : ids) hasher.token(nb::cast<std::int64_t>(id));
}

std::vector<GroupCosts*> costs_of(const std::vector<Group*>& members) {
  std::vector<GroupCosts*> costs;
  for (Group* member : members) costs.push_back(&member->costs());
  return costs;
}

// Of one group, or of all members of a lock-step group, on links that nobody else uses.
std::unique_ptr<StepExecutor> make_executor(const std::vector<Group*>& members,
                                            const ExpandedConfig* expanded) {
  std::vector<std::shared_ptr<const OffloadConfig>> offload;
  for (const Group* member : members)
    if (member->config().offload) offload.push_back(member->config().offload);
  if (offload.size() < members.size()) offload.clear();
  StepPricer pricer(costs_of(members), offload);
  if (!offload.empty() && offload[0]->shared)
    return std::make_unique<ContendedExecutor>(std::move(pricer));
  // Copies and collectives of an offloaded step are known durations in the engine, too.
  if (!offload.empty() && offload[0]->expanded)
    return expanded_executor(std::move(pricer), nullptr);
  if (offload.empty() && expanded != nullptr) return expanded_executor(std::move(pricer), expanded);
  StepGraphs graphs = folded_graphs(pricer);
  return std::make_unique<GraphExecutor>(std::move(pricer), std::move(graphs),
                                         std::make_unique<FoldedTiming>());
}

std::vector<Group*> groups_at(const Simulation& s, const std::vector<std::size_t>& indices) {
  std::vector<Group*> groups;
  for (const std::size_t index : indices) groups.push_back(s.groups().at(index).get());
  return groups;
}

void add_lockstep_group(Simulation& s, const std::vector<std::size_t>& indices,
                        const std::shared_ptr<Program>& program, std::int32_t sync_interval,
                        const ExpandedConfig* expanded) {
  std::vector<Group*> members = groups_at(s, indices);
  if (members.empty()) throw std::invalid_argument("a lockstep needs members");
  std::unique_ptr<StepExecutor> executor = make_executor(members, expanded);
  s.add_lockstep_group(
      std::make_unique<LockstepGroup>(std::move(members), std::move(executor), sync_interval));
}

// One group, or all members of a lock-step group, talk over links of the network.
void share_links(Simulation& s, const std::vector<std::size_t>& indices,
                 std::vector<NetworkNodeId> places, std::vector<CollectiveSpec> collectives) {
  if (s.network() == nullptr) throw std::invalid_argument("shared links need the network");
  const std::vector<Group*> members = groups_at(s, indices);
  if (members.empty()) throw std::invalid_argument("shared links need groups");
  LockstepGroup* lockstep = members.front()->lockstep();
  if (lockstep == nullptr ? members.size() != 1 : !std::ranges::equal(lockstep->members(), members))
    throw std::invalid_argument(
        "links are shared by one group, or by all members of a lockstep in their order");
  auto executor = std::make_unique<ContendedExecutor>(
      StepPricer(costs_of(members)), ContendedLinks{std::move(places), std::move(collectives)});
  if (lockstep != nullptr) {
    lockstep->use_executor(std::move(executor));
  } else {
    members.front()->use_executor(std::move(executor));
  }
}

void add_group(Simulation& s, const GroupConfig& config, std::unique_ptr<Scheduler> scheduler,
               const std::shared_ptr<Program>& program, const ExpandedConfig* expanded,
               bool record_steps, bool record_schedule) {
  if (config.depth < 1) throw std::invalid_argument("depth must be at least 1");
  if (config.depth > scheduler->max_depth())
    throw std::invalid_argument("this scheduler has one batch in flight");
  if (config.role != Role::kBoth && scheduler->kv_connector() == nullptr)
    throw std::invalid_argument("this scheduler hands no KV over");
  if (scheduler->limits().usable_blocks < 1)
    throw std::invalid_argument("a pool needs at least 2 blocks");
  GroupCosts costs(program, config.drafter);
  if (config.drafter && config.drafter->first_expanded() != nullptr)
    costs.set_pass_timer(std::make_unique<ExpandedPasses>(*config.drafter));
  auto group = std::make_unique<Group>(config, std::move(scheduler), std::move(costs),
                                       s.sequences(config.role), s.log(config.role));
  if (config.offload || expanded != nullptr || program->num_stages() > 1)
    group->use_executor(make_executor({group.get()}, expanded));
  if (record_steps) group->steps = std::make_unique<StepRecorder>();
  if (record_schedule) group->schedule = std::make_unique<ScheduleRecorder>();
  s.add_group(std::move(group));
}

}  // namespace

void bind_content_hasher(nb::module_& m) {
  nb::class_<ContentHasher>(m, "ContentHasher",
                            "Names the content of full token blocks by dense ids from 1.")
      .def(nb::init<std::int32_t>(), "granularity"_a)
      .def(
          "add",
          [](ContentHasher& h, const nb::list& input_ids, const nb::object& output_ids) {
            add_tokens(h, input_ids);
            if (!output_ids.is_none()) add_tokens(h, nb::cast<nb::list>(output_ids));
            h.end();
          },
          "input_ids"_a, "output_ids"_a.none() = nb::none(),
          "The next request, as lists of token ids.")
      .def("skip", &ContentHasher::end, "The next request has no token ids.")
      .def("offsets", [](const ContentHasher& h) { return to_array(h.offsets()); })
      .def("keys", [](const ContentHasher& h) { return to_array(h.keys()); });
}

// Groups, and how they run together; by index, in the order of adding.
void bind_groups(nb::class_<Simulation>& simulation) {
  simulation
      .def(
          "add_group",
          [](Simulation& s, const GroupConfig& config, const SchedulerConfig& options,
             const std::shared_ptr<Program>& program, const ExpandedConfig* expanded,
             bool record_steps, bool record_schedule) {
            auto scheduler = make_scheduler(options, s.sequences(config.role), s.log(config.role));
            add_group(s, config, std::move(scheduler), program, expanded, record_steps,
                      record_schedule);
          },
          "config"_a, "scheduler"_a, "program"_a, "expanded"_a.none() = nb::none(),
          "record_steps"_a = false, "record_schedule"_a = false,
          "A group with one of schedulers(). With `expanded`, every rank's nodes run in the engine "
          "instead of the folded program.")
      .def(
          "add_python_group",
          [](Simulation& s, const GroupConfig& config, nb::object policy, const KvCacheConfig& kv,
             const std::shared_ptr<Program>& program, const ExpandedConfig* expanded,
             bool record_steps, bool record_schedule, const SpeculationConfig& speculation) {
            const Limits limits{kv.max_model_len, kv.block_size, kv.num_blocks - 1,
                                2 * speculation.tokens + speculation.lookahead};
            auto scheduler = std::make_unique<PythonScheduler>(std::move(policy), limits,
                                                               speculation, s.sequences(), s.log());
            add_group(s, config, std::move(scheduler), program, expanded, record_steps,
                      record_schedule);
          },
          "config"_a, "scheduler"_a, "kv"_a, "program"_a, "expanded"_a.none() = nb::none(),
          "record_steps"_a = false, "record_schedule"_a = false,
          "speculation"_a = SpeculationConfig{},
          "A group whose scheduler is a Python object (llmsim.scheduling.base.Scheduler).")
      .def("share_links", &share_links, "groups"_a, "places"_a, "collectives"_a,
           "All members of a lock-step group, or one group in stages, talk over links of the "
           "network: the node of every "
           "device "
           "(ranks of a stage first, then stages, then members), and what is between members or "
           "stages, with its bytes.")
      .def("add_lockstep_group", &add_lockstep_group, "groups"_a, "program"_a, "sync_interval"_a,
           "expanded"_a.none() = nb::none(),
           "Groups that were added before, by index, run in lock-step, all with this program.");
}

// What happened, as columns.
void bind_columns(nb::class_<Simulation>& simulation) {
  simulation.def("requests", &request_columns)
      .def("kv_transfers", &kv_transfer_columns)
      .def("network", &network_columns, "Per link of the shared network, as it numbers them.")
      .def("steps", &step_columns)
      .def(
          "series", [](const Simulation& s) { return series_columns(s.series()); },
          "Since it was last taken.")
      .def("take_series", [](Simulation& s) { return series_columns(s.take_series()); })
      .def("counters", &counter_columns)
      .def("accepted_at", &accepted_at, "Per group, how many drafts of each position held.")
      .def("blame", &blame_columns)
      .def("busy_time", &busy_time)
      .def("attention_reach", &attention_reach)
      .def("table_rows", &table_rows)
      .def("kv_tiers", &kv_tier_rows)
      .def("take_kv_tier_series",
           [](Simulation& s) { return kv_tier_series_columns(s.take_kv_tier_series()); })
      .def("activity", [](const Simulation& s,
                          std::size_t group) { return group_activity(*s.groups().at(group)); })
      .def("schedule", [](const Simulation& s, std::size_t group) {
        const auto& schedule = s.groups().at(group)->schedule;
        if (!schedule) throw std::invalid_argument("the schedule of this group was not recorded");
        return schedule_columns(*schedule);
      });
}

void bind_emissions(nb::module_& m) {
  nb::class_<TokenTimes>(m, "TokenTimes")
      .def(nb::init<const Simulation&>(), "simulation"_a, nb::keep_alive<1, 2>())
      .def("inter_token_latencies",
           [](const TokenTimes& e) {
             WeightedValues w = e.inter_token_latencies();
             return nb::make_tuple(to_array(std::move(w.value)), to_array(std::move(w.count)));
           })
      .def("inter_token_latencies_of", [](const TokenTimes& e, RequestId request) {
        return to_array(e.inter_token_latencies_of(request));
      });
}

void bind_simulation(nb::module_& m) {
  m.def("column_types", &column_types,
        "The numpy type of every column that the core fills, by table and column.");
  nb::exception<Circular>(m, "Circular", PyExc_RuntimeError);
  nb::exception<Stalled>(m, "Stalled", PyExc_RuntimeError);
  nb::exception<Violated>(m, "Violated", PyExc_RuntimeError);
  nb::class_<Simulation> simulation(m, "Simulation");
  bind_set_router(simulation);
  bind_set_admission(simulation);
  bind_groups(simulation);
  simulation
      .def(
          "__init__",
          [](Simulation* s, const In<std::int64_t>& arrival_ps,
             const In<std::int32_t>& input_tokens, const In<std::int32_t>& output_tokens,
             const In<std::int16_t>& model, const In<std::int32_t>& next_call,
             const In<std::int64_t>& tool_delay_ps, const In<std::int32_t>& priority,
             const In<std::int64_t>& key_offsets, const In<std::uint64_t>& keys,
             std::int32_t granularity, Ps series_interval_ps) {
            new (s) Simulation(
                Arrivals{to_vector(arrival_ps), to_vector(input_tokens), to_vector(priority),
                         to_vector(model), to_vector(next_call), to_vector(tool_delay_ps)},
                to_vector(output_tokens),
                ContentKeys{to_vector(key_offsets), to_vector(keys), granularity},
                series_interval_ps);
          },
          "arrival_ps"_a, "input_tokens"_a, "output_tokens"_a, "model"_a, "next_call"_a,
          "tool_delay_ps"_a, "priority"_a, "key_offsets"_a, "keys"_a, "granularity"_a,
          "series_interval_ps"_a)
      .def("set_kv_tiers", &Simulation::set_kv_tiers, "config"_a,
           "Pools of KV below the groups'; after them and the network.")
      .def("set_network", &Simulation::set_network, "config"_a,
           "The cluster's shared network; before the first run.")
      .def(
          "set_patience",
          [](Simulation& s, const In<std::int64_t>& timeout_ps, const In<std::int32_t>& tokens) {
            s.clients().set_patience(to_vector(timeout_ps), to_vector(tokens),
                                     s.sequences().size());
          },
          "timeout_ps"_a, "tokens"_a,
          "When clients give up: so long after the arrival (-1: never), or with so many tokens (0: "
          "never); either may "
          "be "
          "empty.")
      .def(
          "set_closed_loop",
          [](Simulation& s, std::int32_t clients, const In<std::int64_t>& think_ps) {
            s.clients().set_closed_loop(clients, to_vector(think_ps), s.sequences().size());
          },
          "clients"_a, "think_ps"_a,
          "So many clients ask in turn; think_ps: of each row after its answer, or empty.")
      .def("set_kv_transfers", &Simulation::set_kv_transfers, "config"_a,
           "Disaggregation; after all groups, the network and the decode side's router.")
      .def("run", &Simulation::run, "max_events"_a, "max_wall_ms"_a = Simulation::kAnyTime,
           nb::call_guard<nb::gil_scoped_release>(),
           "Handles up to max_events events, and no more after max_wall_ms; True when nothing is "
           "left.")
      .def("set_horizon", &Simulation::set_horizon, "horizon_ps"_a,
           "The run ends then, whatever is left to do.")
      .def_prop_ro("at_horizon", &Simulation::at_horizon)
      .def_prop_ro("now_ps", &Simulation::now)
      .def_prop_ro("num_finished", &Simulation::num_finished)
      .def_prop_ro("num_rejected", &Simulation::num_rejected)
      .def("check_every_step", &Simulation::check_every_step,
           "Recounts the blocks of every tier at every step.")
      .def("record_shares", &Simulation::record_shares,
           "From now on groups note for whom their devices worked.");
  bind_columns(simulation);
  bind_emissions(m);
}

}  // namespace llmsim

namespace llmsim {

std::function<void()> signal_check() {
  constexpr std::int64_t every_ms = 50;
  return [last = wall_ms()]() mutable {
    const std::int64_t now = wall_ms();
    if (now - last < every_ms) return;
    last = now;
    const nb::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  };
}

}  // namespace llmsim

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "llmsim's serving core: scheduler, KV cache, step programs and the event loop.";
  nb::module_ engine =
      m.def_submodule("engine", "The network and execution-graph engine (astra-sim/).");
  astra_sim::python::bind_engine(engine);
  llmsim::bind_build(m);
  llmsim::bind_content_hasher(m);
  llmsim::bind_program(m);
  llmsim::bind_configs(m);
  llmsim::bind_expanded(m);
  llmsim::bind_offload(m);
  llmsim::bind_step_graph(m);
  llmsim::bind_network(m);
  llmsim::bind_routing(m);
  llmsim::bind_policies(m);
  llmsim::bind_kv_tiers(m);
  llmsim::bind_simulation(m);
  m.def(
      "expect_abrupt_end", [] { nb::set_leak_warnings(false); },
      "The process ends without giving back what it holds: nothing of that is reported as lost.");
}
