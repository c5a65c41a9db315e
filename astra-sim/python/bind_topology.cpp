// Topologies for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/network/network.h"
#include "model/base/errors.h"
#include "model/topology/topology_builder.h"
#include "python/bindings.h"

namespace astra_sim::python {

namespace nb = nanobind;
using engine::NetworkKind;
using model::BytesPerSecond;
using model::Ps;
using model::Topology;
using model::TopologyBuilder;
using model::TopologyKind;

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

void bind_topology_builder(nb::module_& module) {
  nb::class_<TopologyBuilder>(
      module, "TopologyBuilder",
      "Devices 0 .. n - 1, then switches, joined by full-duplex links; build() seals it.")
      .def(nb::init<std::uint32_t, bool>(), nb::arg("num_devices"),
           nb::arg("devices_relay") = false)
      .def("add_switch", &TopologyBuilder::add_switch, nb::arg("bisection_bytes_per_s") = 0,
           nb::arg("spread") = 0,
           "Its number; bisection 0: does not block; spread 0: equal routes by hash, else "
           "destination / spread.")
      .def("add_link", &TopologyBuilder::add_link, nb::arg("a"), nb::arg("b"),
           nb::arg("bandwidth_bytes_per_s"), nb::arg("latency_ps"),
           "Number c of the cable: links 2c (a to b) and 2c + 1.")
      .def("add_route", &TopologyBuilder::add_route, nb::arg("vertices"))
      .def("build", [](const TopologyBuilder& self) {
        return std::const_pointer_cast<Topology>(self.build());
      });
}

}  // namespace

namespace {

std::vector<std::pair<std::uint32_t, std::uint32_t>> link_ends(const Topology& topology) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ends;
  for (const model::Link& link : topology.links()) ends.emplace_back(link.from, link.to);
  return ends;
}

std::vector<std::pair<BytesPerSecond, Ps>> link_speeds(const Topology& topology) {
  std::vector<std::pair<BytesPerSecond, Ps>> speeds;
  for (const model::Link& link : topology.links()) {
    speeds.emplace_back(link.bandwidth_bytes_per_s, link.latency_ps);
  }
  return speeds;
}

}  // namespace

void bind_topology(nb::module_& module) {
  nb::enum_<TopologyKind>(module, "TopologyKind")
      .value("RING", TopologyKind::kRing)
      .value("SWITCH", TopologyKind::kSwitched)
      .value("FULLY_CONNECTED", TopologyKind::kFullyConnected);
  const auto make = [](TopologyKind kind) {
    return [kind](std::uint32_t num_devices, BytesPerSecond bandwidth_bytes_per_s, Ps latency_ps) {
      return std::const_pointer_cast<Topology>(
          Topology::single(kind, num_devices, bandwidth_bytes_per_s, latency_ps));
    };
  };
  const auto arguments = [](auto define) {
    define(nb::arg("num_devices"), nb::arg("bandwidth_bytes_per_s"), nb::arg("latency_ps"));
  };
  nb::class_<Topology> topology(module, "Topology",
                                "Devices and full-duplex links; latency is per link; immutable.");
  arguments(
      [&](auto... names) { topology.def_static("ring", make(TopologyKind::kRing), names...); });
  arguments([&](auto... names) {
    topology.def_static("switch", make(TopologyKind::kSwitched), names...);
  });
  arguments([&](auto... names) {
    topology.def_static("fully_connected", make(TopologyKind::kFullyConnected), names...);
  });
  topology
      .def_static("grid", &grid, nb::arg("dimensions"),
                  "From (kind, size, bytes/s, latency ps, bisection bytes/s or 0) per dimension, 0 "
                  "fastest.")
      .def_prop_ro("num_devices", &Topology::num_devices)
      .def_prop_ro("num_links", [](const Topology& self) { return self.links().size(); })
      .def("links", &link_ends,
           "Ends (from, to) of every directed link, in the order of the counters; switches follow "
           "the devices.")
      .def("link_speeds", &link_speeds, "(bytes/s, latency ps) of every directed link.")
      .def(
          "route",
          [](const Topology& self, std::uint32_t from, std::uint32_t to) {
            check_ends(self, from, to);
            std::vector<model::LinkId> links;
            self.route(from, to, links);
            return links;
          },
          nb::arg("from_device"), nb::arg("to_device"),
          "Numbers of the links of a route, in order.")
      .def("hops", [](const Topology& self, std::uint32_t from, std::uint32_t to) {
        check_ends(self, from, to);
        return self.hops(from, to);
      });
  bind_topology_builder(module);
  nb::enum_<NetworkKind>(module, "NetworkKind")
      .value("CONGESTION_UNAWARE", NetworkKind::kCongestionUnaware)
      .value("CONGESTION_AWARE", NetworkKind::kCongestionAware)
      .value("FAIR_SHARE", NetworkKind::kFairShare);
}

}  // namespace astra_sim::python
