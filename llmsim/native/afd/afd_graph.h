// The step of attention and FFN members as a graph.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "afd/afd_config.h"
#include "step/step_graph.h"

namespace llmsim {

// Segments of several graphs, each made once.
class Segments {
 public:
  std::int32_t number(const Program& program, const Segment::Parts& parts);
  const std::vector<std::shared_ptr<const Segment>>& all() const { return all_; }

 private:
  std::map<std::pair<const Program*, Segment::Parts>, std::int32_t> number_;
  std::vector<std::shared_ptr<const Segment>> all_;
};

// With every operator of every layer (`full`), or the same times in fewer nodes. `programs` are
// those of the members, the attention's first, whose devices propose `drafts` at the end of a step.
// Throws std::invalid_argument where the bands do not fit the programs.
StepGraph afd_graph(const AfdConfig& config, std::span<const Program* const> programs, bool full,
                    bool drafts = false);
// The same, whose segments are among the given ones.
StepGraph afd_graph(const AfdConfig& config, std::span<const Program* const> programs, bool full,
                    bool drafts, Segments& segments);

// Counts the rows of each stage and lane, there and back, from 0 (StepNode::execution), in a graph
// without repeated blocks.
void number_rows(StepGraph& graph);

}  // namespace llmsim
