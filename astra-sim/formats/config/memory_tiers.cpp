#include "formats/config/memory_tiers.h"

#include <algorithm>
#include <array>

#include "formats/text/fields.h"
#include "formats/text/nearest.h"
#include "model/base/input_error.h"

namespace astra_sim::config {

namespace {

using model::InputError;

constexpr std::array<std::string_view, 12> kTierFields = {
    "name",          "per",      "npus_per_node", "bandwidth_gb_per_s", "write_bandwidth_gb_per_s",
    "latency_ns",    "channels", "sharing",       "capacity_gb",        "port_gb_per_s",
    "npus_per_port", "held_by"};
constexpr std::int64_t kMostNpus = std::int64_t{1} << 20;
constexpr std::int64_t kMostChannels = 65'536;
constexpr double kMostGb = 1e9;

double at_most(const Fields& fields, std::string_view key, double most) {
  const double value = fields.real(key).value_or(0);
  if (value > most) fields.fail(key, "is too large");
  return value;
}

std::uint32_t count(const Fields& fields, std::string_view key, std::int64_t most) {
  const std::int64_t value = fields.integer(key, 1).value_or(0);
  if (value > most) fields.fail(key, "is above " + std::to_string(most));
  return static_cast<std::uint32_t>(value);
}

std::vector<std::uint32_t> npus(const Fields& fields, const Json& entry, const std::string& path) {
  std::vector<std::uint32_t> out;
  const Json* list = entry.find("held_by");
  if (list == nullptr) return out;
  if (list->kind != Json::Kind::kArray)
    fields.fail("held_by", "has to be a list of NPUs, one for each instance");
  for (const Json& item : list->items) {
    if (!item.integral || item.integer < 0 || item.integer >= kMostNpus) {
      throw InputError(place(path, item) + ": held_by is a list of NPUs, numbers of 0 or more");
    }
    out.push_back(static_cast<std::uint32_t>(item.integer));
  }
  return out;
}

MemoryTier read_tier(const std::string& path, const Json& entry) {
  constexpr std::array<std::string_view, 3> reaches = {"npu", "node", "all"};
  constexpr std::array<std::string_view, 2> sharings = {"network", "fifo"};
  const Fields fields(path, entry);
  for (const auto& [key, value] : entry.members) {
    if (std::find(kTierFields.begin(), kTierFields.end(), key) != kTierFields.end()) continue;
    throw InputError(place(path, value) + ": \"" + key + "\" is not a field of a memory tier" +
                     nearest(key, kTierFields));
  }
  MemoryTier tier;
  tier.name = fields.text("name").value_or("");
  if (tier.name.empty()) fields.fail("name", "is missing; nodes choose a tier by it");
  const auto per = fields.choice("per", reaches);
  if (!per) fields.fail("per", "is missing; npu, node or all was expected");
  tier.per = static_cast<TierReach>(*per);
  tier.npus_per_node = count(fields, "npus_per_node", kMostNpus);
  if ((tier.per == TierReach::kNode) != (tier.npus_per_node > 0)) {
    fields.fail("npus_per_node", "belongs to tiers per node, and only to them");
  }
  tier.gb_per_s = at_most(fields, "bandwidth_gb_per_s", 1e5);
  if (tier.gb_per_s <= 0) fields.fail("bandwidth_gb_per_s", "has to be above 0");
  tier.write_gb_per_s = at_most(fields, "write_bandwidth_gb_per_s", 1e5);
  tier.latency_ns = at_most(fields, "latency_ns", 1e12);
  tier.capacity_gb = at_most(fields, "capacity_gb", kMostGb);
  tier.channels = std::max(1U, count(fields, "channels", kMostChannels));
  tier.fifo = fields.choice("sharing", sharings).value_or(0) == 1;
  tier.port_gb_per_s = at_most(fields, "port_gb_per_s", 1e5);
  tier.npus_per_port = count(fields, "npus_per_port", kMostNpus);
  if ((tier.port_gb_per_s > 0) != (tier.npus_per_port > 0)) {
    fields.fail("port_gb_per_s", "and npus_per_port belong together");
  }
  tier.held_by = npus(fields, entry, path);
  return tier;
}

}  // namespace

std::vector<MemoryTier> read_tiers(const std::string& path, const Json& tiers) {
  std::vector<MemoryTier> out;
  if (tiers.kind != Json::Kind::kArray || tiers.items.empty()) {
    throw InputError(place(path, tiers) + ": tiers has to be a list of at least one tier");
  }
  for (const Json& entry : tiers.items) {
    out.push_back(read_tier(path, entry));
    for (std::size_t at = 0; at + 1 < out.size(); ++at) {
      if (out[at].name != out.back().name) continue;
      throw InputError(place(path, entry) + ": there are two tiers of name \"" + out[at].name +
                       "\"");
    }
  }
  return out;
}

}  // namespace astra_sim::config
