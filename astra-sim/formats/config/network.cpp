#include "formats/config/network.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "formats/config/topology_file.h"
#include "formats/text/json.h"
#include "formats/text/nearest.h"
#include "formats/text/yaml.h"
#include "model/base/input_error.h"

namespace astra_sim::config {

namespace {

using model::InputError;
constexpr std::array<std::string_view, 4> kKeys = {"topology", "npus_count", "bandwidth",
                                                   "latency"};
constexpr std::string_view kUnit = "bandwidth_unit";  // upstream reads the four keys alone
constexpr std::array<std::string_view, 2> kUnits = {"GB/s", "GiB/s"};
constexpr double kGib = 1.073741824;  // GB of 10^9 bytes
constexpr std::array<std::string_view, 3> kShapes = {"Ring", "FullyConnected", "Switch"};
constexpr std::uint64_t kMaxNpus = std::uint64_t{1} << 24;

std::string where(const std::string& path, const YamlEntry& entry) {
  return path + ":" + std::to_string(entry.line) + ": " + entry.key;
}

double real(const std::string& path, const YamlEntry& entry, std::size_t index) {
  const std::string& text = entry.values[index];
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !std::isfinite(value)) {
    throw InputError(where(path, entry) + "[" + std::to_string(index) + "] is \"" + text +
                     "\"; a number was expected");
  }
  return value;
}

NetworkShape shape(const std::string& path, const YamlEntry& entry, std::size_t index) {
  for (std::size_t known = 0; known < kShapes.size(); ++known) {
    if (entry.values[index] == kShapes[known]) return static_cast<NetworkShape>(known);
  }
  throw InputError(where(path, entry) + "[" + std::to_string(index) + "] is \"" +
                   entry.values[index] + "\"; Ring, FullyConnected or Switch was expected" +
                   nearest(entry.values[index], kShapes));
}

std::uint32_t count(const std::string& path, const YamlEntry& entry, std::size_t index) {
  const std::string& text = entry.values[index];
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || value < 1 ||
      value > kMaxNpus) {
    throw InputError(where(path, entry) + "[" + std::to_string(index) + "] is " + text +
                     "; a whole number from 1 to 2^24 was expected");
  }
  return static_cast<std::uint32_t>(value);
}

[[noreturn]] void twice(const std::string& path, const YamlEntry& first, const YamlEntry& entry) {
  throw InputError(where(path, entry) + " is there twice, first in line " +
                   std::to_string(first.line) + "; remove one");
}

bool in_gib(const std::string& path, const std::vector<YamlEntry>& entries) {
  const YamlEntry* found = nullptr;
  for (const YamlEntry& entry : entries) {
    if (entry.key != kUnit) continue;
    if (found != nullptr) twice(path, *found, entry);
    found = &entry;
    const std::string text = entry.values.empty() ? "" : entry.values.front();
    if (entry.list || std::ranges::find(kUnits, text) == kUnits.end()) {
      throw InputError(where(path, entry) + " is \"" + text +
                       "\"; GB/s (10^9 bytes) or GiB/s (2^30 bytes) was expected");
    }
  }
  return found != nullptr && found->values.front() == kUnits[1];
}

std::array<const YamlEntry*, 4> find_keys(const std::string& path,
                                          const std::vector<YamlEntry>& entries,
                                          std::vector<std::string>& notes) {
  std::array<const YamlEntry*, 4> found{};
  for (const YamlEntry& entry : entries) {
    std::size_t key = 0;
    while (key < kKeys.size() && entry.key != kKeys[key]) ++key;
    if (key == kKeys.size()) {
      if (entry.key == kUnit) continue;
      notes.push_back(where(path, entry) + " is not a key of a network file and is ignored" +
                      nearest(entry.key, kKeys));
    } else if (found[key] != nullptr) {
      twice(path, *found[key], entry);
    } else {
      found[key] = &entry;
    }
  }
  for (std::size_t key = 0; key < kKeys.size(); ++key) {
    if (found[key] == nullptr) {
      throw InputError(path + " has no key \"" + std::string(kKeys[key]) +
                       "\"; topology, npus_count, bandwidth and latency are needed, a list each");
    }
    if (found[key]->values.size() != found[0]->values.size()) {
      throw InputError(where(path, *found[key]) + " has " +
                       std::to_string(found[key]->values.size()) + " entries where topology has " +
                       std::to_string(found[0]->values.size()));
    }
  }
  return found;
}

}  // namespace

