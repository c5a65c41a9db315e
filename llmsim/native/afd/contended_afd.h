// Steps of attention and FFN members whose rows meet other transfers on the cluster's network.
//
// A port that others use, too, is a bundle of flows: one for each of the unit's devices, with the
// bytes that cross it. Rows on that port last until these have landed, and never less than alone.
// All else is as AfdExecutor has it, to the picosecond.
//
// Steps that nobody meets are folded, as AfdExecutor's. When somebody comes to a port, the steps
// that are folded run again from their beginning, node by node, and what of their rows is on its
// way goes on in the network.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "afd/afd_executor.h"
#include "network/shared_network.h"
#include "step/step_runs.h"

namespace llmsim {

class ContendedAfdExecutor final : public StepExecutor,
                                   private StepMover,
                                   private TransferOwner,
                                   private LinkWatcher {
 public:
  // `graph` is one of `afd_graph`. With `exact` all rows go through the network. Throws
  // std::invalid_argument for a port of a unit that does not exist.
  ContendedAfdExecutor(AfdPricer pricer, StepGraph graph, std::vector<SharedPort> ports,
                       bool exact);

  void start(SharedNetwork* network, Ps now) override;
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;

 private:
  struct Open {
    AfdStep step;
    StepStart start;
    StepPrices prices;
    std::vector<Ps> starts, ends;  // by member
    std::vector<Ps> at_once;       // by member; empty: not known yet
    std::vector<bool> told;        // by member: whether the sink has heard
    std::size_t left = 0;          // members of which it has not
    bool moved = false;            // a row has begun in the network
    // Of a folded step: when the streams were free before it, and by member when its end is
    // certain.
    std::vector<Ps> free, certain;
  };
  enum class Mode : std::uint8_t {
    kFolded,      // all open steps are, and somebody watches
    kRuns,        // all open steps run from node to node
    kCatchingUp,  // they begin to
    kFolding      // they are about to be folded
  };

  bool moves(std::int64_t step, std::int32_t node, Ps begin, Ps now) override;
  void member_ended(std::int64_t step, std::size_t member, Ps start, Ps end, Ps now) override;
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  void met(Ps now) override;
  std::size_t port_of(const StepNode& node) const;
  Open& open(std::int64_t step) { return open_[static_cast<std::size_t>(step - first_)]; }
  std::int64_t last() const { return first_ + static_cast<std::int64_t>(open_.size()) - 1; }
  bool may_fold(std::int64_t step);
  void fold_all(Ps now);
  void run_again(Ps now, std::vector<Ps> free);
  void fold(std::int64_t step, Ps now);
  void expect_ends(std::int64_t step, Ps now);
  void count_rows(const Open& step);
  void know_at_once(Open& step);
  void tell(std::int64_t step, std::size_t member, Ps now);
  void note_span(std::int64_t step, const StepNode& node, Ps start, Ps end) const;

  AfdPricer pricer_;
  StepGraph graph_, nodes_;  // layers that are alike in one block; and each apart
  std::vector<SharedPort> ports_;
  std::vector<BundleId> bundles_;     // by port
  std::vector<std::size_t> port_at_;  // by node; none: the greatest number
  // Rows of the folded graph on ports, with how often they run.
  struct Rows {
    std::size_t node, port;
    std::int64_t repeat;
  };
  std::vector<Rows> rows_;
  SharedNetwork* network_ = nullptr;
  StepSink* sink_ = nullptr;  // of all steps
  bool exact_;
  bool folds_ = false;  // steps that nobody meets
  Mode mode_ = Mode::kRuns;
  FoldedTiming timing_;
  AtOnce at_once_;
  StepCarry carry_;  // of the steps that are folded, or of those before the oldest one that runs
  std::deque<Open> open_;   // steps with members whose ends are not known
  std::int64_t first_ = 0;  // number of the oldest of them
  struct Moving {
    Ps begin = 0, alone = 0;  // when it would have ended alone
  };
  std::vector<Moving> moving_;  // by node
  StepRuns runs_;
};

}  // namespace llmsim
