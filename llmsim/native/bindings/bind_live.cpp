// Requests that are asked while a simulation runs.
#include "bindings/bindings.h"
#include "bindings/tables.h"
#include "results/tables.h"

using namespace nanobind::literals;

namespace llmsim {
namespace {

nb::dict live_event_columns(Simulation& simulation) {
  LiveEvents events = simulation.take_live_events();
  nb::dict columns;
  columns["row"] = to_array(std::move(events.request));
  columns["tokens"] = to_array(std::move(events.tokens));
  columns["status"] = to_array(std::move(events.status));
  columns["time_ps"] = to_array(std::move(events.time));
  return columns;
}

nb::list gauges_of_groups(const Simulation& simulation) {
  nb::list rows;
  for (const auto& group : simulation.groups()) {
    const Gauges gauges = group->gauges();
    const PoolState& pool = gauges.pool;
    rows.append(
        nb::make_tuple(gauges.running, gauges.waiting, pool.total - 1 - pool.free, pool.total - 1));
  }
  return rows;
}

nb::dict progress_of(const Simulation& simulation, const std::vector<RequestId>& rows) {
  simulation.statuses(rows);  // refuses rows that do not exist
  nb::dict columns;
  add_columns(columns, engine_progress(simulation, rows));
  return columns;
}

nb::dict engine_counters(const Simulation& simulation) {
  nb::dict columns;
  const auto add = [&](const char* name, auto value) {
    std::vector<std::int64_t> values;
    for (const auto& group : simulation.groups()) values.push_back(value(group->scheduler()));
    columns[name] = to_array(std::move(values));
  };
  using S = const Scheduler&;
  add("deferred", [](S s) -> std::int64_t { return s.num_deferred(); });
  add("first_queried_tokens", [](S s) { return s.counters().first_queried_tokens; });
  add("first_hit_tokens", [](S s) { return s.counters().first_hit_tokens; });
  add("external_queried_tokens", [](S s) { return s.counters().external_queried_tokens; });
  add("external_hit_tokens", [](S s) { return s.counters().external_hit_tokens; });
  add("prompt_cached_tokens", [](S s) { return s.counters().prompt_cached_tokens; });
  add("prompt_external_tokens", [](S s) { return s.counters().prompt_external_tokens; });
  return columns;
}

nb::list step_tokens(const Simulation& simulation) {
  nb::list rows;
  for (const auto& group : simulation.groups()) {
    nb::list steps;
    if (group->step_tokens)
      for (const auto& [tokens, count] : group->step_tokens->steps())
        steps.append(nb::make_tuple(tokens, count));
    rows.append(steps);
  }
  return rows;
}

}  // namespace

void bind_live_config(nb::module_& m) {
  nb::class_<LiveConfig>(m, "Live", "Requests come while the simulation runs.")
      .def(
          "__init__",
          [](LiveConfig* config, std::int32_t rows, std::int32_t granularity) {
            new (config) LiveConfig{rows, granularity};
          },
          "rows"_a, "granularity"_a,
          "rows: requests that are remembered at a time. granularity: tokens that a content key "
          "names.");
}

void bind_live(nb::class_<Simulation>& simulation) {
  simulation
      .def(
          "ask",
          [](Simulation& s, RequestId row, Ps arrival_ps, std::int32_t input_tokens,
             std::int32_t output_tokens, std::int16_t model, std::int32_t priority,
             std::int32_t adapter, const In<Key>& keys) {
            s.ask(row, {arrival_ps, input_tokens, output_tokens, priority, model, adapter,
                        to_vector(keys)});
          },
          "row"_a, "arrival_ps"_a, "input_tokens"_a, "output_tokens"_a, "model"_a, "priority"_a,
          "adapter"_a, "keys"_a,
          "A live request arrives at that time, which is not before the last event.")
      .def("leave", &Simulation::leave, "row"_a, "time_ps"_a,
           "The client of a live request goes, if it still waits then.")
      .def(
          "statuses",
          [](const Simulation& s, const std::vector<RequestId>& rows) {
            nb::list found;
            for (const std::uint8_t status : s.statuses(rows)) found.append(status);
            return found;
          },
          "rows"_a, "Where these requests stand (llmsim.core.Status).")
      .def("run_until", &Simulation::run_until, "time_ps"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Handles all events until then, and that time included.")
      .def_prop_ro("next_event_ps", &Simulation::next_event,
                   "The largest time there is, if there is none.")
      .def("take_live_events", &live_event_columns,
           "What clients have seen since the last call, in order of time: a request has so many "
           "tokens in all, or has ended with this status instead.")
      .def(
          "reusable_rows",
          [](Simulation& s) {
            nb::list rows;
            for (const RequestId row : s.reusable_rows()) rows.append(row);
            return rows;
          },
          "Rows of requests that have ended; they are forgotten, and may be asked again.")
      .def(
          "progress", &progress_of, "rows"_a,
          "The engine's times of these requests, their groups and counts, as the table of requests "
          "has them.")
      .def("engine_counters", &engine_counters,
           "Per group: requests that wait for something else than room, and totals of tokens that "
           "were looked up and found.")
      .def("step_tokens", &step_tokens,
           "Per group: pairs of the tokens of a step that gave answers, and how many steps had "
           "them.")
      .def("gauges", &gauges_of_groups,
           "Per group: requests that run, requests that wait, KV blocks in use, and all blocks.");
}

}  // namespace llmsim
