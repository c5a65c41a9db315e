// Steps whose copies meet other transfers on the cluster's network: their ends are known when the
// copies have landed.
//
// The same rules as FoldedStreams, but that the ranks of a unit copy each for itself, and that a
// node which moves bytes lasts until the network says so. Equal to it to the picosecond where
// nobody else uses the links (tests/offload).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "network/shared_network.h"
#include "step/streams.h"

namespace llmsim {

// Where the bytes of a node go: between each rank of its unit and another memory.
struct Way {
  bool out = false;  // from the ranks; else to them
  Ps before = 0;     // latency that the network's route does not charge
  std::vector<std::vector<NetworkNodeId>> other;  // by unit: a place for each rank, or one for all
  Purpose purpose = Purpose::kWeights;
};

class ContendedStreams final : public TransferOwner {
 public:
  // What the prices mean, besides time: the bytes that a node moves, and on which way (-1: none, it
  // takes its time).
  struct Amounts {
    std::vector<Ps> ps;
    std::vector<std::int64_t> bytes;
    std::vector<std::int16_t> way;
    std::vector<bool> fixed;  // known before the step is given: the same in every step
  };
  // Times of a member's step, as soon as they are known: in order of the steps.
  using Timed = std::function<void(std::size_t member, Ps start, Ps end, Ps now)>;

  // `ranks` are the devices of each unit. Steps follow `usual` unless another graph is given whose
  // streams have as many nodes that move bytes, in the same order. Copies that are fixed run ahead
  // of the step that they are for.
  ContendedStreams(SharedNetwork& network, std::vector<std::vector<NetworkNodeId>> ranks,
                   std::vector<Way> ways, StreamCarry carry, const StreamGraph& usual,
                   Amounts amounts, Timed timed);
  // The next step, which may start at `now`: times and bytes by price, which are copied.
  void give(const StreamGraph& graph, std::span<const Ps> ps, std::span<const std::int64_t> bytes,
            Ps now);
  // Lets copies begin that run ahead; once, before anything else.
  void begin(Ps now) { advance(now); }
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;

 private:
  // A graph by stream and by what it leaves.
  struct Order {
    const StreamGraph* graph = nullptr;
    std::vector<std::vector<std::int32_t>> by_stream;
    std::vector<std::int32_t> left_by;    // node by place
    std::vector<std::int32_t> member_of;  // by node: the member whose step it ends; -1
  };
  struct Step {
    const Order* order = nullptr;
    bool given = false;
    Ps now = 0;
    std::vector<Ps> ps;
    std::vector<std::int64_t> bytes;
    std::vector<Ps> end, reached;    // by node; end is kNever until all ranks are through
    std::vector<std::int32_t> left;  // ranks that are not through
    std::size_t open = 0;            // nodes without an end
  };
  // One rank on one stream.
  struct Lane {
    Ps free = 0;
    std::int64_t step = 0;
    std::size_t next = 0;
    bool moving = false;
  };

  const Order& order_of(const StreamGraph& graph);
  std::size_t ranks_on(std::size_t stream) const { return lanes_[stream].size(); }
  void expect_step();
  void follow(Step& step, const Order& order) const;
  Step& step_at(std::int64_t number) { return steps_[static_cast<std::size_t>(number - first_)]; }
  Ps ready(const Step& step, std::int64_t number, const StreamNode& node) const;
  bool try_next(std::size_t stream, std::size_t rank, Ps now);
  void move(const StreamNode& node, const Step& step, std::size_t rank, Ps at, Ps now);
  void pass(std::size_t stream, std::size_t rank, Ps end, Ps now);
  void advance(Ps now);
  void forget();

  SharedNetwork& network_;
  std::vector<std::vector<NetworkNodeId>> devices_;
  std::vector<Way> ways_;
  Timed timed_;
  Amounts amounts_;  // of a step that is not given yet
  std::deque<Order> orders_;
  std::vector<std::vector<Lane>> lanes_;  // by stream
  std::deque<Step> steps_;                // the last one is not given yet
  std::int64_t first_ = 0;                // number of the oldest
  std::vector<Ps> places_;                // what the last forgotten step left
};

}  // namespace llmsim
