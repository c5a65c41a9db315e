// How the steps of a group, or the rounds of a lock-step group, get their times.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "program/drafter.h"
#include "program/program.h"
#include "step/node_spans.h"

namespace llmsim {

class SharedNetwork;

// When a step ran. What is neither collectives nor waiting (for other ranks, for a pipeline stage)
// nor transfers between attention and FFN (`m2n`) is computing.
struct StepTimes {
  Ps start = 0, end = 0, communication = 0, waiting = 0;
  std::int64_t padded_tokens = 0;
  Ps m2n = 0;
};

// What a group kept elsewhere has cost it.
struct OffloadCounters {
  int128 channel_busy = 0;  // ps of all sets and layers together
  std::int64_t to_memory_bytes = 0,
               from_memory_bytes = 0;  // of one rank and stage: queries, KV and their results
  std::int64_t host_bytes = 0;         // of one rank: activations to the node's processors and back
  std::int64_t drawn_bytes = 0;        // of one rank: copies whose sizes were sampled
  std::int64_t interleaved_steps = 0;
  Ps stalled = 0;  // the device waited for a copy or for another device
};

// What collectives and hand-overs of a group have met on the links that they share with others.
struct ContentionCounters {
  Ps slowed = 0;  // how long those took that took longer than alone
  Ps lost = 0;    // how much longer
};

// What a group has moved between attention and FFN, how long the steps of both sides took, and how
// long its own operators ran in them.
struct M2nCounters {
  std::int64_t sent_bytes = 0, received_bytes = 0;  // of one device of a stage
  Ps span = 0, computing = 0;
  Ps computing_dummies = 0;  // what of `computing` was in steps without requests of its members
};

// What a group's steps cost: its program and its drafter, and counts of what they ran. Executors
// write the counts.
class GroupCosts {
 public:
  // `drafter` proposes drafts on the group's devices; null: nobody does.
  explicit GroupCosts(std::shared_ptr<const Program> program,
                      std::shared_ptr<const Drafter> drafter = nullptr)
      : program_(std::move(program)), usage_(program_->new_usage()), drafter_(std::move(drafter)) {
    if (drafter_) drafter_usage_ = drafter_->new_usage();
  }

  const Program& program() const { return *program_; }
  const std::shared_ptr<const Program>& shared_program() const { return program_; }
  Program::Usage& usage() { return usage_; }
  const Program::Usage& usage() const { return usage_; }
  const Drafter* drafter() const { return drafter_.get(); }
  const Drafter::Usage& drafter_usage() const { return drafter_usage_; }
  Drafter::Usage& drafter_usage() { return drafter_usage_; }
  // Counts the operators of a step that may begin at `at`, and returns their price with what the
  // device's power limit adds: as much in each stage, behind its operators.
  Program::StepPrice price(const Batch& batch, const Program::Place& place,
                           const AttentionPrices& attention, std::span<const Ps> draws, Ps at) {
    Program::StepPrice price = program_->evaluate(batch, place, attention, usage_, draws);
    if (!program_->limits_power()) return price;
    const std::int64_t stages = program_->stages_of_power();
    const DeviceWork work = program_->device_work(batch, place, attention);
    const Ps longer = slowed_ >= 0
                          ? slowed_
                          : clock_.lengthen(program_->power_limit(), work, price.ps / stages, at);
    price.slowed_ps = longer * stages;
    price.ps += price.slowed_ps;
    usage_.slowed += price.slowed_ps;
    return price;
  }
  // From now on the power limit adds so much to each stage, as it did in a step that runs again.
  void slow_by(Ps stage_ps) { slowed_ = stage_ps; }
  // From now on passes take what `timer` says, instead of their prices.
  void set_pass_timer(std::unique_ptr<PassTimer> timer) { pass_timer_ = std::move(timer); }
  // Counts the passes that propose the batch's drafts, and returns their price.
  Program::StepPrice propose(const Batch& batch) {
    return drafter_ ? drafter_->price(batch, drafter_usage_, pass_timer_.get())
                    : Program::StepPrice{0, 0};
  }

  // From now on spans of nodes are kept, whose `group` is the given one.
  void record_spans(std::int32_t group) { spans_ = std::make_unique<NodeSpans>(group); }
  NodeSpans* spans() const { return spans_.get(); }  // null: not recorded

  OffloadCounters offload;
  ContentionCounters contention;
  M2nCounters m2n;

