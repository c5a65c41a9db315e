// The comm-group file (JSON): group id -> NPUs in the order of the group's ring.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace astra_sim::config {

using Groups = std::map<std::uint32_t, std::vector<std::uint32_t>>;

// A path that contains "empty" means no groups. Throws model::InputError, also for an NPU that is
// not below `npus`.
Groups read_groups(const std::string& path, std::uint32_t npus);

}  // namespace astra_sim::config
