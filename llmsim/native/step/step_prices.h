// What the nodes of one step take and move, given the batches of its members.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/offload_config.h"
#include "offload/pim_channels.h"
#include "step/executors/executor.h"
#include "step/step_graph.h"

namespace llmsim {

// What a member brings to a step.
struct MemberStep {
  const Batch* batch = nullptr;
  Program::Place place;
  AttentionPrices attention;
};

// Of one step, by StepNode::price.
struct StepPrices {
  std::vector<Ps> ps;
  std::vector<std::int64_t>
      bytes;  // of copies and of activations on their way: that each rank moves
  std::vector<std::int64_t> units;  // of one operator: tokens or sequences that it works on
  std::vector<Ps> draws;            // sampled times, by operator and layer

  // One execution of a node: in a repeated block, that of its run `run`, from 0.
  Ps of(const StepGraph& graph, const StepNode& node, std::int32_t run) const {
    Ps sum = ps[at(node.price)];
    for (const Draws& one : graph.draws_of(node)) {
      const std::int64_t first = one.first + std::int64_t{run} * one.stride;
      for (std::int64_t k = 0; k < one.count; ++k)
        sum += draws[static_cast<std::size_t>(first + k)];
    }
    return sum;
  }
};

// What a node waits for besides other nodes: when the step's devices may begin, or its host has the
// batch.
inline Ps given_at(const StepNode& node, const StepStart& start) {
  if (node.role == NodeRole::kBegin) return start.at;
  return node.role == NodeRole::kPrepare ? start.now : 0;
}

// Sets the prices of the graph's nodes to what `amount` gives for their keys: ps, bytes and units.
template <class Amount>
void fill_prices(const StepGraph& graph, StepPrices& prices, const Amount& amount) {
  prices.ps.resize(graph.prices.size());
  prices.bytes.resize(graph.prices.size());
  prices.units.resize(graph.prices.size());
  for (std::size_t i = 0; i < graph.prices.size(); ++i) {
    const auto one = amount(graph.prices[i]);
    prices.ps[i] = one.ps;
    prices.bytes[i] = one.bytes;
    prices.units[i] = one.units;
  }
}

// What is known of a member's step before it has run.
struct OpenStep {
  Ps communication = 0;
  Ps busy =
      0;  // operators and drafts: what the step takes beyond it, and beyond its gap, is waiting
  std::int64_t padded_tokens = 0;
  Ps gap = 0;
  Ps drafts = 0;            // of `busy`
  std::int64_t number = 0;  // of the executor's steps
  // A collective has taken so much longer than its price.
  void slow_down(Ps lost) {
    communication += lost;
    busy += lost;
  }
  // Waiting is all that nothing else explains.
  StepTimes ended(Ps start, Ps end) const;
};

// Prices the steps of a group, or of the members of a lock-step group, once each, and counts what
// runs.
class StepPricer {
 public:
  // `offload` has an entry for each member, which differ in places only, or none. Throws
  // std::invalid_argument where its tables do not fit the program.
  StepPricer(std::vector<GroupCosts*> members,
             std::vector<std::shared_ptr<const OffloadConfig>> offload = {});

  std::size_t num_members() const { return members_.size(); }
  GroupCosts& member(std::size_t m) const { return *members_[m]; }
  const Program& program() const { return members_.front()->program(); }
  // Null: nothing is kept elsewhere.
  const OffloadConfig* offload() const { return offload_.empty() ? nullptr : offload_[0].get(); }
  const OffloadConfig& offload_of(std::size_t member) const { return *offload_[member]; }

  // Combines the batches and counts the step, whose devices may begin at `at`. True where it may be
  // split into halves, for which `fill` then gives prices, too.
  bool begin(std::span<const Batch* const> batches, Ps at);
  // Prices of the graph's nodes in the step that `begin` was called for.
  void fill(const StepGraph& graph, StepPrices& prices) const;
  // Prices that are the same in every step (StepNode::ahead); others are zero.
  StepPrices ahead(const StepGraph& graph) const;
  // Of the step, in the order of the members; for a step that runs as `graph`.
  OpenStep open(std::size_t member, const StepGraph& graph, const StepPrices& prices);
  // The member's step has run, whose kernels had been launched at `launched`: counts what it waited
  // for its launches, or for copies.
  StepTimes close(std::size_t member, const OpenStep& step, Ps start, Ps end, Ps launched);
  // By member: the halves of its batch, if the step may be split.
  const std::vector<std::array<Batch, 2>>& halves() const { return half_; }

 private:
  static constexpr std::size_t kNumLanes = 3;  // the whole batch, and its halves
  // What a lane's attention moves to the memory that computes, takes there, and moves back.
  struct InMemory {
    std::int64_t queries = 0, results = 0, context = 0, prompts = 0;  // bytes
    Ps ps = 0;
  };
  struct Amount {
    Ps ps = 0;
    std::int64_t bytes = 0, units = 0;
  };

  void combine(std::span<const Batch* const> batches);
  void count_memory(std::size_t member, const Batch& batch);
  AttentionPrices price_memory(std::size_t member, std::size_t lane, const Batch& batch);
  void count_copies(std::size_t member);
  bool split(std::span<const Batch* const> batches);
  Amount amount(const StepGraph& graph, const PriceKey& key) const;
  Amount operator_amount(const StepGraph& graph, const PriceKey& key) const;
  Ps host_gap(std::size_t member) const;
  Ps preparing(std::size_t member, std::int32_t stage) const;
  Amount copy(std::int32_t source, std::int64_t bytes) const;
  Amount copy_by_batch(const PriceKey& key) const;
  Amount through_memory(std::int64_t bytes) const;
  Amount through_host(const PriceKey& key) const;

  std::vector<GroupCosts*> members_;
  std::vector<std::shared_ptr<const OffloadConfig>> offload_;
  std::int64_t attention_layers_ = 0;
  std::vector<std::unique_ptr<PimChannels>> channels_;  // by member
  // The step at hand, by lane and member.
  std::array<std::vector<MemberStep>, kNumLanes> lanes_;
  std::array<std::vector<InMemory>, kNumLanes> in_memory_;
  std::array<std::vector<Ps>, kNumLanes> draws_;
  std::vector<Program::StepPrice> operators_, drafts_;  // by member
  std::vector<std::array<Batch, 2>> half_;
  Batch prefills_;
  std::vector<Item> decodes_;
  std::vector<Features> features_;
};

}  // namespace llmsim
