// Collective plans, the graph builder and graphs for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cctype>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "model/base/errors.h"
#include "model/collective/algorithm_word.h"
#include "model/collective/schedule.h"
#include "model/graph/graph_builder.h"
#include "model/topology/topology.h"
#include "python/arrays.h"
#include "python/bindings.h"

namespace astra_sim::python {

using model::Algorithm;
using model::CollectiveKind;
using model::ExecutionGraph;
using model::GraphBuilder;
using model::MeasuredTable;
using model::NodeKind;
using model::Schedule;
using model::Stream;

namespace {

using MessageTuple = std::tuple<std::uint32_t, std::uint32_t, std::int64_t, std::int64_t,
                                std::vector<std::uint32_t>>;

void bind_schedule(nb::module_& module) {
  nb::class_<Schedule>(module, "Schedule", "The messages of a custom collective.")
      .def_static(
          "custom",
          [](std::uint32_t num_ranks, std::int64_t denominator,
             const std::vector<MessageTuple>& tuples) {
            std::vector<model::CustomMessage> messages;
            for (const auto& [from, to, first, units, after] : tuples) {
              messages.push_back({from, to, first, units, after});
            }
            return std::const_pointer_cast<Schedule>(
                Schedule::custom(num_ranks, denominator, messages));
          },
          nb::arg("num_ranks"), nb::arg("denominator"), nb::arg("messages"),
          "Messages (from rank, to rank, first unit, units, those that have to arrive before); a "
          "unit is the call's "
          "bytes / denominator.")
      .def_prop_ro("num_ranks", &Schedule::num_ranks)
      .def_prop_ro("num_messages", [](const Schedule& self) { return self.num_messages(); });
}

// `halvingDoubling` as Python calls a constant: HALVING_DOUBLING.
std::string constant_name(std::string_view word) {
  std::string name;
  for (const char letter : word) {
    const auto code = static_cast<unsigned char>(letter);
    if (std::isupper(code) != 0) name += '_';
    name += static_cast<char>(std::toupper(code));
  }
  return name;
}

void bind_algorithms(nb::module_& module) {
  auto algorithms = nb::enum_<Algorithm>(module, "Algorithm");
  for (const model::AlgorithmEntry& entry : model::kAlgorithms)
    algorithms.value(constant_name(entry.word).c_str(), entry.algorithm);
  nb::class_<model::AlgorithmChoice>(module, "AlgorithmChoice",
                                     "An algorithm as files name it: ring, oneRing, direct4.")
      .def_static(
          "parse",
          [](const std::string& word) {
            if (const auto choice = model::parse_algorithm(word)) return *choice;
            throw nb::value_error(
                ("is \"" + word + "\"; " + model::expected_algorithms() + " was expected").c_str());
          },
          nb::arg("word"))
      .def_ro("algorithm", &model::AlgorithmChoice::algorithm)
      .def_ro("flat", &model::AlgorithmChoice::flat, "Over all devices at once.")
      .def_ro("window", &model::AlgorithmChoice::window,
              "Messages that a rank may have in flight; 0: any number.")
      .def_prop_ro(
          "name", [](const model::AlgorithmChoice& self) { return model::name_of(self.algorithm); })
      .def_prop_ro(
          "in_step",
          [](const model::AlgorithmChoice& self) {
            return model::entry_of(self.algorithm).in_step;
          },
          "On equal links of their own, ranks that start together end together.")
      .def_prop_ro(
          "on_switch",
          [](const model::AlgorithmChoice& self) {
            return model::entry_of(self.algorithm).on_switch;
          },
          "Needs a switch that all ranks hang on.")
      .def(
          "can",
          [](const model::AlgorithmChoice& self, CollectiveKind kind) {
            return model::can(self.algorithm, kind);
          },
          nb::arg("kind"), "Whether it has messages for a kind of collective.");
  module.def("algorithm_words", &model::algorithm_words,
             "The names of the algorithms that files may ask for.");
}

void bind_enums(nb::module_& module) {
  nb::enum_<CollectiveKind>(module, "CollectiveKind")
      .value("ALL_REDUCE", CollectiveKind::kAllReduce)
      .value("ALL_GATHER", CollectiveKind::kAllGather)
      .value("REDUCE_SCATTER", CollectiveKind::kReduceScatter)
      .value("ALL_TO_ALL", CollectiveKind::kAllToAll)
      .value("BROADCAST", CollectiveKind::kBroadcast)
      .value("REDUCE", CollectiveKind::kReduce)
      .value("GATHER", CollectiveKind::kGather)
      .value("SCATTER", CollectiveKind::kScatter)
      .value("BARRIER", CollectiveKind::kBarrier);
  bind_algorithms(module);
  nb::class_<model::CollectiveShape>(
      module, "CollectiveShape",
      "Dimensions with an algorithm each, pieces, root, sizes per pair, windows.")
      .def(
          "__init__",
          [](model::CollectiveShape* self, std::vector<std::uint32_t> dims,
             std::vector<Algorithm> algorithms, std::uint32_t pieces, std::uint32_t root,
             std::optional<std::vector<std::int64_t>> pair_units,
             std::shared_ptr<model::Topology> topology, std::vector<std::uint32_t> windows) {
            std::shared_ptr<const std::vector<std::int64_t>> units;
            if (pair_units)
              units = std::make_shared<const std::vector<std::int64_t>>(std::move(*pair_units));
            new (self) model::CollectiveShape{
                std::move(dims),  std::move(algorithms), std::move(windows), pieces, root,
                std::move(units), std::move(topology)};
          },
          nb::arg("dims") = std::vector<std::uint32_t>{},
          nb::arg("algorithms") = std::vector<Algorithm>{}, nb::arg("pieces") = 1,
          nb::arg("root") = 0, nb::arg("pair_units") = nb::none(), nb::arg("topology") = nb::none(),
          nb::arg("windows") = std::vector<std::uint32_t>{});
  bind_schedule(module);
  nb::enum_<NodeKind>(module, "NodeKind", nb::is_arithmetic())
      .value("COMPUTE", NodeKind::kCompute)
      .value("COLLECTIVE", NodeKind::kCollective)
      .value("TRANSFER", NodeKind::kTransfer)
      .value("SEND", NodeKind::kSend)
      .value("RECV", NodeKind::kRecv)
      .value("MEMORY_LOAD", NodeKind::kMemoryLoad)
      .value("MEMORY_STORE", NodeKind::kMemoryStore);
  nb::enum_<Stream>(module, "Stream", nb::is_arithmetic())
      .value("COMPUTE", Stream::kCompute)
      .value("COMM", Stream::kComm)
      .value("COPY_IN", Stream::kCopyIn)
      .value("COPY_OUT", Stream::kCopyOut)
      .value("PIM", Stream::kPim)
      .value("HOST", Stream::kHost)
      .value("NONE", Stream::kNone);
}

// Whole columns at once: parents of node i are parents[parent_begin[i]:parent_begin[i + 1]].
void add_columns(GraphBuilder& self, const Column<std::uint8_t>& kind,
                 const Column<std::uint8_t>& stream, const Column<std::uint32_t>& device,
                 const Column<std::int64_t>& amount, const Column<std::uint32_t>& peer,
                 const Column<std::uint32_t>& call, const Column<std::int64_t>& parent_begin,
                 const Column<std::uint64_t>& parents) {
  const std::size_t n = kind.size();
  for (const std::size_t other :
       {stream.size(), device.size(), amount.size(), peer.size(), call.size()}) {
    if (other != n) {
      throw model::InvalidGraph("columns of a graph have " + std::to_string(n) + " and " +
                                std::to_string(other) + " entries: they need one per node");
    }
  }
  const auto begin = as_span(parent_begin);
  bool sound = begin.size() == n + 1 && begin[0] == 0 &&
               static_cast<std::size_t>(begin[n]) == parents.size();
  for (std::size_t i = 0; sound && i < n; ++i) sound = begin[i] <= begin[i + 1];
  if (!sound) {
    throw model::InvalidGraph("parent_begin has to rise from 0 to the " +
                              std::to_string(parents.size()) +
                              " parents in nodes + 1 = " + std::to_string(n + 1) + " entries");
  }
  for (std::size_t i = 0; i < n; ++i) {
    const auto first = static_cast<std::size_t>(begin[i]);
    self.add(static_cast<NodeKind>(kind.data()[i]), static_cast<Stream>(stream.data()[i]),
             device.data()[i], amount.data()[i], peer.data()[i], call.data()[i],
             as_span(parents).subspan(first, static_cast<std::size_t>(begin[i + 1]) - first));
  }
}

using Parents = std::vector<std::uint64_t>;

void bind_nodes(nb::class_<GraphBuilder>& builder) {
  builder
      .def(
          "compute",
          [](GraphBuilder& self, model::DeviceId device, model::Ps duration_ps,
             const Parents& parents, Stream stream, std::uint8_t power_class) {
            return self.compute(device, duration_ps, parents, stream, power_class);
          },
          nb::arg("device"), nb::arg("duration_ps"), nb::arg("parents") = Parents{},
          nb::arg("stream") = Stream::kCompute, nb::arg("power_class") = 0)
      .def(
          "collective",
          [](GraphBuilder& self, model::DeviceId device, model::PlanId plan, model::CallId call,
             model::Bytes num_bytes, const Parents& parents, Stream stream) {
            return self.collective(device, plan, call, num_bytes, parents, stream);
          },
          nb::arg("device"), nb::arg("plan"), nb::arg("call"), nb::arg("num_bytes"),
          nb::arg("parents") = Parents{}, nb::arg("stream") = Stream::kComm)
      .def(
          "transfer",
          [](GraphBuilder& self, model::DeviceId from, model::DeviceId to, model::Bytes num_bytes,
             const Parents& parents,
             Stream stream) { return self.transfer(from, to, num_bytes, parents, stream); },
          nb::arg("from_device"), nb::arg("to_device"), nb::arg("num_bytes"),
          nb::arg("parents") = Parents{}, nb::arg("stream") = Stream::kCopyOut);
}

void bind_builder(nb::module_& module) {
  nb::class_<GraphBuilder> builder(
      module, "GraphBuilder", "Collects nodes; build() checks them and returns a sealed graph.");
  builder.def(nb::init<std::uint32_t>(), nb::arg("num_devices"))
      .def(
          "add_group",
          [](GraphBuilder& self, const std::vector<model::DeviceId>& devices) {
            return self.add_group(devices);
          },
          nb::arg("devices"))
      .def(
          "add_plan",
          [](GraphBuilder& self, CollectiveKind kind, Algorithm algorithm, model::GroupId group,
             std::shared_ptr<MeasuredTable> table, const model::CollectiveShape* shape,
             std::shared_ptr<Schedule> schedule) {
            return self.add_plan({kind, algorithm, group, std::move(table),
                                  shape == nullptr ? model::CollectiveShape{} : *shape,
                                  std::move(schedule)});
          },
          nb::arg("kind"), nb::arg("algorithm"), nb::arg("group"), nb::arg("table") = nb::none(),
          nb::arg("shape") = nb::none(), nb::arg("schedule") = nb::none());
  bind_nodes(builder);
  builder
      .def(
          "add",
          [](GraphBuilder& self, NodeKind kind, Stream stream, model::DeviceId device,
             std::int64_t amount, std::uint32_t peer, model::CallId call, const Parents& parents) {
            return self.add(kind, stream, device, amount, peer, call, parents);
          },
          nb::arg("kind"), nb::arg("stream"), nb::arg("device"), nb::arg("amount"), nb::arg("peer"),
          nb::arg("call"), nb::arg("parents") = Parents{})
      .def("add_columns", &add_columns, nb::arg("kind"), nb::arg("stream"), nb::arg("device"),
           nb::arg("amount"), nb::arg("peer"), nb::arg("call"), nb::arg("parent_begin"),
           nb::arg("parents"))
      .def(
          "with_ids",
          [](GraphBuilder& self, const std::vector<std::uint64_t>& ids) { self.with_ids(ids); },
          nb::arg("ids"))
      .def("clear", &GraphBuilder::clear)
      .def("build", [](GraphBuilder& self) {
        return std::const_pointer_cast<ExecutionGraph>(self.build());
      });
}

}  // namespace

void bind_graph(nb::module_& module) {
  bind_enums(module);
  nb::class_<MeasuredTable>(module, "MeasuredTable",
                            "Measured durations of a collective by size; interpolates.")
      .def(nb::init<std::vector<model::Bytes>, std::vector<model::Ps>>(), nb::arg("num_bytes"),
           nb::arg("duration_ps"))
      .def("at", &MeasuredTable::at, nb::arg("num_bytes"));
  nb::class_<ExecutionGraph>(module, "ExecutionGraph",
                             "One iteration made concrete; immutable; made by GraphBuilder.")
      .def_prop_ro("num_nodes", &ExecutionGraph::num_nodes)
      .def_prop_ro("num_devices", [](const ExecutionGraph& self) { return self.num_devices; })
      .def_prop_ro(
          "amounts",
          [](const ExecutionGraph& self) {
            return as_array(std::vector<std::int64_t>(self.amount));
          },
          "A copy of the durations (ps) and sizes (bytes), one int64 per node.")
      .def("describe", [](const ExecutionGraph& self, model::NodeIndex node) {
        if (node >= self.num_nodes())
          throw model::InvalidGraph("node " + std::to_string(node) + " is not in the graph");
        return self.describe(node);
      });
  bind_builder(module);
}

}  // namespace astra_sim::python
