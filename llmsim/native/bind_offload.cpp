// Weight streaming and processing in memory for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "offload.h"

using namespace nanobind::literals;

namespace llmsim {

void bind_offload(nb::module_& m) {
  nb::enum_<Interleaving>(m, "Interleaving")
      .value("NEVER", Interleaving::kNever)
      .value("WHEN_SHORTER", Interleaving::kWhenShorter)
      .value("ALWAYS", Interleaving::kAlways);
  nb::class_<WeightStreaming>(m, "WeightStreaming", "Copies of weights by operator of the program, ps.")
      .def(nb::init<>())
      .def_rw("ahead", &WeightStreaming::ahead)
      .def_rw("by_tokens", &WeightStreaming::by_tokens)
      .def_rw("demand", &WeightStreaming::demand)
      .def_rw("buffers", &WeightStreaming::buffers);
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
      .def_rw("interleaving", &PimConfig::interleaving);
  nb::class_<OffloadConfig>(m, "OffloadConfig", "What a group keeps elsewhere.")
      .def(nb::init<>())
      .def_rw("weights", &OffloadConfig::weights)
      .def_prop_rw(
          "pim", [](const OffloadConfig& c) { return c.pim; },
          [](OffloadConfig& c, const PimConfig& pim) {
            c.pim = pim;
            c.has_pim = true;
          })
      .def_rw("expanded", &OffloadConfig::expanded);
}

std::unique_ptr<Evaluator> make_offload(const std::shared_ptr<Program>& program, const OffloadConfig& config) {
  std::unique_ptr<StreamTiming> timing;
  if (config.expanded) {
    timing = std::make_unique<ExpandedStreams>();
  } else {
    timing = std::make_unique<FoldedStreams>();
  }
  return std::make_unique<OffloadEvaluator>(program, config.weights, config.has_pim ? &config.pim : nullptr,
                                            std::move(timing));
}

nb::dict offload_counters(const Evaluator& evaluator) {
  nb::dict d;
  const auto* offload = dynamic_cast<const OffloadEvaluator*>(&evaluator);
  const OffloadCounters counters = offload == nullptr ? OffloadCounters{} : offload->counters();
  d["channel_busy_ps"] = counters.channel_busy;
  d["to_memory_bytes"] = counters.to_memory_bytes;
  d["from_memory_bytes"] = counters.from_memory_bytes;
  d["interleaved_steps"] = counters.interleaved_steps;
  d["stalled_ps"] = counters.stalled;
  return d;
}

}  // namespace llmsim
