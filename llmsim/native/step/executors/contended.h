// Steps whose transfers meet others on the cluster's network: their times are known when these have
// landed.
//
// The same rules as FoldedTiming, but that a node which moves bytes lasts until the network says
// so: copies of each rank apart, collectives and hidden states by the flows of CollectiveFlows.
// Equal to it to the picosecond where nobody else uses the links.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "network/shared_network.h"
#include "step/collective_flows.h"
#include "step/executors/folded.h"

namespace llmsim {

// Where the bytes of a node go: between each rank of its unit and another memory.
struct Route {
  bool out = false;  // from the ranks; else to them
  Ps before = 0;     // latency that the network's route does not charge
  std::vector<std::vector<NetworkNodeId>> other;  // by unit: a place for each rank, or one for all
  Purpose purpose = Purpose::kWeights;
};

class ContendedExecutor final : public StepExecutor, private TransferOwner {
 public:
  // Copies, activations and KV of a step that keeps something elsewhere. Throws
  // std::invalid_argument where the devices of a unit are not given.
  explicit ContendedExecutor(StepPricer pricer);
  // Collectives and hidden states of a step that does not, over `links`. Throws
  // std::invalid_argument where they do not fit the program.
  ContendedExecutor(StepPricer pricer, ContendedLinks links);

  void start(SharedNetwork* network, Ps now) override;
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;
  // A group alone in one stage, whose operators run one after the other.
  bool reports_progress() const override;
  bool report_layers() override;

 private:
  // A graph by stream and by what it leaves.
  struct Order {
    const StepGraph* graph = nullptr;
    std::vector<std::vector<std::int32_t>> by_stream;
    std::vector<std::int32_t> kept_by;    // node by slot
    std::vector<std::int32_t> member_of;  // by node: the member whose step it ends; -1
    LayerNodes layers;                    // empty: nobody hears of them
    std::vector<std::int32_t> layer_of;   // by node; -1: none
  };
  struct Step {
    const Order* order = nullptr;
    bool begun = false;
    StepStart start;          // `at` and `after` as known so far
    std::int64_t after = -1;  // nor before the end of the step of that number; -1: that is known
    Ps passed = 0;            // time alone of the nodes so far
    StepPrices prices;
    std::vector<Ps> end, reached;    // by node; end is kNever until all ranks are through
    std::vector<std::int32_t> left;  // ranks that are not through
    std::size_t open = 0;            // nodes on streams without an end
  };
  // One rank on one stream.
  struct Cursor {
    Ps free = 0;
    Ps began = 0;             // its present node
    std::int64_t number = 0;  // of its step
    Step* step = nullptr;
    std::size_t next = 0;
    bool moving = false;
  };
  // Members that have come to a collective of all of them.
  struct Meeting {
    std::size_t there = 0;
    Ps at = 0;
  };

  void lay_out();
  const Order& order_of(const StepGraph& graph);
  void expect_step();
  void follow(Step& step, const Order& order) const;
  Step& step_at(std::int64_t number) { return steps_[static_cast<std::size_t>(number - first_)]; }
  const StepGraph& choose(bool may_split);
  Ps end_of(const Step& step, std::int64_t number, std::int32_t node) const;
  Ps ready(const Step& step, std::int64_t number, const StepNode& node) const;
  bool try_next(std::size_t stream, std::size_t rank, Ps now);
  void copy(const StepNode& node, const Step& step, std::size_t rank, Ps begin, Ps now);
  void exchange(const StepNode& node, const Step& step, Ps alone, Ps begin, Ps now);
  void exchanged(const StepNode& node, CollectiveFlows::Took took, Ps at, Ps now);
  void slow_down(std::size_t member, std::int64_t step, CollectiveFlows::Took took);
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  void pass(std::size_t stream, std::size_t rank, Ps end, Ps now);
  void report(Step& step, const StepNode& node, Ps alone, Ps at, Ps now);
  // The rank is through with a node: its span is kept where the step alone does not tell it.
  void note_span(const StepNode& node, std::size_t rank, const Cursor& cursor, Ps end);
  // The node may have been the last one of a layer's attention.
  void note_layer(const Step& step, std::int64_t number, std::size_t node, Ps now);
  // Steps that have waited for the end of this one may start.
  void release_after(std::int64_t step, Ps end);
  void advance(Ps now);
  void forget();

  StepPricer pricer_;
  StepTimer timer_;  // what the step would take if everything were free
  std::unique_ptr<CollectiveFlows> flows_;
  ContendedLinks links_;
  bool reports_layers_ = false;
  SharedNetwork* network_ = nullptr;
  StepSink* sink_ = nullptr;                         // of all steps
  std::vector<std::vector<NetworkNodeId>> devices_;  // by unit
  std::vector<Route> routes_;
  std::deque<Order> orders_;
  std::vector<std::vector<Cursor>> cursors_;  // by stream
  std::vector<std::size_t> streams_;          // those that have nodes
  std::vector<Meeting> meetings_;             // by stage
  std::deque<Step> steps_;                    // the last one has not begun
  StepPrices ahead_;                          // of a step that has not begun
  std::int64_t first_ = 0;                    // number of the oldest
  std::vector<Ps> slots_;                     // what the last forgotten step left
  std::vector<std::deque<OpenStep>> open_;    // by member: steps whose ends are not known
};

}  // namespace llmsim
