// The joint iteration of a domain: its members (data-parallel ranks) go through the pipeline's
// stages together.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "step/executor.h"

namespace llmsim {

// What a member brings to a joint iteration.
struct MemberStep {
  const Batch* batch = nullptr;
  Program::Place place;
  AttentionPrices attention;
  std::span<const Ps> draws;  // of the domain's program, the same for all members
};

// When the devices of each (member, stage) and their links to the next stage are free; survives the
// step.
struct Carry {
  std::vector<Ps> device, link;  // by member * stages + stage
};

// Times the nodes of one joint iteration. Both ways of doing it agree to the picosecond (invariant
// 9):
// - a stage's devices run its operators in order; an operator over gathered tokens starts on all
// members together, when
//   the slowest is there;
// - hidden states leave for the next stage as soon as the sender's last hand-over has arrived,
// beside its next batch.
class RoundTiming {
 public:
  virtual ~RoundTiming() = default;
  // `starts` and `ends` have one entry per member: when it begins its first stage, and ends its
  // last.
  virtual void run(std::span<const MemberStep> members, Ps now, Carry& carry, std::span<Ps> starts,
                   std::span<Ps> ends) = 0;
};

// Chains of operators between two meetings of the members are one table each; identical layers are
// leapt over as soon as they move all members alike (docs/explanation/execution.md, A6).
class FoldedRound final : public RoundTiming {
 public:
  explicit FoldedRound(const Program& program);
  void run(std::span<const MemberStep> members, Ps now, Carry& carry, std::span<Ps> starts,
           std::span<Ps> ends) override;

 private:
  // Operators in a row that either each member runs for itself, or all run together.
  struct Segment {
    bool together = false;
    std::array<std::int32_t, kMaxAttentions> attention{};
    std::array<std::vector<Ps>, kNumFeatures> ps;
    std::vector<std::int64_t> first_draw;  // of each sampled operator
    Ps own(const MemberStep& member) const;
    Ps sampled(const MemberStep& member, std::int64_t layer) const;
  };
  // Layers with the same operators.
  struct Band {
    std::int64_t first = 0, repeat = 0;
    bool together = false;
    std::vector<Segment> segments;
  };
  struct Stage {
    std::vector<Band> bands;
    std::vector<Ps> kv_transfer;  // by tokens; empty: the last stage
  };
  static std::vector<Band> bands_of(const Program& program, std::span<const Operator> part);
  void pass_layer(const Band& band, std::int64_t layer, std::span<const MemberStep> members);
  static Ps sampled(const Band& band, const MemberStep& member, std::int64_t layer);
  void pass_band(const Band& band, std::span<const MemberStep> members);

  std::vector<Stage> stages_;
  std::vector<Ps> at_, before_;  // where each member is, and was a layer ago
};

// What a member's step costs wherever it waits: its operators, and its drafts, which the last stage
// proposes.
struct StepCosts {
  Program::StepPrice operators, drafts;
  Ps gap = 0;  // of the host
};
// Counts the step, too.
StepCosts step_costs(GroupCosts& member, const MemberStep& step, std::span<const Ps> draws);
// Begun at `start`, its operators done at `done`.
StepTimes step_times(const StepCosts& costs, Ps start, Ps done, std::int64_t padded_tokens);

// Evaluates steps that are timed when they begin: features of the members, combined, priced, and
// timed.
class LockstepExecutor final : public StepExecutor {
 public:
  LockstepExecutor(std::vector<GroupCosts*> members, std::unique_ptr<RoundTiming> timing);
  // Needs a timing.
  void begin(std::span<const Batch* const> batches, Ps now, StepSink& sink) override;
  // What runs: with a captured graph all members at the size of the largest; if one has none,
  // nobody pads. Valid until the next call.
  std::span<MemberStep> combine(std::span<const Batch* const> batches);

 private:
  std::vector<GroupCosts*> members_;
  std::unique_ptr<RoundTiming> timing_;
  Carry carry_;
  std::vector<MemberStep> steps_;
  std::vector<Ps> draws_;
  std::vector<Ps> starts_, ends_;
};

// A drafter's passes, every rank's operators run by the engine.
class RoundPasses final : public PassTimer {
 public:
  RoundPasses(const Drafter& drafter, std::unique_ptr<RoundTiming> first,
              std::unique_ptr<RoundTiming> next)
      : first_(drafter.first_program(), std::move(first)),
        next_(drafter.next_program(), std::move(next)) {}
  Ps took(const Batch& pass, bool first) override {
    return (first ? first_ : next_).took(pass, now_);
  }

 private:
  class Passes final : StepSink {
   public:
    Passes(std::shared_ptr<const Program> program, std::unique_ptr<RoundTiming> timing)
        : costs_(std::move(program)), executor_({&costs_}, std::move(timing)) {}
    Ps took(const Batch& pass, Ps& now) {
      const Batch* one = &pass;
      executor_.begin({&one, 1}, now, *this);
      now = times_.end;
      return times_.end - times_.start;
    }

   private:
    void timed(std::size_t, const StepTimes& times, Ps) override { times_ = times; }
    GroupCosts costs_;
    LockstepExecutor executor_;
    StepTimes times_;
  };

  Passes first_, next_;
  Ps now_ = 0;  // one pass after the other, whenever they really run
};

}  // namespace llmsim