std::uint32_t NetworkConfig::npus() const {
  std::uint32_t total = 1;
  for (const NetworkDimension& dimension : dimensions) total *= dimension.npus;
  return total;
}

double NetworkConfig::decimal_gb_per_s(const NetworkDimension& dimension) const {
  return in_gib ? dimension.bandwidth_gb_per_s * kGib : dimension.bandwidth_gb_per_s;
}

double NetworkConfig::binary_gb_per_s(const NetworkDimension& dimension) const {
  return file == nullptr ? dimension.bandwidth_gb_per_s : dimension.bandwidth_gb_per_s / kGib;
}

namespace {

NetworkConfig from_topology_file(const std::string& path) {
  NetworkConfig config;
  const auto file = std::make_shared<TopologyFile>(read_topology_file(path));
  config.file = file;
  std::uint64_t total = 1;
  for (const TopologyDimension& one : file->dimensions) {
    config.dimensions.push_back({one.shape, one.size, one.gb_per_s, one.latency_ns});
    total *= one.size;
    if (total > kMaxNpus) throw InputError(path + ": dimensions make more than 2^24 NPUs");
  }
  if (file->dimensions.empty())
    config.dimensions.push_back({NetworkShape::kSwitched, file->devices, 1, 0});
  return config;
}

}  // namespace

NetworkConfig read_network(const std::string& path) {
  if (path.ends_with(".json")) return from_topology_file(path);
  NetworkConfig config;
  const std::vector<YamlEntry> entries =
      parse_yaml(read_text(path, "a network file in YAML"), path);
  const auto found = find_keys(path, entries, config.notes);
  config.in_gib = in_gib(path, entries);
  if (found[0]->values.empty())
    throw InputError(where(path, *found[0]) + " is empty; one dimension is needed at least");
  std::uint64_t total = 1;
  for (std::size_t i = 0; i < found[0]->values.size(); ++i) {
    const NetworkDimension dimension{shape(path, *found[0], i), count(path, *found[1], i),
                                     real(path, *found[2], i), real(path, *found[3], i)};
    if (dimension.bandwidth_gb_per_s <= 0) {
      throw InputError(where(path, *found[2]) + "[" + std::to_string(i) + "] is " +
                       found[2]->values[i] + "; more than 0 GB/s was expected");
    }
    if (dimension.latency_ns < 0) {
      throw InputError(where(path, *found[3]) + "[" + std::to_string(i) + "] is " +
                       found[3]->values[i] + "; 0 ns or more was expected");
    }
    total *= dimension.npus;
    if (total > kMaxNpus) throw InputError(where(path, *found[1]) + " makes more than 2^24 NPUs");
    config.dimensions.push_back(dimension);
  }
  return config;
}

NetworkConfig NetworkConfig::as_seen_by_collectives() const {
  if (logical.empty()) return *this;
  NetworkConfig seen = *this;
  seen.dimensions.clear();
  for (const std::uint32_t size : logical)
    seen.dimensions.push_back({NetworkShape::kSwitched, size, 1, 0});
  return seen;
}

std::vector<std::uint32_t> read_logical_dimensions(const std::string& path, std::uint32_t npus) {
  const Json json = read_json(path);
  const Json* list = json.kind == Json::Kind::kObject ? json.find("logical-dims") : nullptr;
  if (list == nullptr || list->kind != Json::Kind::kArray || list->items.empty()) {
    throw InputError(place(path, json) +
                     ": expected {\"logical-dims\": [sizes]}, a list of one size at least");
  }
  std::vector<std::uint32_t> sizes;
  std::uint64_t total = 1;
  for (const Json& item : list->items) {
    const std::string text = item.integral ? std::to_string(item.integer) : item.text;
    std::uint32_t size = 0;  // upstream's files write sizes as texts
    const auto result = std::from_chars(text.data(), text.data() + text.size(), size);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size() || size == 0 ||
        size > kMaxNpus) {
      throw InputError(place(path, item) + ": logical-dims has to hold whole numbers of 1 or more");
    }
    sizes.push_back(size);
    total = std::min(total * size, kMaxNpus + 1);
  }
  if (total != npus) {
    throw InputError(place(path, *list) + ": logical-dims make " +
                     (total > kMaxNpus ? "more than 2^24" : std::to_string(total)) +
                     " NPUs, and the network has " + std::to_string(npus));
  }
  return sizes;
}

}  // namespace astra_sim::config
