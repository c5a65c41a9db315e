// The part of YAML that network files use: a flat mapping of keys to scalars or to lists of
// scalars.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace astra_sim::config {

struct YamlEntry {
  std::string key;
  std::vector<std::string> values;  // one where it is a scalar
  bool list = false;
  int line = 0;
};

// Block and flow lists, comments, quotes, `---`. Throws model::InputError with name:line, also for
// anything nested.
std::vector<YamlEntry> parse_yaml(std::string_view text, const std::string& name);

}  // namespace astra_sim::config
