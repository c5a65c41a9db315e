// How a group's step gets its times: the folded program, or every rank's nodes in the engine.
#pragma once

#include <algorithm>
#include <memory>

#include "program.h"

namespace llmsim {

// When a step ran. What is neither collectives nor waiting (for other ranks, for a pipeline stage) is computing.
struct StepTimes {
  Ps start = 0, end = 0, communication = 0, waiting = 0;
  std::int64_t padded_tokens = 0;
};

class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // A step that may start at `now`; steps come in the order of their starts, and end (> start) in that order.
  virtual StepTimes run(const Batch& batch, Ps now) = 0;
  // Whether a step may start before the one before it has ended.
  virtual bool overlaps() const { return false; }
  const Program& program() const { return *program_; }
  Program::Usage& usage() { return usage_; }
  const Program::Usage& usage() const { return usage_; }

 protected:
  explicit Evaluator(std::shared_ptr<const Program> program)
      : program_(std::move(program)), usage_(program_->new_usage()) {}

  std::shared_ptr<const Program> program_;  // shared by groups of the same layout
  Program::Usage usage_;
};

// A group alone, in one stage.
class FoldedEvaluator final : public Evaluator {
 public:
  explicit FoldedEvaluator(std::shared_ptr<const Program> program) : Evaluator(std::move(program)) {}
  StepTimes run(const Batch& batch, Ps now) override {
    const Program::StepPrice price = program_->evaluate(batch, usage_);
    const Ps start = std::max(now, free_);
    free_ = start + std::max<Ps>(1, price.ps + program_->host_gap());
    return {start, free_, price.communication_ps, 0, program_->padded(batch.features.tokens)};
  }

 private:
  Ps free_ = 0;  // when the device has done all steps so far
};

}  // namespace llmsim
