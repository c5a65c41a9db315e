// Pools of KV below the groups' own, for Python.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "kv/tiers/kv_tiers.h"

using namespace nanobind::literals;

namespace llmsim {

void bind_kv_tiers(nb::module_& m) {
  nb::enum_<TierEviction>(m, "TierEviction")
      .value("LRU", TierEviction::kLru)
      .value("LFU", TierEviction::kLfu)
      .value("COST", TierEviction::kCost);
  nb::enum_<TierWrite>(m, "TierWrite")
      .value("THROUGH", TierWrite::kThrough)
      .value("SELECTIVE", TierWrite::kSelective)
      .value("BACK", TierWrite::kBack);
  nb::class_<KvTiersConfig>(m, "KvTiersConfig", "Pools of KV, and which groups use which.")
      .def(
          "__init__",
          [](KvTiersConfig* config, TierWrite write, bool parks, bool shared) {
            new (config) KvTiersConfig{};
            config->write = write;
            config->parks = parks;
            config->shared = shared;
          },
          "write"_a, "parks"_a = false, "shared"_a = false,
          "parks: who recalls is parked alone; else its batch waits. shared: pools outlive groups.")
      .def(
          "add_pool",
          [](KvTiersConfig& config, const std::string& name, std::int64_t capacity_bytes,
             TierEviction eviction, std::vector<NetworkNodeId> places, std::int32_t queue_depth,
             Ps read_latency_ps, Ps write_latency_ps) {
            config.pools.push_back({name, capacity_bytes, eviction, std::move(places), queue_depth,
                                    read_latency_ps, write_latency_ps});
            return config.pools.size() - 1;
          },
          "name"_a, "capacity_bytes"_a, "eviction"_a, "places"_a, "queue_depth"_a = 0,
          "read_latency_ps"_a = 0, "write_latency_ps"_a = 0,
          "Returns the pool's number. places: a memory of each node that the ranks are on. "
          "queue_depth 0: a memory.")
      .def(
          "stripe",
          [](KvTiersConfig& config, NetworkNodeId place, std::vector<NetworkNodeId> stripes) {
            config.striped = place;
            config.stripes = std::move(stripes);
          },
          "place"_a, "stripes"_a,
          "A place of pools that is several memories, over which KV is spread: their places.")
      .def(
          "add_group",
          [](KvTiersConfig& config, const std::vector<std::int32_t>& pools,
             const std::vector<NetworkNodeId>& ranks, std::int32_t chunk_tokens,
             const std::vector<std::int64_t>& bytes_per_token, std::int32_t model) {
            config.groups.push_back({pools, ranks, chunk_tokens, bytes_per_token, model});
          },
          "pools"_a, "ranks"_a, "chunk_tokens"_a, "bytes_per_token"_a, "model"_a,
          "The next group: its pools in order of lookup (none: it has no tiers), the places of its "
          "ranks, the bytes "
          "of each.");
}

}  // namespace llmsim
