#include "scheduler/registry.h"

#include <map>
#include <stdexcept>

#include "scheduler/impl/mlfq.h"
#include "scheduler/impl/orca.h"
#include "scheduler/impl/sarathi.h"
#include "scheduler/impl/sglang.h"
#include "scheduler/impl/static_batching.h"

namespace llmsim {

namespace {

using Make = std::unique_ptr<Scheduler> (*)(const BatchingConfig&, SequenceTable&, RequestLog&);

template <typename T>
std::unique_ptr<Scheduler> make(const BatchingConfig& config, SequenceTable& sequences,
                                RequestLog& log) {
  return std::make_unique<T>(config, sequences, log);
}

const std::map<std::string, Make> kSchedulers = {
    {"mlfq", make<Mlfq>},
    {"orca", make<Orca>},
    {"sarathi", make<Sarathi>},
    {"sglang", make<Sglang>},
    {"static", make<StaticBatching>},
};

}  // namespace

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kSchedulers) names.push_back(name);
  return names;
}

std::unique_ptr<Scheduler> make_scheduler(const BatchingConfig& config, SequenceTable& sequences,
                                          RequestLog& log) {
  const auto found = kSchedulers.find(config.scheduler);
  if (found == kSchedulers.end()) {
    std::string known;
    for (const std::string& name : scheduler_names()) known += (known.empty() ? "" : ", ") + name;
    throw std::invalid_argument("scheduler \"" + config.scheduler +
                                "\" is not known; known: " + known);
  }
  if (config.mlfq_levels < 1 || config.mlfq_levels > 30 || config.mlfq_tokens_per_iteration < 1)
    throw std::invalid_argument("mlfq needs 1 to 30 levels and at least one token per iteration");
  return found->second(config, sequences, log);
}

}  // namespace llmsim
