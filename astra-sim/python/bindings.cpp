// Errors, topologies and the engine itself for Python.
#include "python/bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "model/errors.h"
#include "model/topology_builder.h"
#include "python/arrays.h"

namespace astra_sim::python {

using engine::Engine;
using engine::NetworkKind;
using model::BytesPerSecond;
using model::Ps;
using model::Topology;
using model::TopologyBuilder;
using model::TopologyKind;

void bind_errors(nb::module_& module) {
    const nb::exception<model::EngineError> base(module, "EngineError");
    nb::exception<model::InvalidGraph>(module, "InvalidGraph", base);
    nb::exception<model::InvalidTopology>(module, "InvalidTopology", base);
    nb::exception<model::OutOfRange>(module, "OutOfRange", base);
    nb::exception<model::Stalled>(module, "Stalled", base);
    nb::exception<model::NotFoldable>(module, "NotFoldable", base);
}

namespace {

using DimensionTuple = std::tuple<TopologyKind, std::uint32_t, BytesPerSecond, Ps, BytesPerSecond>;

std::shared_ptr<Topology> grid(const std::vector<DimensionTuple>& tuples) {
    std::vector<model::Dimension> dimensions;
    for (const auto& [kind, size, bandwidth, latency, bisection] : tuples) {
        dimensions.push_back({kind, size, bandwidth, latency, bisection});
    }
    return std::const_pointer_cast<Topology>(Topology::grid(dimensions));
}

void check_ends(const Topology& topology, std::uint32_t from, std::uint32_t to) {
    if (from >= topology.num_devices() || to >= topology.num_devices()) {
        throw model::InvalidTopology("there is no route between devices outside of the topology");
    }
}

void bind_builder(nb::module_& module) {
    nb::class_<TopologyBuilder>(module, "TopologyBuilder",
                                "Devices 0 .. n - 1, then switches, joined by full-duplex links; build() seals it.")
        .def(nb::init<std::uint32_t, bool>(), nb::arg("num_devices"), nb::arg("devices_relay") = false)
        .def("add_switch", &TopologyBuilder::add_switch, nb::arg("bisection_bytes_per_s") = 0, nb::arg("spread") = 0,
             "Its number; bisection 0: does not block; spread 0: equal routes by hash, else destination / spread.")
        .def("add_link", &TopologyBuilder::add_link, nb::arg("a"), nb::arg("b"), nb::arg("bandwidth_bytes_per_s"),
             nb::arg("latency_ps"), "Number c of the cable: links 2c (a to b) and 2c + 1.")
        .def("add_route", &TopologyBuilder::add_route, nb::arg("vertices"))
        .def("build", [](const TopologyBuilder& self) { return std::const_pointer_cast<Topology>(self.build()); });
}

}  // namespace

void bind_topology(nb::module_& module) {
    nb::enum_<TopologyKind>(module, "TopologyKind")
        .value("RING", TopologyKind::ring)
        .value("SWITCH", TopologyKind::switched)
        .value("FULLY_CONNECTED", TopologyKind::fully_connected);
    const auto make = [](TopologyKind kind) {
        return [kind](std::uint32_t num_devices, BytesPerSecond bandwidth_bytes_per_s, Ps latency_ps) {
            return std::const_pointer_cast<Topology>(
                Topology::single(kind, num_devices, bandwidth_bytes_per_s, latency_ps));
        };
    };
    const auto arguments = [](auto define) {
        define(nb::arg("num_devices"), nb::arg("bandwidth_bytes_per_s"), nb::arg("latency_ps"));
    };
    nb::class_<Topology> topology(module, "Topology", "Devices and full-duplex links; latency is per link; immutable.");
    arguments([&](auto... names) { topology.def_static("ring", make(TopologyKind::ring), names...); });
    arguments([&](auto... names) { topology.def_static("switch", make(TopologyKind::switched), names...); });
    arguments(
        [&](auto... names) { topology.def_static("fully_connected", make(TopologyKind::fully_connected), names...); });
    topology
        .def_static("grid", &grid, nb::arg("dimensions"),
                    "From (kind, size, bytes/s, latency ps, bisection bytes/s or 0) per dimension, 0 fastest.")
        .def_prop_ro("num_devices", &Topology::num_devices)
        .def_prop_ro("num_links", [](const Topology& self) { return self.links().size(); })
        .def(
            "links",
            [](const Topology& self) {
                std::vector<std::pair<std::uint32_t, std::uint32_t>> ends;
                for (const model::Link& link : self.links()) ends.emplace_back(link.from, link.to);
                return ends;
            },
            "Ends (from, to) of every directed link, in the order of the counters; switches follow the devices.")
        .def(
            "link_speeds",
            [](const Topology& self) {
                std::vector<std::pair<BytesPerSecond, Ps>> speeds;
                for (const model::Link& link : self.links()) {
                    speeds.emplace_back(link.bandwidth_bytes_per_s, link.latency_ps);
                }
                return speeds;
            },
            "(bytes/s, latency ps) of every directed link.")
        .def(
            "route",
            [](const Topology& self, std::uint32_t from, std::uint32_t to) {
                check_ends(self, from, to);
                std::vector<model::LinkId> links;
                self.route(from, to, links);
                return links;
            },
            nb::arg("from_device"), nb::arg("to_device"), "Numbers of the links of a route, in order.")
        .def("hops", [](const Topology& self, std::uint32_t from, std::uint32_t to) {
            check_ends(self, from, to);
            return self.hops(from, to);
        });
    bind_builder(module);
    nb::enum_<NetworkKind>(module, "NetworkKind")
        .value("CONGESTION_UNAWARE", NetworkKind::congestion_unaware)
        .value("CONGESTION_AWARE", NetworkKind::congestion_aware)
        .value("FAIR_SHARE", NetworkKind::fair_share);
}

namespace {

std::optional<std::pair<model::GraphId, Ps>> as_pair(const std::optional<model::Completion>& completion) {
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

}  // namespace

void bind_runtime(nb::module_& module) {
    nb::class_<Engine>(
        module, "Engine",
        "Owns the clock and the links; graphs can be submitted at any time. Not for two threads at once.")
        .def(
            "__init__",
            [](Engine* self, std::shared_ptr<Topology> topology, NetworkKind network, Ps endpoint_delay_ps,
               std::int64_t rate_quantum_ppm, std::size_t quantum_above_flows) {
                new (self)
                    Engine(std::move(topology), {network, endpoint_delay_ps, {rate_quantum_ppm, quantum_above_flows}});
            },
            nb::arg("topology"), nb::arg("network") = NetworkKind::congestion_aware, nb::arg("endpoint_delay_ps") = 0,
            nb::arg("rate_quantum_ppm") = 0, nb::arg("quantum_above_flows") = 65'536,
            "Fair share: a rate quantum of 0 is exact, see fair_share_counters()['deferred'].")
        .def(
            "submit",
            [](Engine& self, std::shared_ptr<model::ExecutionGraph> graph, Ps at_ps,
               std::optional<Column<std::int64_t>> amounts) {
                return self.submit(std::move(graph), at_ps,
                                   amounts ? as_span(*amounts) : std::span<const std::int64_t>{});
            },
            nb::arg("graph"), nb::arg("at_ps"), nb::arg("amounts") = nb::none(),
            "Number of the submission; `amounts` (int64 per node: ps or bytes) replace the graph's for this run.")
        .def(
            "advance", [](Engine& self) { return as_pair(self.advance()); }, nb::call_guard<nb::gil_scoped_release>(),
            "(graph, end_ps) of the next completion, or None when no graph is in flight.")
        .def(
            "advance_until", [](Engine& self, Ps limit_ps) { return as_pair(self.advance_until(limit_ps)); },
            nb::arg("limit_ps"), nb::call_guard<nb::gil_scoped_release>())
        .def("run", &Engine::run, nb::call_guard<nb::gil_scoped_release>(), "Runs everything; the last end, ps.")
        .def(
            "times",
            [](const Engine& self, model::GraphId graph) {
                const model::NodeTimes times = self.times(graph);
                return std::pair(as_array(std::vector<Ps>(times.start_ps.begin(), times.start_ps.end())),
                                 as_array(std::vector<Ps>(times.end_ps.begin(), times.end_ps.end())));
            },
            nb::arg("graph"), "(start_ps, end_ps), one int64 per node, of a finished graph.")
        .def("release", &Engine::release, nb::arg("graph"))
        .def("cancel", &Engine::cancel, nb::arg("graph"), "Drops a graph or transfer in flight.")
        .def("transfer", &Engine::transfer, nb::arg("from_device"), nb::arg("to_device"), nb::arg("num_bytes"),
             nb::arg("at_ps"), "One message without a graph; reported by advance under the number returned.")
        .def("idle_until", &Engine::idle_until, nb::arg("at_ps"), "Moves the clock where nothing happens until then.")
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
            "flows in motion; solves, flows they visited, and re-solves that the quantum deferred (0: exact).")
        .def("next_event_ps", &Engine::next_event_ps)
        .def_prop_ro("now_ps", &Engine::now)
        .def_prop_ro("num_in_flight", &Engine::num_in_flight)
        .def_prop_ro("num_events", &Engine::num_events)
        .def("link_counters", &link_counters,
             "Columns by link, now: bytes, messages, busy_ps, queue_ps, peak_queue_ps, peak_messages.")
        .def("device_counters", &device_counters, "busy_ps[device, stream] and class_ps[device, power class].");
}

void bind_engine(nb::module_& module) {
    module.doc() = "Execution graphs on a simulated network: topologies, collectives, streams, contention.";
    bind_errors(module);
    bind_topology(module);
    bind_graph(module);
    bind_runtime(module);
    bind_isolated(module);
    bind_folded(module);
}

}  // namespace astra_sim::python
