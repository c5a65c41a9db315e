#include "router/registry.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

// Each router's own file defines one of these.
RouterKind least_loaded();
RouterKind round_robin();
RouterKind uniformly_random();
RouterKind least_outstanding();
RouterKind fewest_tokens();
RouterKind power_of_two();
RouterKind session_affinity();
RouterKind prefix_aware();
RouterKind vllm_data_parallel();
RouterKind weighted();

namespace {

template <typename Named>
std::string names_of(const std::vector<Named>& all) {
  std::string text;
  for (const Named& one : all) text += (text.empty() ? "" : ", ") + one.name;
  return text;
}

template <typename Named>
const Named* find(const std::vector<Named>& all, const std::string& name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Named& one) { return one.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

const std::vector<RouterKind>& router_kinds() {
  static const std::vector<RouterKind> kinds = {
      least_loaded(), round_robin(),      uniformly_random(), least_outstanding(),  fewest_tokens(),
      power_of_two(), session_affinity(), prefix_aware(),     vllm_data_parallel(), weighted()};
  return kinds;
}

std::unique_ptr<Router> make_router(const std::string& name, const RouterContext& context,
                                    const OptionValues& given) {
  const RouterKind* kind = find(router_kinds(), name);
  if (kind == nullptr)
    throw std::invalid_argument("unknown router " + name + "; known: " + names_of(router_kinds()));
  OptionValues options;
  for (const RouterOption& option : kind->options) options[option.name] = option.fallback;
  for (const auto& [option_name, value] : given) {
    const RouterOption* option = find(kind->options, option_name);
    if (option == nullptr) {
      throw std::invalid_argument(
          "router " + name + " has no option " + option_name +
          (kind->options.empty() ? "" : "; it has " + names_of(kind->options)));
    }
    if (!(value >= option->low && value <= option->high))
      throw std::invalid_argument("option " + option_name + " of router " + name +
                                  " is out of range");
    options[option_name] = value;
  }
  return kind->make(context, options);
}

}  // namespace llmsim
