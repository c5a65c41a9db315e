// Memory tiers for Python.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/memory/memory.h"
#include "python/bindings.h"

namespace astra_sim::python {

namespace nb = nanobind;
using model::MemorySystem;
using model::Tier;

void bind_memory(nb::module_& module) {
  nb::enum_<model::TierSharing>(module, "TierSharing")
      .value("NETWORK", model::TierSharing::kNetwork)
      .value("FIFO", model::TierSharing::kFifo);
  module.def("one_per_device", &model::one_per_device, nb::arg("num_devices"));
  module.def("one_per_node", &model::one_per_node, nb::arg("num_devices"),
             nb::arg("devices_per_node"));
  module.def("one_for_all", &model::one_for_all, nb::arg("num_devices"));
  nb::class_<Tier>(
      module, "Tier",
      "A kind of memory; see model/memory/memory.h. 4294967295 in instance_of: out of reach.")
      .def(
          "__init__",
          [](Tier* self, std::string name, std::vector<std::uint32_t> instance_of,
             model::BytesPerSecond read_bytes_per_s, model::BytesPerSecond write_bytes_per_s,
             model::Ps latency_ps, model::Bytes capacity_bytes, std::uint32_t channels,
             model::TierSharing sharing, std::vector<std::uint32_t> port_of,
             model::BytesPerSecond port_bytes_per_s, std::vector<model::DeviceId> held_by) {
            new (self) Tier{std::move(name),  capacity_bytes,         latency_ps,
                            read_bytes_per_s, write_bytes_per_s,      channels,
                            sharing,          std::move(instance_of), std::move(port_of),
                            port_bytes_per_s, std::move(held_by)};
          },
          nb::arg("name"), nb::arg("instance_of"), nb::arg("read_bytes_per_s"),
          nb::arg("write_bytes_per_s") = 0, nb::arg("latency_ps") = 0,
          nb::arg("capacity_bytes") = 0, nb::arg("channels") = 1,
          nb::arg("sharing") = model::TierSharing::kNetwork,
          nb::arg("port_of") = std::vector<std::uint32_t>{}, nb::arg("port_bytes_per_s") = 0,
          nb::arg("held_by") = std::vector<model::DeviceId>{});
  nb::class_<MemorySystem>(module, "MemorySystem", "The tiers of one topology.")
      .def_static(
          "make",
          [](std::shared_ptr<model::Topology> topology, std::vector<Tier> tiers) {
            return std::const_pointer_cast<MemorySystem>(
                MemorySystem::make(std::move(topology), std::move(tiers)));
          },
          nb::arg("topology"), nb::arg("tiers"))
      .def_prop_ro(
          "num_links", [](const MemorySystem& self) { return self.links().size(); },
          "Its channels and ports follow the topology's links in the counters.")
      .def("place", &MemorySystem::place, nb::arg("tier"), nb::arg("instance"),
           "Row of the tier counters.");
}

}  // namespace astra_sim::python
