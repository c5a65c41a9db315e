// The model that proposes drafts at the end of a step.
#pragma once

#include <cstdint>
#include <memory>

#include "program.h"

namespace llmsim {

// The first pass runs over the step's own tokens, whose KV or hidden states the drafter needs too; every further draft
// is a pass of one token for each sequence of the step (vLLM 0.24: SpecDecodeBaseProposer.propose). Passes read
// contexts as if all verified drafts had held: which of them do is known only when the step ends.
class Drafter {
 public:
  // `slots`: tokens that the first pass has beyond the step's, for each sequence (1 for a draft model, whose input is
  // not shifted). `parallel`: one pass proposes all drafts, with a slot for each.
  Drafter(std::shared_ptr<const Program> first, std::shared_ptr<const Program> next, std::int32_t slots, bool parallel)
      : first_(std::move(first)), next_(std::move(next)), slots_(slots), parallel_(parallel) {}

  struct Usage {
    Program::Usage first, next;
  };
  Usage new_usage() const { return {first_->new_usage(), next_->new_usage()}; }
  // What proposing `batch.drafts_after` drafts takes.
  Program::StepPrice price(const Batch& batch, Usage& usage) const;
  const Program& first() const { return *first_; }
  const Program& next() const { return *next_; }

 private:
  std::shared_ptr<const Program> first_, next_;
  std::int32_t slots_;
  bool parallel_;
};

}  // namespace llmsim
