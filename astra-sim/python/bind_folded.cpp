// Isolated collectives, their maps, and folded chains for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>

#include "engine/folded/folded.h"
#include "engine/isolated/concurrent.h"
#include "python/arrays.h"
#include "python/bindings.h"

namespace astra_sim::python {

using engine::Chain;
using engine::ChainBlock;
using engine::ChainItem;
using engine::CollectiveMap;
using engine::CollectiveSite;
using engine::FoldedChain;
using model::Bytes;
using model::Ps;

namespace {

std::vector<Ps> starts_for(std::size_t num_ranks, const Column<std::int64_t>& starts_ps) {
  if (starts_ps.size() != num_ranks) {
    throw model::InvalidGraph("there are " + std::to_string(starts_ps.size()) +
                              " start times for " + std::to_string(num_ranks) +
                              " ranks: one per rank is needed");
  }
  const auto span = as_span(starts_ps);
  return {span.begin(), span.end()};
}

void bind_site(nb::module_& module) {
  nb::class_<CollectiveSite>(module, "CollectiveSite",
                             "Where a collective runs and how, for all sizes.")
      .def(
          "__init__",
          [](CollectiveSite* self, std::shared_ptr<model::Topology> topology,
             std::vector<model::DeviceId> group, model::CollectiveKind kind,
             model::Algorithm algorithm, std::shared_ptr<model::MeasuredTable> table,
             engine::NetworkKind network, Ps endpoint_delay_ps, const model::CollectiveShape* shape,
             std::shared_ptr<model::Schedule> schedule) {
            CollectiveSite site{
                std::move(topology), std::move(group), kind,
                algorithm,           std::move(table), {network, endpoint_delay_ps}};
            if (shape != nullptr) site.shape = *shape;
            site.schedule = std::move(schedule);
            engine::check_site(site);
            new (self) CollectiveSite(std::move(site));
          },
          nb::arg("topology"), nb::arg("group"), nb::arg("kind"), nb::arg("algorithm"),
          nb::arg("table") = nb::none(), nb::arg("network") = engine::NetworkKind::kCongestionAware,
          nb::arg("endpoint_delay_ps") = 0, nb::arg("shape") = nb::none(),
          nb::arg("schedule") = nb::none())
      .def_prop_ro("topology",
                   [](const CollectiveSite& self) {
                     return std::const_pointer_cast<model::Topology>(self.topology);
                   })
      .def_prop_ro("linear", &engine::is_linear);
}

using Groups = std::vector<std::vector<model::DeviceId>>;

void bind_concurrent(nb::module_& module) {
  nb::class_<engine::Incast>(module, "Incast",
                             "What bursts of many senders cost at a switch's port.")
      .def(
          "__init__",
          [](engine::Incast* self, std::int64_t buffer_bytes, std::int64_t burst_bytes,
             std::int64_t efficiency_ppm) {
            new (self) engine::Incast{buffer_bytes, burst_bytes, efficiency_ppm};
          },
          nb::arg("buffer_bytes") = 0, nb::arg("burst_bytes") = 0,
          nb::arg("efficiency_ppm") = 1'000'000,
          "buffer_bytes: what a switch holds for a port; 0: bursts cost nothing. burst_bytes: what "
          "a "
          "sender sends before it slows down. efficiency_ppm: what is left of the link for bytes "
          "beyond the buffer.");
  nb::class_<engine::ConcurrentDurations>(
      module, "ConcurrentDurations",
      "Collectives, one a group, or messages, that start together on a network of their own.")
      .def(
          "__init__",
          [](engine::ConcurrentDurations* self, std::shared_ptr<model::Topology> topology,
             engine::NetworkKind network, Groups groups, std::optional<model::CollectiveKind> kind,
             const model::AlgorithmChoice& algorithm, const engine::Incast& incast) {
            engine::EngineOptions options{network};
            options.incast = incast;
            new (self) engine::ConcurrentDurations(
                {std::move(topology), options, std::move(groups), kind, algorithm});
          },
          nb::arg("topology"), nb::arg("network"), nb::arg("groups"), nb::arg("kind") = nb::none(),
          nb::arg("algorithm") = model::AlgorithmChoice{}, nb::arg("incast") = engine::Incast{},
          "kind None: a message from each group's first device to its second.")
      .def_prop_ro("num_simulated", &engine::ConcurrentDurations::num_simulated,
                   "Messages, at each of their ends, that one size is simulated with; 0: none.")
      .def(
          "durations_ps",
          [](engine::ConcurrentDurations& self, const Column<std::int64_t>& num_bytes) {
            std::vector<Ps> out(num_bytes.size());
            self.durations(as_span(num_bytes), out);
            return as_array(std::move(out));
          },
          nb::arg("num_bytes"), "From the common start until the last end, for each size.")
      .def("ends_ps", &engine::ConcurrentDurations::ends, nb::arg("num_bytes"),
           "By group and device, when it is done with its part, after the common start; of a "
           "message, both of its ends when it is there.");
  module.def(
      "broadcasts_in_turn",
      [](const model::Topology& topology, const Groups& groups,
         const Column<std::int64_t>& num_bytes) {
        std::vector<Ps> out(num_bytes.size());
        engine::broadcasts_in_turn(topology, groups, as_span(num_bytes), out);
        return as_array(std::move(out));
      },
      nb::arg("topology"), nb::arg("groups"), nb::arg("num_bytes"),
      "Durations (ps) of every rank's share in turn, along a chain that passes pieces on.");
}

}  // namespace

void bind_isolated(nb::module_& module) {
  bind_concurrent(module);
  bind_site(module);
  module.def("isolated_duration", &engine::isolated_duration, nb::arg("site"), nb::arg("num_bytes"),
             "Duration (ps) of a collective on links of its own when all ranks start together.");
  module.def(
      "isolated_durations",
      [](const CollectiveSite& site, const Column<std::int64_t>& num_bytes) {
        std::vector<Ps> out(num_bytes.size());
        engine::isolated_durations(site, as_span(num_bytes), out);
        return as_array(std::move(out));
      },
      nb::arg("site"), nb::arg("num_bytes"), "The same for an int64 array of sizes.");
  nb::enum_<CollectiveMap::Form>(module, "MapForm")
      .value("SCALAR", CollectiveMap::Form::kScalar)
      .value("CIRCULANT", CollectiveMap::Form::kCirculant)
      .value("MATRIX", CollectiveMap::Form::kMatrix)
      .value("SIMULATED", CollectiveMap::Form::kSimulated);
  nb::class_<CollectiveMap>(module, "CollectiveMap",
                            "Ends from starts: end[i] = max over j of start[j] + weight(i, j).")
      .def_static("isolated", &CollectiveMap::isolated, nb::arg("site"), nb::arg("num_bytes"))
      .def_prop_ro("form", &CollectiveMap::form)
      .def_prop_ro("linear", &CollectiveMap::linear)
      .def_prop_ro("simultaneous_ps", &CollectiveMap::simultaneous_ps)
      .def(
          "weight_ps",
          [](const CollectiveMap& self, std::size_t end_rank, std::size_t start_rank) {
            if (end_rank >= self.num_ranks() || start_rank >= self.num_ranks()) {
              throw model::InvalidGraph("a map of " + std::to_string(self.num_ranks()) +
                                        " ranks has no weight for that rank");
            }
            return self.weight_ps(end_rank, start_rank);
          },
          nb::arg("end_rank"), nb::arg("start_rank"))
      .def(
          "apply",
          [](const CollectiveMap& self, const Column<std::int64_t>& starts_ps) {
            std::vector<Ps> ends(self.num_ranks());
            self.apply(starts_for(self.num_ranks(), starts_ps), ends);
            return as_array(std::move(ends));
          },
          nb::arg("starts_ps"));
}

void bind_folded(nb::module_& module) {
  nb::class_<ChainItem>(module, "ChainItem")
      .def_static(
          "compute",
          [](std::vector<Ps> durations_ps) {
            if (durations_ps.empty()) throw model::InvalidGraph("a compute item needs a duration");
            return ChainItem{std::move(durations_ps), 0, 0};
          },
          nb::arg("durations_ps"), "One duration for all ranks, or one per rank.")
      .def_static(
          "collective",
          [](std::uint32_t site, Bytes num_bytes) { return ChainItem{{}, site, num_bytes}; },
          nb::arg("site"), nb::arg("num_bytes"));
  nb::class_<Chain>(
      module, "Chain",
      "Blocks (repeat, items) of compute and collectives that one group runs in order.")
      .def(
          "__init__",
          [](Chain* self, std::vector<CollectiveSite> sites,
             std::vector<std::pair<std::int64_t, std::vector<ChainItem>>> blocks) {
            new (self) Chain{std::move(sites), {}};
            for (auto& [repeat, items] : blocks) self->blocks.push_back({std::move(items), repeat});
          },
          nb::arg("sites"), nb::arg("blocks"));
  nb::class_<FoldedChain>(module, "FoldedChain",
                          "A chain compiled to max-plus maps; equal to expanded_ends.")
      .def(nb::init<const Chain&>(), nb::arg("chain"))
      .def_prop_ro("linear", &FoldedChain::linear)
      .def_prop_ro("num_ranks", &FoldedChain::num_ranks)
      .def(
          "ends",
          [](FoldedChain& self, const Column<std::int64_t>& starts_ps) {
            std::vector<Ps> ends(self.num_ranks());
            self.end(starts_for(self.num_ranks(), starts_ps), ends);
            return as_array(std::move(ends));
          },
          nb::arg("starts_ps"));
  const auto ranks = [](const Chain& chain) {
    return chain.sites.empty() ? 0 : chain.sites[0].group.size();
  };
  module.def(
      "expanded_ends",
      [ranks](const Chain& chain, const Column<std::int64_t>& starts_ps) {
        const std::vector<Ps> starts = starts_for(ranks(chain), starts_ps);
        std::vector<Ps> ends(starts.size());
        engine::expanded_ends(chain, starts, ends);
        return as_array(std::move(ends));
      },
      nb::arg("chain"), nb::arg("starts_ps"),
      "Ends of all ranks when every rank's nodes run in an engine of their own.");
  module.def(
      "expand",
      [ranks](const Chain& chain, const Column<std::int64_t>& start_offsets_ps) {
        return std::const_pointer_cast<model::ExecutionGraph>(
            engine::expand(chain, starts_for(ranks(chain), start_offsets_ps)));
      },
      nb::arg("chain"), nb::arg("start_offsets_ps"),
      "The chain as a graph: node = position * ranks + rank.");
}

}  // namespace astra_sim::python