 private:
  std::shared_ptr<const Program> program_;  // shared by groups of the same layout
  Program::Usage usage_;
  std::shared_ptr<const Drafter> drafter_;
  Drafter::Usage drafter_usage_;
  std::unique_ptr<PassTimer> pass_timer_;
  DeviceClock clock_;
  Ps slowed_ = -1;  // negative: as the clock says
  std::unique_ptr<NodeSpans> spans_;
};

// A step's operators up to `from`, of their time alone, have run at `at`; what runs next takes
// `alone`.
struct Progress {
  Ps from = 0, alone = 0, at = 0;
};

// Hears when steps have run: once for each member and step, in the order of the member's steps.
class StepSink {
 public:
  // Called while the step begins, or at `now` when its last transfer has landed.
  virtual void timed(std::size_t member, const StepTimes& times, Ps now) = 0;
  // Called by executors that report progress, before each of the step's nodes begins.
  virtual void passed(const Progress& /*progress*/, Ps /*now*/) {}
  // Called by executors that report layers, before the step is timed: the member's attention of
  // that layer of the program, from 0, ends at `at`, in the step so many behind the oldest that is
  // not timed.
  virtual void attended(std::size_t /*member*/, std::int32_t /*behind*/, std::int32_t /*layer*/,
                        Ps /*at*/, Ps /*now*/) {}

 protected:
  ~StepSink() = default;
};

// When a step may start. Its host has the batch at `now`. Its devices may begin at `at`, and when
// the step so many before it has ended whose times are not known yet (`after`; 0: none).
struct StepStart {
  Ps now = 0, at = 0;
  std::int32_t after = 0;
};

// Runs the steps of one group, or the rounds of the members of a lock-step group.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Called once, before the first step: copies that run ahead of steps begin at `now`. `network`
  // may be null; throws std::invalid_argument where transfers of steps need it.
  virtual void start(SharedNetwork* /*network*/, Ps /*now*/) {}
  // Begins the next step: one batch for each member, all of which may start alike. The sink
  // outlives the step, the batches need not. Steps begin in the order of the calls, and end (after
  // their starts) in that order.
  virtual void begin(std::span<const Batch* const> batches, const StepStart& start,
                     StepSink& sink) = 0;
  // Whether the sink hears how far each step has come, whose times are not known when it begins.
  virtual bool reports_progress() const { return false; }
  // From now on the sink hears when the attention of each layer has ended; before the first step.
  // False: not by this executor.
  virtual bool report_layers() { return false; }
};

// The steps of a group alone, in one stage, whose operators run one after the other: their times
// are sums of prices. The host launches a step while the one before it runs.
class FoldedChain {
 public:
  StepTimes run(GroupCosts& costs, const Batch& batch, const StepStart& start) {
    const Program& program = costs.program();
    const Features features = program.rank_features(batch);
    const Program::Place place = program.place(batch, program.padded(features), 0);
    const Program::StepPrice operators =
        costs.price(batch, place, program.attention_layer(batch), {}, start.at);
    const Program::StepPrice drafts = costs.propose(batch);
    const Ps given = std::max(start.now, launched_);
    const Ps prepared = given + program.graphs().preparing(batch.host_work());
    launched_ = prepared + program.graphs().launching(program.graph_mode(features));
    const Ps begin = std::max({start.at, free_, prepared});
    const Ps computed = std::max(begin + operators.ps, launched_);
    costs.usage().launching += computed - begin - operators.ps;
    const Ps end = computed + drafts.ps + program.host_gap(batch.features.sequences);
    free_ = std::max(begin + 1, end);
    note_host(costs, {given, prepared, launched_});
    note_slowed(costs, begin + operators.ps - operators.slowed_ps, begin + operators.ps);
    return {begin, free_, operators.communication_ps + drafts.communication_ps, 0,
            program.padded(features)};
  }

 private:
  static void note_host(const GroupCosts& costs, const std::array<Ps, 3>& times) {
    if (costs.spans() == nullptr) return;
    const std::int64_t step = costs.usage().steps - 1;
    costs.spans()->add_alone(step, NodeRole::kPrepare, DeviceStream::kHost, times[0], times[1]);
    costs.spans()->add_alone(step, NodeRole::kLaunch, DeviceStream::kHost, times[1], times[2]);
  }
  static void note_slowed(const GroupCosts& costs, Ps start, Ps end) {
    if (costs.spans() == nullptr || start == end) return;
    costs.spans()->add_alone(costs.usage().steps - 1, NodeRole::kSlowed, DeviceStream::kCompute,
                             start, end);
  }

  Ps free_ = 0;      // when the device has done all steps so far
  Ps launched_ = 0;  // when the host has launched them
};

}  // namespace llmsim
