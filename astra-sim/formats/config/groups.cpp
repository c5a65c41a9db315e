#include "formats/config/groups.h"

#include <algorithm>
#include <charconv>

#include "formats/text/json.h"
#include "model/base/input_error.h"

namespace astra_sim::config {

namespace {

using model::InputError;
constexpr std::uint32_t kMaxId = (1u << 30) - 1;

std::uint32_t group_id(const std::string& path, const std::string& key, const Json& value) {
  std::uint32_t id = 0;
  const char* end = key.data() + key.size();
  const auto result = std::from_chars(key.data(), end, id);
  if (result.ec != std::errc() || result.ptr != end || id == 0 || id > kMaxId) {
    throw InputError(place(path, value) + ": group \"" + key +
                     "\" has no valid id; a whole number from 1, below 2^30, was expected" +
                     (key == "0" ? " (0 means all NPUs)" : ""));
  }
  return id;
}

}  // namespace

Groups read_groups(const std::string& path, std::uint32_t npus) {
  Groups groups;
  if (path.find("empty") != std::string::npos) return groups;
  const Json json = read_json(path);
  if (json.kind != Json::Kind::kObject)
    throw InputError(place(path, json) + ": expected an object of id: [NPUs]");
  for (const auto& [key, value] : json.members) {
    std::vector<std::uint32_t>& members = groups[group_id(path, key, value)];
    members.clear();
    if (value.kind != Json::Kind::kArray || value.items.empty()) {
      throw InputError(place(path, value) + ": group " + key + " has to be a list of NPUs");
    }
    for (const Json& item : value.items) {
      if (!item.integral || item.integer < 0 || item.integer >= npus) {
        throw InputError(place(path, item) + ": group " + key +
                         " names an NPU that does not exist; 0 to " + std::to_string(npus - 1) +
                         " do");
      }
      const auto npu = static_cast<std::uint32_t>(item.integer);
      if (std::find(members.begin(), members.end(), npu) != members.end()) {
        throw InputError(place(path, item) + ": group " + key + " names NPU " +
                         std::to_string(npu) + " twice");
      }
      members.push_back(npu);
    }
  }
  return groups;
}

}  // namespace astra_sim::config
