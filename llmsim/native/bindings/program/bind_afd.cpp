// Attention-FFN disaggregation, for Python.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "afd/afd_config.h"
#include "bindings/bindings.h"

namespace llmsim {

using namespace nanobind::literals;

void bind_afd(nb::module_& m) {
  nb::class_<PortBytes>(m, "PortBytes", "Bytes over one device's port, by a feature.")
      .def(
          "__init__",
          [](PortBytes* port, Feature feature, std::int64_t bytes, std::int64_t units) {
            if (bytes < 0 || units < 1) throw std::invalid_argument("bytes of so many units");
            new (port) PortBytes{feature, bytes, units};
          },
          "feature"_a, "bytes"_a, "units"_a = 1, "bytes: of every `units`, rounded up.");
  nb::class_<M2nHop>(m, "M2nHop", "What one kind of layer moves between attention and FFN.")
      .def(
          "__init__",
          [](M2nHop* hop, PortBytes attention_out, PortBytes ffn_in, PortBytes ffn_out,
             PortBytes attention_in) {
            new (hop) M2nHop{attention_out, ffn_in, ffn_out, attention_in};
          },
          "attention_out"_a, "ffn_in"_a, "ffn_out"_a, "attention_in"_a);
  nb::class_<AfdLayer>(m, "AfdLayer", "One layer: operators of both programs, by index.")
      .def(
          "__init__",
          [](AfdLayer* layer, std::vector<std::int32_t> attention, std::vector<std::int32_t> ffn,
             std::int32_t hop) { new (layer) AfdLayer{std::move(attention), std::move(ffn), hop}; },
          "attention"_a, "ffn"_a, "hop"_a = 0);
  nb::class_<AfdBand>(m, "AfdBand", "Layers that follow each other, several times.")
      .def(
          "__init__",
          [](AfdBand* band, std::int32_t stage, std::int32_t repeat, std::vector<AfdLayer> layers) {
            new (band) AfdBand{stage, repeat, std::move(layers)};
          },
          "stage"_a, "repeat"_a, "layers"_a);
  nb::class_<AfdConfig>(m, "AfdConfig", "How attention and FFN members run a step together.")
      .def(
          "__init__",
          [](AfdConfig* config, std::int32_t attention_members, std::int32_t lanes,
             std::int32_t columns, std::int32_t sharing, std::vector<AfdBand> bands,
             std::vector<M2nHop> hops, Ps latency_ps, std::int64_t attention_bytes_per_s,
             std::int64_t ffn_bytes_per_s) {
            new (config)
                AfdConfig{attention_members, lanes,           columns,    sharing,
                          std::move(bands),  std::move(hops), latency_ps, attention_bytes_per_s,
                          ffn_bytes_per_s};
          },
          "attention_members"_a, "lanes"_a, "columns"_a, "sharing"_a, "bands"_a, "hops"_a,
          "latency_ps"_a, "attention_bytes_per_s"_a, "ffn_bytes_per_s"_a,
          "columns: sets of an FFN member's ranks that get rows of their own. sharing: of these, "
          "those that exchange rows. Rates are of one device's port.")
      .def("least_m2n_ps", &AfdConfig::least_m2n,
           "Least time that rows of a step are on their way between attention and FFN, ps.");
  using Flow = std::tuple<NetworkNodeId, NetworkNodeId, std::vector<NetworkLinkId>>;
  nb::class_<SharedPort>(m, "SharedPort", "A port of a unit that other transfers use, too.")
      .def(
          "__init__",
          [](SharedPort* port, std::int32_t member, std::int32_t stage, bool out,
             const std::vector<Flow>& flows) {
            std::vector<PartialFlow> given;
            for (const auto& [from, to, links] : flows) given.push_back({{from, to}, links});
            new (port) SharedPort{member, stage, out, std::move(given)};
          },
          "member"_a, "stage"_a, "out"_a, "flows"_a,
          "member: of the lock-step group. flows: (from, to, links) of each of its devices, with "
          "the numbers of the network's places and links.");
}

}  // namespace llmsim
