// Steps of attention and FFN members whose rows meet other transfers on the cluster's network.
//
// A port that others use, too, is a bundle of flows: one for each of the unit's devices, with the
// bytes that cross it. Rows on that port last until these have landed, and never less than alone.
// All else is as AfdExecutor has it, to the picosecond.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "afd/afd_executor.h"
#include "network/shared_network.h"
#include "step/step_runs.h"

namespace llmsim {

class ContendedAfdExecutor final : public StepExecutor, private StepMover, private TransferOwner {
 public:
  // `graph` is one of `afd_graph`. Throws std::invalid_argument for a port of a unit that does not
  // exist.
  ContendedAfdExecutor(AfdPricer pricer, StepGraph graph, std::vector<SharedPort> ports);

  void start(SharedNetwork* network) override;
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;

 private:
  struct Open {
    AfdStep step;
    StepStart start;
    std::vector<Ps> starts, ends;  // by member
    std::vector<Ps> at_once;       // by member; empty: not known yet
    std::size_t left = 0;          // members whose ends are not known
  };

  bool moves(std::int64_t step, std::int32_t node, Ps begin, Ps now) override;
  void member_ended(std::int64_t step, std::size_t member, Ps start, Ps end, Ps now) override;
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  std::size_t port_of(const StepNode& node) const;
  void note_span(std::int64_t step, const StepNode& node, Ps start, Ps end) const;

  AfdPricer pricer_;
  StepGraph graph_, nodes_;  // layers that are alike in one block; and each apart
  std::vector<SharedPort> ports_;
  std::vector<BundleId> bundles_;     // by port
  std::vector<std::size_t> port_at_;  // by node; none: the greatest number
  SharedNetwork* network_ = nullptr;
  StepSink* sink_ = nullptr;  // of all steps
  FoldedTiming timing_;
  AtOnce at_once_;
  StepCarry carry_;
  StepPrices prices_;
  std::deque<Open> open_;   // steps with members whose ends are not known
  std::int64_t first_ = 0;  // number of the oldest of them
  struct Moving {
    Ps begin = 0, alone = 0;  // when it would have ended alone
  };
  std::vector<Moving> moving_;  // by node
  StepRuns runs_;
};

}  // namespace llmsim
