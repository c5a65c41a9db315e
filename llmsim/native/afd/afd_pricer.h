// Prices the steps of attention and FFN members, and counts what runs.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "afd/afd_config.h"
#include "afd/wide/member_classes.h"
#include "step/step_prices.h"

namespace llmsim {

class AfdPricer {
 public:
  // The attention's members first.
  AfdPricer(std::vector<GroupCosts*> members, AfdConfig config);

  const AfdConfig& config() const { return config_; }
  std::size_t num_members() const { return members_.size(); }
  GroupCosts& member(std::size_t m) const { return *members_[m]; }
  bool attends(std::size_t member) const { return member < at(config_.attention_members); }
  // Of one device's port.
  std::int64_t bytes_per_s(std::size_t member) const {
    return attends(member) ? config_.attention_bytes_per_s : config_.ffn_bytes_per_s;
  }

  // Cuts the batches of the attention's members into lanes and counts the step.
  void begin(std::span<const Batch* const> batches);
  // Prices of the graph's nodes in the step that `begin` was called for.
  void fill(const StepGraph& graph, StepPrices& prices) const;
  // The same by kinds of members, whose keys name these segments.
  void fill(const MemberKinds& kinds, const KindKeys& keys, const Segments& segments,
            AfdPrices& prices) const;
  OpenStep open(std::size_t member) const;
  // What a member brings to a lane of the step, and that lane's batch.
  const MemberStep& lane(std::size_t lane, std::size_t member) const {
    return steps_[lane][member];
  }
  const Batch& batch(std::size_t lane, std::size_t member) const { return batches_[lane][member]; }
  // Whether the step has requests of an attention member, or for an FFN member of any.
  bool serves(std::size_t member) const;
  // The longest time that an FFN member computes in the step.
  Ps ffn_busy() const { return ffn_busy_; }

 private:
  struct Amount {
    Ps ps = 0;
    std::int64_t bytes = 0, units = 0;
  };
  const Program& program(std::size_t m) const { return members_[m]->program(); }
  void cut(std::span<const Batch* const> batches);
  void place_attention(std::size_t lane);
  void place_ffn(std::size_t lane);
  void count(std::span<const Batch* const> batches);
  void count_rows();
  Ps host_gap(std::size_t member) const;
  Ps preparing(std::size_t member, std::int32_t stage) const;
  using KnownSegments = std::vector<std::shared_ptr<const Segment>>;
  Amount amount(const KnownSegments& segments, const PriceKey& key) const;
  Amount operator_amount(const KnownSegments& segments, const PriceKey& key) const;
  Amount moved(const PriceKey& key) const;
  const PortBytes& port(std::size_t member, std::size_t hop, bool out) const;

  std::vector<GroupCosts*> members_;
  AfdConfig config_;
  // By lane and member.
  std::vector<std::vector<Batch>> batches_;
  std::vector<std::vector<MemberStep>> steps_;
  std::vector<Ps> draws_;                   // lane by lane, member by member
  std::vector<Program::StepPrice> prices_;  // by member
  std::vector<Program::StepPrice> drafts_;  // by member; of the FFN's: nothing
  std::vector<HostWork> work_;              // by member, of its batch
  std::vector<std::int64_t> padded_;        // by member, tokens of all lanes
  std::vector<std::int64_t> hop_runs_;      // by hop: layers that move it
  Ps ffn_busy_ = 0;
};

}  // namespace llmsim
