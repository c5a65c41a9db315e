// How a group's step gets its end: the folded program, or every rank's nodes in the engine.
#pragma once

#include <memory>

#include "program.h"

namespace llmsim {

class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // When a step that starts at `start` ends (> start), and how much of it is collectives.
  struct StepEnd {
    Ps end = 0, communication_ps = 0;
  };
  virtual StepEnd end(const Batch& batch, Ps start) = 0;
  const Program& program() const { return *program_; }
  const Program::Usage& usage() const { return usage_; }

 protected:
  explicit Evaluator(std::shared_ptr<const Program> program)
      : program_(std::move(program)), usage_(program_->new_usage()) {}

  std::shared_ptr<const Program> program_;  // shared by groups of the same layout
  Program::Usage usage_;
};

class FoldedEvaluator final : public Evaluator {
 public:
  explicit FoldedEvaluator(std::shared_ptr<const Program> program) : Evaluator(std::move(program)) {}
  StepEnd end(const Batch& batch, Ps start) override {
    const Program::StepPrice price = program_->evaluate(batch, usage_);
    return {start + price.ps, price.communication_ps};
  }
};

}  // namespace llmsim
