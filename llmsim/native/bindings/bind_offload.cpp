// Weights and operators outside of a group's devices, for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "offload/offload.h"

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
      .def_rw("bytes_per_s", &HostOperators::bytes_per_s)
      .def_rw("place", &HostOperators::place)
      .def_rw("before_ps", &HostOperators::before);
}

Items items_of(const Batch& batch) {
  Items items;
  for (const Item& item : batch.items) items.emplace_back(item.tokens, item.computed_before);
  return items;
}

// (unit, stream, role, operator, execution, lane, ps, end, bytes, what it waits for) of each node,
// and the halves.
nb::tuple describe(const std::shared_ptr<Program>& program,
                   const std::shared_ptr<const OffloadConfig>& config,
                   const std::vector<Items>& items, std::int64_t step) {
  std::vector<std::unique_ptr<GroupCosts>> owned;
  std::vector<GroupCosts*> members;
  std::vector<Batch> batches;
  for (const Items& one : items) {
    owned.push_back(std::make_unique<GroupCosts>(program));
    members.push_back(owned.back().get());
    batches.push_back(batch_of(one));
  }
  std::vector<const Batch*> pointers;
  for (const Batch& batch : batches) pointers.push_back(&batch);
  OffloadDomain domain(members, std::vector(items.size(), config));
  const OffloadDomain::Described found = domain.describe(pointers, step);
  nb::list nodes, halves;
  for (std::size_t i = 0; i < found.graph->nodes.size(); ++i) {
    const StreamNode& node = found.graph->nodes[i];
    const NodeLabel& label = found.graph->labels[i];
    std::vector<std::int32_t> after;
    for (const std::int32_t before : found.graph->after_of(node))
      if (before < kCarried) after.push_back(before);
    nodes.append(nb::make_tuple(node.stream / kNumDeviceStreams, node.stream % kNumDeviceStreams,
                                label.role, label.op, label.execution, label.lane, found.ps[i],
                                found.end[i], found.bytes[i], after));
  }
  for (const auto& [first, second] : found.halves)
    halves.append(nb::make_tuple(items_of(first), items_of(second)));
  return nb::make_tuple(nodes, halves);
}

void bind_described(nb::module_& m) {
  nb::enum_<DeviceStream>(m, "DeviceStream")
      .value("COMPUTE", DeviceStream::kCompute)
      .value("PULL", DeviceStream::kPull)
      .value("COPY_IN", DeviceStream::kCopyIn)
      .value("COPY_OUT", DeviceStream::kCopyOut)
      .value("PIM", DeviceStream::kPim)
      .value("HOST", DeviceStream::kHost)
      .value("SEND", DeviceStream::kSend);
  nb::enum_<NodeRole>(m, "NodeRole")
      .value("BEGIN", NodeRole::kBegin)
      .value("END", NodeRole::kEnd)
      .value("OPERATOR", NodeRole::kOperator)
      .value("COPY", NodeRole::kCopy)
      .value("TO_HOST", NodeRole::kToHost)
      .value("FROM_HOST", NodeRole::kFromHost)
      .value("QUERIES", NodeRole::kQueries)
      .value("IN_MEMORY", NodeRole::kInMemory)
      .value("RESULTS", NodeRole::kResults)
      .value("CONTEXT", NodeRole::kContext)
      .value("PROMPTS", NodeRole::kPrompts);
  m.def("describe_offloaded_step", &describe, "program"_a, "config"_a, "items"_a, "step"_a,
        "The nodes of the run's step of that number, from 1, if nothing ran before: (unit, stream, "
        "role, operator, "
        "execution, lane, ps, end ps, bytes, nodes before) each; and of each member its two "
        "halves, if they alternate.");
}

}  // namespace

void bind_offload(nb::module_& m) {
  bind_described(m);
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

std::unique_ptr<StepExecutor> make_offload(const std::vector<Group*>& members) {
  std::vector<GroupCosts*> costs;
  std::vector<std::shared_ptr<const OffloadConfig>> configs;
  for (Group* member : members) {
    if (!member->config().offload) return nullptr;
    costs.push_back(&member->costs());
    configs.push_back(member->config().offload);
  }
  return std::make_unique<OffloadDomain>(std::move(costs), std::move(configs));
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
