// Steps of attention and FFN members whose rows meet other transfers on the cluster's network.
//
// A port that others use, too, is a bundle of flows: one for each of the unit's devices, with the
// bytes that cross it. Rows on that port last until these have landed, and never less than alone.
// All else is as AfdExecutor has it, to the picosecond.
//
// Steps that nobody meets are folded, as AfdExecutor's. When somebody comes to a port, the port is
// open: the steps run again from their beginning, node by node, and rows on it that are on their
// way go on in the network. Rows on other ports are known alone, and their members stay one class,
// until somebody comes to these, too. A port closes when nothing moves on it any more: its later
// rows are known alone, so that the step runs to its end at once, and the next one is folded.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "afd/afd_executor.h"
#include "afd/wide/port_cut.h"
#include "afd/wide/timing.h"
#include "network/shared_network.h"

namespace llmsim {

class ContendedAfdExecutor final : public StepExecutor,
                                   private StepMover,
                                   private TransferOwner,
                                   private LinkWatcher {
 public:
  // The graphs are those of the pricer's members. With `exact` all rows go through the network.
  // Throws std::invalid_argument for a port of a unit that does not exist.
  ContendedAfdExecutor(AfdPricer pricer, std::unique_ptr<WideGraphs> graphs,
                       std::vector<SharedPort> ports, bool exact);

  void start(SharedNetwork* network, Ps now) override;
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;

 private:
  // One lane of a layer on an open port.
  struct Row {
    // kUnknown: nobody has met it, so that it is not in the network.
    enum class State : std::uint8_t { kUnknown, kExpected, kMoving, kLanded };
    State state = State::kUnknown;
    Ps begin = 0, alone = 0, end = 0;  // `alone`: when it would have ended alone
    std::int64_t bytes = 0;
    std::int64_t restarts = 0;  // as they were when the steps that run came to it
  };
  struct Open {
    AfdStep step;
    StepStart start;
    std::shared_ptr<const AfdPrices> prices;
    std::vector<Ps> starts, ends;  // by member
    std::vector<Ps> at_once;       // by member; empty: not known yet
    std::vector<bool> told;        // by member: whether the sink has heard
    std::size_t left = 0;          // members of which it has not
    bool moved = false;            // a row has begun in the network
    std::vector<Ps> free;          // when the streams were free before it; empty: not known yet
    std::vector<Ps> certain;       // by member: when its end is; kNever: not known yet
    std::vector<Ps> calls;         // when the executor hears that ends are certain
    std::vector<std::vector<Row>> rows;  // by port, in their order; empty: none was open
  };
  enum class Mode : std::uint8_t {
    kFolded,      // all ports are closed
    kRuns,        // steps run from node to node
    kCatchingUp,  // they begin to
    kClosing      // ports are about to be closed
  };
  // Rows of a lane in layers that are alike.
  struct RowNode {
    std::int32_t node, repeat;
  };

  Ps end_of(std::int64_t step, std::int32_t node, Ps begin, Ps alone, Ps now) override;
  void member_ended(std::int64_t step, std::size_t member, Ps start, Ps end, Ps now) override;
  std::int32_t last_moved(std::int64_t step) const override;
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  void met(std::span<const NetworkLinkId> links, Ps now) override;

  bool records() const { return pricer_.member(0).spans() != nullptr; }
  // Whether some ports may be open while others are closed: nobody looks at the links meanwhile.
  bool may_part() const { return network_->next_look() >= kHorizon; }
  // Whether ports may close while a step runs.
  bool may_rest() const { return folds_ && !records() && may_part(); }
  std::size_t port_of(const StepNode& node, std::size_t member) const;
  std::vector<std::size_t> open_ports() const;
  // Ports that are open, or have rows of open steps that were in the network.
  std::vector<std::size_t> ports_with_rows() const;
  bool all_open() const;
  bool none_open() const;
  Open& open(std::int64_t step) { return open_[static_cast<std::size_t>(step - first_)]; }
  const Open& open(std::int64_t step) const {
    return open_[static_cast<std::size_t>(step - first_)];
  }
  std::int64_t last() const { return first_ + static_cast<std::int64_t>(open_.size()) - 1; }
  bool is_open(std::int64_t step) const { return step >= first_ && step <= last(); }
  std::vector<Ps> free_before() const;
  // The first step that has not come to its end.
  std::int64_t oldest_left() const { return runs_.started() ? runs_.oldest() : first_; }

  bool may_close(std::int64_t step) const;
  void close_ports(Ps now);
  void close_if_silent(std::size_t port, Ps now);
  void open_all(Ps now);
  void act_on_met(Ps now);
  void run_again(Ps now);
  void choose_classes(std::int64_t number, std::span<const Ps> free);
  std::vector<bool> members_apart(std::span<const std::size_t> ports) const;
  std::unique_ptr<PortCut> cut_for(std::span<const std::size_t> ports);
  void finish(Ps now);

  Ps move(std::int64_t number, std::size_t port, std::size_t place, Ps begin, Ps alone,
          std::int64_t bytes, Ps now);
  void row_expected(std::int64_t number, std::uint64_t row, Ps now);
  void row_landed(std::int64_t number, std::uint64_t row, Ps now);
  void end_row(std::int64_t number, std::int32_t node, Ps end, Ps now);
  static std::uint64_t token_of(std::int64_t step, std::uint64_t what);

  void fold(std::int64_t step, Ps now);
  void expect_ends(std::int64_t step, Ps now);
  void expect_end(std::int64_t step, std::size_t member, Ps certain, Ps now);
  Ps certain_end(std::int64_t step, std::size_t member) const;
  void tell_certain(std::int64_t step, Ps now);
  void count_rows(const Open& step);
  void count_rows_alone(const Open& step, std::size_t port);
  void know_at_once(Open& step, std::span<const Ps> free);
  void tell(std::int64_t step, std::size_t member, Ps now);
  void note_span(std::int64_t step, const StepNode& node, Ps start, Ps end) const;

  AfdPricer pricer_;
  std::unique_ptr<WideGraphs> graphs_;
  std::vector<SharedPort> ports_;
  std::vector<BundleId> bundles_;     // by port
  std::vector<std::size_t> port_at_;  // by member, stage and direction; none: the greatest number
  std::vector<std::size_t> port_on_;  // by link of the network; the same
  std::vector<bool> is_open_;         // by port
  std::vector<std::size_t> met_;      // ports that somebody came to while steps ran
  std::vector<RowNode> folded_rows_;  // rows of the folded graph
  bool sends_share_[2] = {};          // whether ports out of FFN or attention members are shared
  SharedNetwork* network_ = nullptr;
  StepSink* sink_ = nullptr;  // of all steps
  bool exact_;
  bool folds_ = false;  // steps that nobody meets
  bool runs_now_ = false;
  Mode mode_ = Mode::kRuns;
  WideTiming timing_;
  AtOnce at_once_;
  std::vector<Ps> carry_;   // when streams are free after the steps that are folded
  std::deque<Open> open_;   // steps with members whose ends are not known
  std::int64_t first_ = 0;  // number of the oldest of them
  WideRuns runs_;
  std::int64_t restarts_ = 0;
  // By ports with rows, and whether all are open; few of many are met at once.
  std::map<std::pair<std::vector<std::size_t>, bool>, std::unique_ptr<PortCut>> cuts_;
  const PortCut* cut_ = nullptr;  // the one that runs
};

}  // namespace llmsim
