// Errors, topologies and the engine itself for Python.
#include "python/bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/loop/engine.h"
#include "model/base/errors.h"
#include "python/arrays.h"

namespace astra_sim::python {

using engine::Engine;
using engine::NetworkKind;
using model::Ps;
using model::Topology;

void bind_errors(nb::module_& module) {
  const nb::exception<model::EngineError> base(module, "EngineError");
  nb::exception<model::InvalidGraph>(module, "InvalidGraph", base);
  nb::exception<model::InvalidTopology>(module, "InvalidTopology", base);
  nb::exception<model::OutOfRange>(module, "OutOfRange", base);
  nb::exception<model::OutOfMemory>(module, "OutOfMemory", base);
  nb::exception<model::Stalled>(module, "Stalled", base);
  nb::exception<model::NotFoldable>(module, "NotFoldable", base);
}

namespace {

std::optional<std::pair<model::GraphId, Ps>> as_pair(
    const std::optional<model::Completion>& completion) {
  if (!completion) return std::nullopt;
  return std::pair(completion->graph, completion->end_ps);
}

nb::dict link_counters(const Engine& self) {
  std::vector<std::int64_t> bytes, messages, busy_ps, queue_ps, peak_queue_ps, peak_messages;
  for (const model::LinkCounters& link : self.link_counters()) {
    bytes.push_back(link.bytes);
    messages.push_back(link.messages);
    busy_ps.push_back(link.busy_ps);
    queue_ps.push_back(link.queue_ps);
    peak_queue_ps.push_back(link.peak_queue_ps);
    peak_messages.push_back(link.peak_messages);
  }
  nb::dict out;
  out["bytes"] = as_array(std::move(bytes));
  out["messages"] = as_array(std::move(messages));
  out["busy_ps"] = as_array(std::move(busy_ps));
  out["queue_ps"] = as_array(std::move(queue_ps));
  out["peak_queue_ps"] = as_array(std::move(peak_queue_ps));
  out["peak_messages"] = as_array(std::move(peak_messages));
  return out;
}

nb::dict tier_counters(const Engine& self) {
  std::vector<std::int64_t> loads, stores, waiting_ps, peak_waiting, used_bytes, peak_used_bytes;
  for (const model::TierCounters& tier : self.tier_counters()) {
    loads.push_back(tier.loads);
    stores.push_back(tier.stores);
    waiting_ps.push_back(tier.waiting_ps);
    peak_waiting.push_back(tier.peak_waiting);
    used_bytes.push_back(tier.used_bytes);
    peak_used_bytes.push_back(tier.peak_used_bytes);
  }
  nb::dict out;
  out["loads"] = as_array(std::move(loads));
  out["stores"] = as_array(std::move(stores));
  out["waiting_ps"] = as_array(std::move(waiting_ps));
  out["peak_waiting"] = as_array(std::move(peak_waiting));
  out["used_bytes"] = as_array(std::move(used_bytes));
  out["peak_used_bytes"] = as_array(std::move(peak_used_bytes));
  return out;
}

nb::dict energy_nj(const Engine& self, const std::vector<std::int64_t>& class_mw,
                   std::int64_t idle_mw, std::vector<std::int64_t> link_fj_per_byte) {
  model::EnergyRates rates;
  if (class_mw.size() > rates.class_mw.size()) {
    throw model::InvalidGraph("there are " + std::to_string(class_mw.size()) + " powers for " +
                              std::to_string(rates.class_mw.size()) + " power classes");
  }
  std::copy(class_mw.begin(), class_mw.end(), rates.class_mw.begin());
  rates.idle_mw = idle_mw;
  rates.link_fj_per_byte = std::move(link_fj_per_byte);
  model::Energy energy = self.energy(rates);
  nb::dict out;
  out["class_nj"] =
      as_array(std::vector<std::int64_t>(energy.class_nj.begin(), energy.class_nj.end()));
  out["idle_nj"] = energy.idle_nj;
  out["link_nj"] = as_array(std::move(energy.link_nj));
  out["total_nj"] = energy.total_nj;
  return out;
}

nb::dict device_counters(const Engine& self) {
  std::vector<std::int64_t> streams, classes;
  for (const model::DeviceCounters& device : self.device_counters()) {
    streams.insert(streams.end(), device.busy_ps.begin(), device.busy_ps.end());
    classes.insert(classes.end(), device.class_ps.begin(), device.class_ps.end());
  }
  nb::dict out;
  out["busy_ps"] = as_array(std::move(streams), model::kNumStreams);
  out["class_ps"] = as_array(std::move(classes), model::kNumPowerClasses);
  return out;
}

// What is submitted, and how time goes on.
void bind_graphs_in_flight(nb::class_<Engine>& engine) {
  engine
      .def(
          "__init__",
          [](Engine* self, std::shared_ptr<Topology> topology, NetworkKind network,
             Ps endpoint_delay_ps, std::int64_t rate_quantum_ppm, std::size_t quantum_above_flows,
             std::shared_ptr<model::MemorySystem> memory) {
            new (self) Engine(std::move(topology), {network,
                                                    endpoint_delay_ps,
                                                    {rate_quantum_ppm, quantum_above_flows},
                                                    std::move(memory)});
          },
          nb::arg("topology"), nb::arg("network") = NetworkKind::kCongestionAware,
          nb::arg("endpoint_delay_ps") = 0, nb::arg("rate_quantum_ppm") = 0,
          nb::arg("quantum_above_flows") = 65'536, nb::arg("memory") = nb::none(),
          "Fair share: a rate quantum of 0 is exact, see fair_share_counters()['deferred'].")
      .def(
          "submit",
          [](Engine& self, std::shared_ptr<model::ExecutionGraph> graph, Ps at_ps,
             std::optional<Column<std::int64_t>> amounts) {
            return self.submit(std::move(graph), at_ps,
                               amounts ? as_span(*amounts) : std::span<const std::int64_t>{});
          },
          nb::arg("graph"), nb::arg("at_ps"), nb::arg("amounts") = nb::none(),
          "Number of the submission; `amounts` (int64 per node: ps or bytes) replace the graph's "
          "for this run.")
      .def(
          "advance", [](Engine& self) { return as_pair(self.advance()); },
          nb::call_guard<nb::gil_scoped_release>(),
          "(graph, end_ps) of the next completion, or None when no graph is in flight.")
      .def(
          "advance_until",
          [](Engine& self, Ps limit_ps) { return as_pair(self.advance_until(limit_ps)); },
          nb::arg("limit_ps"), nb::call_guard<nb::gil_scoped_release>())
      .def("run", &Engine::run, nb::call_guard<nb::gil_scoped_release>(),
           "Runs everything; the last end, ps.")
      .def(
          "times",
          [](const Engine& self, model::GraphId graph) {
            const model::NodeTimes times = self.times(graph);
            return std::pair(
                as_array(std::vector<Ps>(times.start_ps.begin(), times.start_ps.end())),
                as_array(std::vector<Ps>(times.end_ps.begin(), times.end_ps.end())));
          },
          nb::arg("graph"), "(start_ps, end_ps), one int64 per node, of a finished graph.")
      .def("release", &Engine::release, nb::arg("graph"))
      .def("idle_until", &Engine::idle_until, nb::arg("at_ps"),
           "Moves the clock where nothing happens until then.")
      .def("next_event_ps", &Engine::next_event_ps)
      .def_prop_ro("now_ps", &Engine::now)
      .def_prop_ro("num_in_flight", &Engine::num_in_flight)
      .def_prop_ro("num_events", &Engine::num_events);
}

// Messages and accesses to memory tiers without a graph.
void bind_transfers(nb::class_<Engine>& engine) {
  engine.def("cancel", &Engine::cancel, nb::arg("graph"), "Drops a graph or transfer in flight.")
      .def("transfer", &Engine::transfer, nb::arg("from_device"), nb::arg("to_device"),
           nb::arg("num_bytes"), nb::arg("at_ps"),
           "One message without a graph; reported by advance under the number returned.")
      .def("access", &Engine::access, nb::arg("tier"), nb::arg("device"), nb::arg("num_bytes"),
           nb::arg("store"), nb::arg("at_ps"),
           "A load from a memory tier, or a store to it, without a graph.")
      .def("reserve", &Engine::reserve, nb::arg("tier"), nb::arg("device"), nb::arg("num_bytes"))
      .def("free", &Engine::free, nb::arg("tier"), nb::arg("device"), nb::arg("num_bytes"));
}

// What has happened so far.
void bind_counters(nb::class_<Engine>& engine) {
  engine
      .def(
          "tier_counters", &tier_counters,
          "Columns by place: loads, stores, waiting_ps, peak_waiting, used_bytes, peak_used_bytes.")
      .def("energy_nj", &energy_nj, nb::arg("class_mw"), nb::arg("idle_mw") = 0,
           nb::arg("link_fj_per_byte") = std::vector<std::int64_t>{},
           "Energy up to now_ps: dict of class_nj, idle_nj, link_nj, total_nj.")
      .def(
          "fair_share_counters",
          [](const Engine& self) {
            const engine::FairShareCounters count = self.fair_share_counters();
            nb::dict out;
            out["flows"] = count.flows;
            out["solves"] = count.solves;
            out["visits"] = count.visits;
            out["deferred"] = count.deferred;
            return out;
          },
          "flows in motion; solves, flows they visited, and re-solves that the quantum deferred "
          "(0: exact).")
      .def(
          "link_counters", &link_counters,
          "Columns by link, now: bytes, messages, busy_ps, queue_ps, peak_queue_ps, peak_messages.")
      .def("device_counters", &device_counters,
           "busy_ps[device, stream] and class_ps[device, power class].");
}

}  // namespace

void bind_runtime(nb::module_& module) {
  nb::class_<Engine> engine(module, "Engine",
                            "Owns the clock and the links; graphs can be submitted at any time. "
                            "Not for two threads at once.");
  bind_graphs_in_flight(engine);
  bind_transfers(engine);
  bind_counters(engine);
}

void bind_engine(nb::module_& module) {
  module.doc() =
      "Execution graphs on a simulated network: topologies, collectives, streams, contention.";
  bind_errors(module);
  bind_topology(module);
  bind_memory(module);
  bind_graph(module);
  bind_runtime(module);
  bind_isolated(module);
  bind_folded(module);
}

}  // namespace astra_sim::python
