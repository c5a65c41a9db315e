// How a group's step gets its times: the folded program, or every rank's nodes in the engine.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "program/drafter.h"
#include "program/program.h"

namespace llmsim {

class SharedNetwork;

// When a step ran. What is neither collectives nor waiting (for other ranks, for a pipeline stage)
// is computing.
struct StepTimes {
  Ps start = 0, end = 0, communication = 0, waiting = 0;
  std::int64_t padded_tokens = 0;
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // A step that may start at `now`; steps come in the order of their starts, and end (> start) in
  // that order. Times without an end (kNever) come later, when what the step moves over the
  // cluster's network has landed.
  virtual StepTimes run(const Batch& batch, Ps now) = 0;
  // Whether a step may start before the one before it has ended.
  virtual bool overlaps() const { return false; }
  // Whether its operators run one after the other, as the program prices them.
  virtual bool follows_program() const { return !overlaps(); }
  // True if step transfers use shared links. The loop then calls use_network() before the first
  // step; completion times are reported in step order.
  virtual bool contends() const { return false; }
  using Timed = std::function<void(const StepTimes& times)>;
  virtual void use_network(SharedNetwork&, Timed) {}
  const Program& program() const { return *program_; }
  Program::Usage& usage() { return usage_; }
  const Program::Usage& usage() const { return usage_; }
  // Who proposes drafts on the group's devices; before the first step. Null: nobody.
  void set_drafter(std::shared_ptr<const Drafter> drafter) {
    drafter_ = std::move(drafter);
    if (drafter_) drafter_usage_ = drafter_->new_usage();
  }
  const Drafter* drafter() const { return drafter_.get(); }
  const Drafter::Usage& drafter_usage() const { return drafter_usage_; }
  Program::StepPrice propose(const Batch& batch) {
    return drafter_ ? drafter_->price(batch, drafter_usage_, pass_timer_.get())
                    : Program::StepPrice{0, 0};
  }
  void set_pass_timer(std::unique_ptr<PassTimer> timer) { pass_timer_ = std::move(timer); }

 protected:
  explicit StepExecutor(std::shared_ptr<const Program> program)
      : program_(std::move(program)), usage_(program_->new_usage()) {}

  std::shared_ptr<const Program> program_;  // shared by groups of the same layout
  Program::Usage usage_;
  std::shared_ptr<const Drafter> drafter_;
  Drafter::Usage drafter_usage_;
  std::unique_ptr<PassTimer> pass_timer_;
};

// A group alone, in one stage.
class FoldedExecutor final : public StepExecutor {
 public:
  explicit FoldedExecutor(std::shared_ptr<const Program> program)
      : StepExecutor(std::move(program)) {}
  StepTimes run(const Batch& batch, Ps now) override {
    Program::StepPrice price = program_->evaluate(batch, usage_);
    if (drafter_) {
      const Program::StepPrice drafts = propose(batch);
      price.ps += drafts.ps;
      price.communication_ps += drafts.communication_ps;
    }
    const Ps start = std::max(now, free_);
    free_ = start + std::max<Ps>(1, price.ps + program_->host_gap());
    return {start, free_, price.communication_ps, 0,
            program_->padded(program_->rank_features(batch))};
  }

 private:
  Ps free_ = 0;  // when the device has done all steps so far
};

}  // namespace llmsim
