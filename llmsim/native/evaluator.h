// How a group's step gets its end: the folded program, or every rank's nodes in the engine.
#pragma once

#include <memory>

#include "program.h"

namespace llmsim {

class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // When a step that starts at `start` ends; > start.
  virtual Ps end(const Batch& batch, Ps start) = 0;
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
  Ps end(const Batch& batch, Ps start) override { return start + program_->evaluate(batch, usage_); }
};

}  // namespace llmsim
