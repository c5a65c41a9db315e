// KV in host memory under vLLM's own rules, for Python.
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "kv/offloading/connector.h"

using namespace nanobind::literals;

namespace llmsim {

void bind_kv_offloading(nb::module_& m) {
  nb::enum_<OffloadingEviction>(m, "OffloadingEviction")
      .value("LRU", OffloadingEviction::kLru)
      .value("ARC", OffloadingEviction::kArc);
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
          "A chunk is stored when it is offered for the so manieth time; below 2: at once.")
      .def_prop_rw(
          "max_tracker_size", [](const OffloadingConfig& c) { return c.pool.max_tracker_size; },
          [](OffloadingConfig& c, std::int64_t size) { c.pool.max_tracker_size = size; },
          "Chunks whose offers are counted.")
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
}

}  // namespace llmsim
