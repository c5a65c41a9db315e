// KV in host memory under vLLM's own rules, for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "kv/offloading/connector.h"
#include "kv/offloading/outside_copies.h"

using namespace nanobind::literals;

namespace llmsim {

static void bind_outside_copies(nb::module_& m) {
  nb::class_<OutsideCopies>(m, "OutsideCopies",
                            "Copies of KV to host memory and back, of engines outside of a "
                            "simulation that number them.")
      .def(nb::init<std::vector<GroupCopiesConfig>, NetworkConfig>(), "groups"_a, "network"_a)
      .def("load", &OutsideCopies::load, "group"_a, "job"_a, "tokens"_a,
           "Asked for with the batch that is formed next; its request waits for it.")
      .def("store", &OutsideCopies::store, "group"_a, "job"_a, "tokens"_a,
           "Asked for with the batch that is formed next.")
      .def("load_in_step", &OutsideCopies::load_in_step, "group"_a, "job"_a, "tokens"_a,
           "A load for which the batch that is formed next waits.")
      .def("flush", &OutsideCopies::flush, "group"_a, "job"_a,
           "The batch that is formed next waits for the store, unless it has ended.")
      .def("formed", &OutsideCopies::formed, "group"_a, "runs"_a, "now_ps"_a,
           "A batch is formed (`runs`: with requests), and what was asked for is submitted.")
      .def("launched", &OutsideCopies::launched, "group"_a, "end_ps"_a,
           "A batch was launched, and ends then.")
      .def("is_open", &OutsideCopies::open, "group"_a,
           "Whether all that the group's batch waits for is there.")
      .def(
          "next_event_ps",
          [](const OutsideCopies& c) -> std::optional<Ps> {
            if (c.next_event() == kEndOfTime) return std::nullopt;
            return c.next_event();
          },
          "When something may end; None: nothing is under way.")
      .def(
          "advance",
          [](OutsideCopies& c, Ps now_ps) {
            std::vector<std::pair<std::int32_t, std::int64_t>> ended;
            for (const auto& [group, job] : c.advance(now_ps)) ended.emplace_back(group, job);
            return ended;
          },
          "now_ps"_a,
          "Time passes; returns (group, job) of the copies that have ended since it was called, in "
          "that order.");
}

void bind_kv_offloading(nb::module_& m) {
  nb::enum_<OffloadingEviction>(m, "OffloadingEviction")
      .value("LRU", OffloadingEviction::kLru)
      .value("ARC", OffloadingEviction::kArc)
      .value("LRU_BY_CHUNK", OffloadingEviction::kLruByChunk)
      .value("TOUCHED_LRU", OffloadingEviction::kTouchedLru)
      .value("TOUCHED_ARC", OffloadingEviction::kTouchedArc);
  nb::class_<OffloadingRules>(m, "OffloadingRules",
                              "What releases of vLLM after 0.24 offload otherwise; all off.")
      .def(nb::init<>())
      .def_rw("stores_ends", &OffloadingRules::stores_ends)
      .def_rw("keeps_progress", &OffloadingRules::keeps_progress)
      .def_rw("ends_with_step", &OffloadingRules::ends_with_step)
      .def_rw("counts_offers", &OffloadingRules::counts_offers)
      .def_rw("remembers_offers", &OffloadingRules::remembers_offers)
      .def_rw("stores_computed", &OffloadingRules::stores_computed)
      .def_rw("offloads_drafted", &OffloadingRules::offloads_drafted)
      .def_rw("gives_up_either", &OffloadingRules::gives_up_either)
      .def_rw("offers_again", &OffloadingRules::offers_again);
  nb::class_<OffloadingConfig>(m, "OffloadingConfig",
                               "What a group offloads (vLLM's kv_connector_extra_config).")
      .def(nb::init<>())
      .def_prop_rw(
          "num_chunks", [](const OffloadingConfig& c) { return c.pool.num_chunks; },
          [](OffloadingConfig& c, std::int64_t chunks) { c.pool.num_chunks = chunks; },
          "Chunks that the pool in host memory holds.")
      .def_prop_rw(
          "eviction", [](const OffloadingConfig& c) { return c.pool.eviction; },
          [](OffloadingConfig& c, OffloadingEviction eviction) { c.pool.eviction = eviction; })
      .def_prop_rw(
          "store_threshold", [](const OffloadingConfig& c) { return c.pool.store_threshold; },
          [](OffloadingConfig& c, std::int32_t offers) { c.pool.store_threshold = offers; },
          "A chunk is stored when it is offered, or looked for, for the so manieth time; below 2: "
          "at "
          "once.")
      .def_prop_rw(
          "max_tracker_size", [](const OffloadingConfig& c) { return c.pool.max_tracker_size; },
          [](OffloadingConfig& c, std::int64_t size) { c.pool.max_tracker_size = size; },
          "Chunks that are counted for it.")
      .def_prop_rw(
          "rules", [](OffloadingConfig& c) -> OffloadingRules& { return c.pool.rules; },
          [](OffloadingConfig& c, const OffloadingRules& rules) { c.pool.rules = rules; },
          nb::rv_policy::reference_internal)
      .def_rw("blocks_per_chunk", &OffloadingConfig::blocks_per_chunk)
      .def_rw("sync_load_tokens", &OffloadingConfig::sync_load_tokens,
              "Tokens that a step loads and waits for, at most; others are parked meanwhile.")
      .def_rw("prompt_only", &OffloadingConfig::prompt_only, "Chunks of answers are not stored.");
  nb::class_<GroupCopiesConfig>(m, "OffloadingCopies",
                                "How a group's KV comes to host memory and back.")
      .def(
          "__init__",
          [](GroupCopiesConfig* group, std::vector<NetworkNodeId> ranks,
             std::vector<NetworkNodeId> hosts, std::vector<std::int64_t> bytes_per_token,
             std::vector<std::int64_t> bytes_stored_per_token) {
            new (group)
                GroupCopiesConfig{std::move(ranks), std::move(hosts), std::move(bytes_per_token),
                                  std::move(bytes_stored_per_token)};
          },
          "ranks"_a, "hosts"_a, "bytes_per_token"_a, "bytes_stored_per_token"_a,
          "The places of its ranks (none: it offloads nothing) and of the host of each, and the "
          "bytes of a token that each loads and stores.");
  bind_outside_copies(m);
}

}  // namespace llmsim
