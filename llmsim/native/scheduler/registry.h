// The schedulers and rankings by name. Each registers itself beside its class, with its parameters
// and with what it cannot do, so that a new one needs no entry anywhere else.
#pragma once

#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "scheduler/config.h"
#include "scheduler/scheduler.h"

namespace llmsim {

// An engine option that has another default with a scheduler than the engine profile's.
struct OptionDefault {
  const char* option;
  std::variant<bool, std::int64_t> value;
};

// A feature that a scheduler does not go with, and why: a clause of a sentence.
struct Lack {
  const char* feature;  // a name of llmsim/config/engine/schedulers.py
  const char* reason;
};

struct SchedulerKind {
  const char* name = nullptr;
  std::unique_ptr<Scheduler> (*make)(const SchedulerConfig&, SequenceTable&, RequestLog&) = nullptr;
  std::span<const Param> params{};
  std::span<const OptionDefault> defaults{};
  std::vector<Lack> lacks{};
};

struct RankingKind {
  const char* name;
  std::shared_ptr<Ranking> (*make)(const SchedulerConfig&, const ParamValues&);
  std::span<const Param> params{};
};

// A static object of one of these beside a class makes the kind known.
struct RegisterScheduler {
  explicit RegisterScheduler(SchedulerKind kind);
};
struct RegisterRanking {
  explicit RegisterRanking(RankingKind kind);
};

// The kind of a class, with what the class declares: kParams, kDefaults, kLacks, and kCoreLacks of
// the class that it builds on.
template <typename T>
SchedulerKind kind_of(const char* name) {
  SchedulerKind kind;
  kind.name = name;
  kind.make = [](const SchedulerConfig& config, SequenceTable& sequences,
                 RequestLog& log) -> std::unique_ptr<Scheduler> {
    return std::make_unique<T>(config, sequences, log);
  };
  if constexpr (requires { T::kParams; }) kind.params = T::kParams;
  if constexpr (requires { T::kDefaults; }) kind.defaults = T::kDefaults;
  if constexpr (requires { T::kLacks; })
    kind.lacks.insert(kind.lacks.end(), std::begin(T::kLacks), std::end(T::kLacks));
  if constexpr (requires { T::kCoreLacks; })
    kind.lacks.insert(kind.lacks.end(), std::begin(T::kCoreLacks), std::end(T::kCoreLacks));
  return kind;
}

// Sorted by name.
const std::vector<SchedulerKind>& scheduler_kinds();
const std::vector<RankingKind>& ranking_kinds();

// Throw std::invalid_argument for a name that is not known, and for parameters that do not exist or
// are out of range.
std::unique_ptr<Scheduler> make_scheduler(const SchedulerConfig& config, SequenceTable& sequences,
                                          RequestLog& log);
std::shared_ptr<Ranking> make_ranking(const std::string& name, const SchedulerConfig& config,
                                      const ParamValues& values);

}  // namespace llmsim
