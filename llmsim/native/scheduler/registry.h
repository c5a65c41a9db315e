// The schedulers by name; vLLM's, which has options of its own, is made from its own configuration.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler/batch_scheduler.h"

namespace llmsim {

// Sorted.
std::vector<std::string> scheduler_names();
// Throws std::invalid_argument for a name that is not among them, and for options out of range.
std::unique_ptr<Scheduler> make_scheduler(const BatchingConfig& config, SequenceTable& sequences,
                                          RequestLog& log);

}  // namespace llmsim
