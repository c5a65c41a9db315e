// The model that proposes drafts at the end of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "program/program.h"

namespace llmsim {

struct ExpandedConfig;

// How long the passes of one group take by something else than their prices.
class PassTimer {
 public:
  virtual ~PassTimer() = default;
  // In the order in which passes run.
  virtual Ps took(const Batch& pass, bool first) = 0;
};

// The first pass runs over the step's own tokens, whose KV or hidden states the drafter needs too;
// every further draft is a pass of one token for each sequence of the step (vLLM 0.24:
// SpecDecodeBaseProposer.propose). Passes read contexts as if all verified drafts had held: which
// of them do is known only when the step ends.
class Drafter {
 public:
  // `slots`: tokens that the first pass has beyond the step's, for each sequence (1 for a draft
  // model, whose input is not shifted). `parallel`: one pass proposes all drafts, with a slot for
  // each. `branches`: tokens of each sequence in the passes behind the first one.
  Drafter(std::shared_ptr<const Program> first, std::shared_ptr<const Program> next,
          std::int32_t slots, bool parallel, std::int32_t branches)
      : first_(std::move(first)),
        next_(std::move(next)),
        slots_(slots),
        branches_(branches),
        parallel_(parallel) {}

  struct Usage {
    Program::Usage first, next;
  };
  Usage new_usage() const { return {first_->new_usage(), next_->new_usage()}; }
  // What proposing `batch.drafts_after` drafts takes; `timer` null: by the prices of the passes.
  Program::StepPrice price(const Batch& batch, Usage& usage, PassTimer* timer) const;
  // The passes that propose them, in their order.
  void each_pass(const Batch& batch,
                 const std::function<void(const Batch& pass, bool first)>& run) const;
  // From now on groups run the nodes of their passes in the engine, of the first pass and of the
  // others (--exact).
  void expand(std::shared_ptr<const ExpandedConfig> first,
              std::shared_ptr<const ExpandedConfig> next) {
    expanded_ = {std::move(first), std::move(next)};
  }
  const ExpandedConfig* first_expanded() const { return expanded_.first.get(); }
  const ExpandedConfig* next_expanded() const { return expanded_.second.get(); }
  std::shared_ptr<const Program> first_program() const { return first_; }
  std::shared_ptr<const Program> next_program() const { return next_; }
  const Program& first() const { return *first_; }
  const Program& next() const { return *next_; }

 private:
  std::shared_ptr<const Program> first_, next_;
  std::int32_t slots_, branches_;
  bool parallel_;
  std::pair<std::shared_ptr<const ExpandedConfig>, std::shared_ptr<const ExpandedConfig>> expanded_;
};

}  // namespace llmsim
