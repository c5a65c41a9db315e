// Weights and operators outside of a group's devices, for Python.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "offload/offload_config.h"

namespace llmsim {

using namespace nanobind::literals;

namespace {

void bind_weights(nb::module_& m) {
  nb::class_<CopySource>(m, "CopySource", "A memory that weights are copied from.")
      .def(
          "__init__",
          [](CopySource* source, Ps latency_ps, std::int64_t rate_q16, NetworkNodeId place,
             Ps before_ps) {
            if (latency_ps < 0 || rate_q16 < 1 || before_ps < 0)
              throw std::invalid_argument("a source's rate or latency");
            new (source) CopySource{latency_ps, rate_q16, place, before_ps};
          },
          "latency_ps"_a, "rate_q16"_a, "place"_a = -1, "before_ps"_a = 0,
          "rate_q16: 2^-16 bytes/s to each rank when nobody else copies; place: on the network; "
          "before_ps: latency "
          "that "
          "the network does not charge.");
  nb::class_<WeightStreaming>(m, "WeightStreaming",
                              "Weights that steps copy in, by operator of the program; bytes.")
      .def(nb::init<>())
      .def_rw("sources", &WeightStreaming::sources)
      .def_rw("ahead", &WeightStreaming::ahead)
      .def_rw("ahead_from", &WeightStreaming::ahead_from)
      .def_rw("by_batch", &WeightStreaming::by_batch)
      .def_prop_rw(
          "sampled", [](const WeightStreaming& w) { return w.sampled.size(); },
          [](WeightStreaming& w, const nb::list& sampled) {
            w.sampled.clear();
            for (const nb::handle one : sampled)
              w.sampled.push_back(one.is_none() ? nullptr
                                                : nb::cast<std::shared_ptr<SampledCostTable>>(one));
          },
          nb::for_setter(nb::sig("def sampled(self, sampled: list) -> None")))
      .def_rw("by_batch_from", &WeightStreaming::by_batch_from)
      .def_rw("demand", &WeightStreaming::demand)
      .def_rw("buffers", &WeightStreaming::buffers);
}

void bind_devices(nb::module_& m) {
  nb::enum_<Interleaving>(m, "Interleaving")
      .value("NEVER", Interleaving::kNever)
      .value("WHEN_SHORTER", Interleaving::kWhenShorter)
      .value("ALWAYS", Interleaving::kAlways);
  nb::class_<PimConfig>(m, "PimConfig", "Memory in which decodes attend.")
      .def(nb::init<>())
      .def_rw("context", &PimConfig::context)
      .def_rw("ps", &PimConfig::ps)
      .def_rw("sets", &PimConfig::sets)
      .def_rw("latency_ps", &PimConfig::latency)
      .def_rw("bytes_per_s", &PimConfig::bytes_per_s)
      .def_rw("query_bytes", &PimConfig::query_bytes)
      .def_rw("output_bytes", &PimConfig::output_bytes)
      .def_rw("kv_bytes", &PimConfig::kv_bytes)
      .def_rw("concurrent", &PimConfig::concurrent)
      .def_rw("places", &PimConfig::places);
  nb::class_<HostOperators>(m, "HostOperators",
                            "Operators of the program that the node's processors run.")
      .def(nb::init<>())
      .def_rw("runs", &HostOperators::runs)
      .def_rw("input_bytes", &HostOperators::input_bytes)
      .def_rw("output_bytes", &HostOperators::output_bytes)
      .def_rw("latency_ps", &HostOperators::latency)
      .def_rw("rate_q16", &HostOperators::rate_q16)
      .def_rw("place", &HostOperators::place)
      .def_rw("before_ps", &HostOperators::before);
}

}  // namespace

void bind_offload(nb::module_& m) {
  bind_weights(m);
  bind_devices(m);
  nb::class_<OffloadConfig>(m, "OffloadConfig", "What a group keeps elsewhere.")
      .def(nb::init<>())
      .def("__copy__", [](const OffloadConfig& c) { return c; })
      .def_rw("weights", &OffloadConfig::weights)
      .def_prop_rw(
          "pim", [](const OffloadConfig& c) { return c.pim; },
          [](OffloadConfig& c, const PimConfig& pim) {
            c.pim = pim;
            c.has_pim = true;
          })
      .def_ro("has_pim", &OffloadConfig::has_pim)
      .def_rw("host", &OffloadConfig::host)
      .def_rw("interleaving", &OffloadConfig::interleaving)
      .def_rw("expanded", &OffloadConfig::expanded)
      .def_rw("shared", &OffloadConfig::shared)
      .def_rw("ranks", &OffloadConfig::ranks);
}

nb::dict offload_counters(const GroupCosts& costs) {
  nb::dict d;
  const OffloadCounters& counters = costs.offload;
  d["channel_busy_ps"] = to_int(counters.channel_busy);
  d["to_memory_bytes"] = counters.to_memory_bytes;
  d["from_memory_bytes"] = counters.from_memory_bytes;
  d["host_bytes"] = counters.host_bytes;
  d["drawn_bytes"] = counters.drawn_bytes;
  d["interleaved_steps"] = counters.interleaved_steps;
  d["stalled_ps"] = counters.stalled;
  return d;
}

}  // namespace llmsim
