// The step of attention and FFN members as a graph.
#pragma once

#include <span>

#include "afd/afd_config.h"
#include "step/step_graph.h"

namespace llmsim {

// With every operator of every layer (`full`), or the same times in fewer nodes. `programs` are
// those of the members, the attention's first, whose devices propose `drafts` at the end of a step.
// Throws std::invalid_argument where the bands do not fit the programs.
StepGraph afd_graph(const AfdConfig& config, std::span<const Program* const> programs, bool full,
                    bool drafts = false);

// Counts the rows of each stage and lane, there and back, from 0 (StepNode::execution), in a graph
// without repeated blocks.
void number_rows(StepGraph& graph);

}  // namespace llmsim
