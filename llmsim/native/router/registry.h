// The routers by name, with their options.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "router/router.h"

namespace llmsim {

using OptionValues = std::map<std::string, double>;

struct RouterOption {
  std::string name;
  double fallback, low, high;  // its value where none is given, and its range, both ends included
  std::string meaning;
};

struct RouterKind {
  std::string name, summary;
  std::vector<RouterOption> options;
  std::unique_ptr<Router> (*make)(const RouterContext& context, const OptionValues& options);
};

// Options give milliseconds; half a picosecond and more rounds up.
inline Ps ps_of_ms(double ms) { return static_cast<Ps>(ms * 1e9 + 0.5); }

// Every router that can be asked for by name; one file each.
const std::vector<RouterKind>& router_kinds();

// Options that are not given have their defaults. Throws std::invalid_argument, which says what is
// known, for an unknown name or option and for a value out of range.
std::unique_ptr<Router> make_router(const std::string& name, const RouterContext& context,
                                    const OptionValues& given);

}  // namespace llmsim
