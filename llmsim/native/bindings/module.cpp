// The Python face of the serving core: objects and arrays in, arrays out; every decision stays in
// the core.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/wall_clock.h"
#include "bindings/bindings.h"
#include "python/bindings.h"
#include "request/content_hasher.h"
#include "results/token_times.h"
#include "scheduler/limits/out_of_states.h"

using namespace nanobind::literals;

namespace llmsim {
namespace {

void add_tokens(ContentHasher& hasher, const nb::list& ids) {
  for (const nb::handle id : ids) hasher.token(nb::cast<std::int64_t>(id));
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
      .def("keys", [](const ContentHasher& h) { return to_array(h.keys()); })
      .def(
          "take_keys", [](ContentHasher& h) { return to_array(h.take_keys()); },
          "The keys of all requests since the last call, which are not kept.");
}

// What happened, as columns.
std::vector<nb::dict> reconfiguration_rows(const Simulation& s) {
  std::vector<nb::dict> rows;
  if (s.layout_switch() == nullptr) return rows;
  for (const Reconfiguration& one : s.layout_switch()->reconfigurations()) {
    nb::dict& row = rows.emplace_back();
    row["from"] = one.from;
    row["to"] = one.to;
    row["trigger"] = one.trigger;
    row["asked_ps"] = one.asked;
    row["drained_ps"] = one.drained;
    row["weights_ps"] = one.weights;
    row["kv_ps"] = one.kv;
    row["process_ps"] = one.process;
    row["opened_ps"] = one.opened;
    row["requests"] = one.requests;
    row["held_requests"] = one.held;
    row["kv_tokens"] = one.kv_tokens;
    row["kv_bytes"] = one.kv_bytes;
    row["first_group"] = one.first_group;
    nb::list moves;
    for (const auto& [ends, bytes] : one.kv_sent)
      moves.append(nb::make_tuple(ends.first, ends.second, bytes));
    row["kv_moves"] = moves;
  }
  return rows;
}

void bind_columns(nb::class_<Simulation>& simulation) {
  simulation.def("requests", &request_columns)
      .def("kv_transfers", &kv_transfer_columns)
      .def("network", &network_columns, "Per link of the shared network, as it numbers them.")
      .def("transfers", &transfer_columns, "Every transfer of the network, where recorded.")
      .def("node_spans", &node_span_columns,
           "When nodes of steps ran whose times a step alone does not tell: what crosses shared "
           "links, copies, and where members and stages began, where transfers are recorded.")
      .def("steps", &step_columns)
      .def(
          "series", [](const Simulation& s) { return series_columns(s.series()); },
          "Since it was last taken.")
      .def("take_series", [](Simulation& s) { return series_columns(s.take_series()); })
      .def("counters", &counter_columns)
      .def("accepted_at", &accepted_at, "Per group, how many drafts of each position held.")
      .def("drafts", &draft_columns,
           "Per request, what became of its drafts; None where no group speculates.")
      .def("blame", &blame_columns)
      .def("first_token_blame", &first_token_blame_columns,
           "The parts of the time to the first token.")
      .def("busy_time", &busy_time)
      .def("attention_reach", &attention_reach)
      .def("reconfigurations", &reconfiguration_rows,
           "One mapping per switch of layouts, in order of time.")
      .def("table_rows", &table_rows)
      .def("kv_tiers", &kv_tier_rows)
      .def("take_kv_tier_series",
           [](Simulation& s) { return kv_tier_series_columns(s.take_kv_tier_series()); })
      .def("take_link_series",
           [](Simulation& s) { return link_series_columns(s.take_link_series()); })
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
  const nb::exception<Stalled> stalled(m, "Stalled", PyExc_RuntimeError);
  const nb::exception<OutOfKvMemory> out_of_memory(m, "OutOfKvMemory", stalled.ptr());
  nb::exception<OutOfStates>(m, "OutOfStates", out_of_memory.ptr());
  nb::exception<EngineFails>(m, "EngineFails", stalled.ptr());
  nb::exception<Violated>(m, "Violated", PyExc_RuntimeError);
  nb::class_<Simulation> simulation(m, "Simulation");
  simulation
      .def(nb::init<const SimulationConfig&>(), "config"_a,
           "Builds everything that the configuration says; ValueError names the field that is "
           "wrong.")
      .def("run", &Simulation::run, "max_events"_a, "max_wall_ms"_a = Simulation::kAnyTime,
           nb::call_guard<nb::gil_scoped_release>(),
           "Handles up to max_events events, and no more after max_wall_ms; True when nothing is "
           "left.")
      .def("end_series", &Simulation::end_series,
           "Samples the series at the last event of a run that goes no further.")
      .def_prop_ro("at_horizon", &Simulation::at_horizon)
      .def_prop_ro("now_ps", &Simulation::now)
      .def_prop_ro("num_finished", &Simulation::num_finished)
      .def_prop_ro("num_rejected", &Simulation::num_rejected);
  bind_columns(simulation);
  bind_live(simulation);
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
  llmsim::bind_afd(m);
  llmsim::bind_step_graph(m);
  llmsim::bind_network(m);
  llmsim::bind_routing(m);
  llmsim::bind_policies(m);
  llmsim::bind_kv_tiers(m);
  llmsim::bind_kv_offloading(m);
  llmsim::bind_pools_below(m);
  llmsim::bind_engine_turns(m);
  llmsim::bind_membership(m);
  llmsim::bind_live_config(m);
  llmsim::bind_simulation_config(m);
  llmsim::bind_simulation(m);
  m.def(
      "expect_abrupt_end", [] { nb::set_leak_warnings(false); },
      "The process ends without giving back what it holds: nothing of that is reported as lost.");
}
