#include "scheduler/registry.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace llmsim {

namespace {

template <typename Kind>
std::vector<Kind>& kinds_of() {
  static std::vector<Kind> kinds;
  return kinds;
}

template <typename Kind>
void add(Kind kind) {
  std::vector<Kind>& kinds = kinds_of<Kind>();
  const auto place =
      std::ranges::upper_bound(kinds, std::string_view(kind.name), {},
                               [](const Kind& one) { return std::string_view(one.name); });
  kinds.insert(place, std::move(kind));
}

template <typename Named>
std::string names_of(const Named& all) {
  std::string names;
  for (const auto& one : all) names += (names.empty() ? "" : ", ") + std::string(one.name);
  return names;
}

void check_params(const std::string& owner, std::span<const Param> params,
                  const ParamValues& values) {
  for (const auto& [name, value] : values) {
    const auto found =
        std::ranges::find_if(params, [&](const Param& param) { return name == param.name; });
    if (found == params.end())
      throw std::invalid_argument(owner + " has no parameter \"" + name + "\"; it has " +
                                  (params.empty() ? "none" : names_of(params)));
    if (value < found->low || value > found->high)
      throw std::invalid_argument(owner + ": " + name + " is " + std::to_string(value) +
                                  ", but may be " + std::to_string(found->low) + " to " +
                                  std::to_string(found->high));
  }
}

template <typename Kind>
const Kind& find(const std::string& word, const std::string& name) {
  const std::vector<Kind>& kinds = kinds_of<Kind>();
  const auto found =
      std::ranges::find_if(kinds, [&](const Kind& kind) { return name == kind.name; });
  if (found == kinds.end())
    throw std::invalid_argument(word + " \"" + name + "\" is not known; known: " + names_of(kinds));
  return *found;
}

}  // namespace

RegisterScheduler::RegisterScheduler(SchedulerKind kind) { add(std::move(kind)); }
RegisterRanking::RegisterRanking(RankingKind kind) { add(std::move(kind)); }

const std::vector<SchedulerKind>& scheduler_kinds() { return kinds_of<SchedulerKind>(); }
const std::vector<RankingKind>& ranking_kinds() { return kinds_of<RankingKind>(); }

std::unique_ptr<Scheduler> make_scheduler(const SchedulerConfig& config, SequenceTable& sequences,
                                          RequestLog& log) {
  const auto& kind = find<SchedulerKind>("scheduler", config.scheduler);
  check_params("the scheduler " + config.scheduler, kind.params, config.parameters);
  return kind.make(config, sequences, log);
}

std::shared_ptr<Ranking> make_ranking(const std::string& name, const SchedulerConfig& config,
                                      const ParamValues& values) {
  const auto& kind = find<RankingKind>("ranking", name);
  check_params("the ranking " + name, kind.params, values);
  return kind.make(config, values);
}

}  // namespace llmsim
