// The compiled iteration of a domain: operators priced by the features of a batch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/attention_cost.h"
#include "program/batch.h"
#include "program/cuda_graphs.h"
#include "program/power_limit.h"
#include "program/sampled_table.h"

namespace llmsim {

// Attentions of one model: kernels whose times read the batch each in its own way, such as layers
// that see everything, a window, or what an indexer chose, and that indexer.
inline constexpr std::size_t kMaxAttentions = 6;
using AttentionPrices = std::array<AttentionPrice, kMaxAttentions>;
inline constexpr std::size_t kNumFeatures = 13;

// kGathered: the tokens of all members of a domain together, padding included. kDecodes: tokens of
// decodes, with the padding in a step of nothing else; kPrefills: tokens of prompts, of all ranks
// that share them. Those from kAdapterTokens on are the numbers of AdapterUse and EncoderUse.
enum class Feature : std::uint8_t {
  kTokens,
  kSequences,
  kGathered,
  kDecodes,
  kPrefills,
  kAdapterTokens,
  kAdapterRows,
  kAdapters,
  kAdapterExperts,
  kAdapterLoads,
  kAdapterReads,
  kEncoderTokens,
  kEncoderPairs
};
// A step may have none of what such an operator works on, and then leaves the operator out.
inline bool optional(Feature feature) {
  return feature != Feature::kTokens && feature != Feature::kGathered;
}
// kStageSend: the hidden states go to the next pipeline stage, while this one may begin the next
// batch.
enum class NodeKind : std::uint8_t { kCompute, kAttention, kCollective, kStageSend };

// An operator of the program, in execution order. `ps[x]` is one execution at feature value x.
struct Operator {
  std::string name;
  NodeKind kind = NodeKind::kCompute;
  Feature feature = Feature::kTokens;
  std::int32_t part = 0;  // operators of one part run in order, layer by layer
  std::int32_t repeat = 1;
  std::vector<Ps> ps;
  std::vector<std::uint8_t> provenance;  // same length as ps
  std::int32_t stage = 0;                // pipeline stage; stages ascend
  std::int32_t attention = 0;  // of an attention operator: which of the program's attentions it is
  std::shared_ptr<const SampledCostTable>
      sampled;  // its times, where they are sampled; `ps` then only says how far the rows reach
  // Numbers of the layers that run it, ascending, `repeat` of them; none: the first ones of its
  // part.
  std::vector<std::int32_t> layers;
  bool caches = false;  // a layer's KV or state is there when it has run
};

// What a stage runs before it comes to the next layer: operators in order, and which of its
// executions each of them is. What is in front of layers and behind them is a layer of its own.
struct ProgramLayer {
  std::int32_t stage = 0, part = 0, number = 0;
  std::vector<std::int32_t> ops, executions;
};

// What the data sheet allows: bytes that every step must read and operations that it must do, at
// peak rates (invariant 10).
struct LowerBound {
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes_per_token = 0;  // of all layers
  std::int64_t cached_kv_bytes =
      0;  // decodes that read no more than this may find it in the last-level cache
  std::int64_t bytes_per_s = 0;  // 0: unknown, not checked
  std::int64_t flops_per_token = 0;
  std::int64_t flops_per_s = 0;  // 0: unknown, not checked
};

// Busy time of the program's operators by provenance, multiplied out when the run ends.
struct OperatorTime {
  std::int32_t op = 0;
  int128 ps[kNumProvenances] =
      {};  // of all stages together, which work side by side: beyond the clock's range
  std::int64_t beyond_permille =
      1000;  // attention: how far its tables were continued, of their last point
};

// Numbers of a program's busy times behind its operators: what launches added, and what the power
// limit, if it added anything.
inline constexpr std::int32_t kTimesBeside = 2;

// Immutable after compile(); its usage counts belong to the group that evaluates it.
class Program {
 public:
  Program(std::vector<Operator> operators, std::vector<std::unique_ptr<AttentionCost>> attentions,
          std::vector<std::int32_t> padded_tokens, LowerBound floor, Ps host_gap,
          std::int64_t largest_graph = 0, std::int32_t context_ranks = 1);

  Program(Program&&) = default;
  Program(const Program&) = delete;

  const std::vector<Operator>& operators() const { return operators_; }
  // Tokens of the largest batch that a rank may have. Larger ones read beyond the tables.
  std::int64_t most_tokens() const { return static_cast<std::int64_t>(padded_tokens_.size()) - 1; }
  std::int64_t padded(std::int64_t tokens) const {
    return padded_tokens_[static_cast<std::size_t>(tokens)];
  }
  // What a batch of a group alone runs at.
  std::int64_t padded(const Features& f) const {
    const bool own = !graphs_.padded_decode.empty() && graphs_.decodes_alike(f);
    return (own ? graphs_.padded_decode : padded_tokens_)[static_cast<std::size_t>(f.tokens)];
  }
  // What every member of a domain runs at whose largest batch has so many tokens, in the mode that
  // they agree on.
  std::int64_t padded(std::int64_t tokens, GraphMode mode) const {
    const bool eager_decodes = mode == GraphMode::kNone && !graphs_.mixed_takes_decodes;
    const bool own = (mode == GraphMode::kFull || eager_decodes) && !graphs_.padded_decode.empty();
    return (own ? graphs_.padded_decode : padded_tokens_)[static_cast<std::size_t>(tokens)];
  }
  // Throws std::invalid_argument for sizes beyond the tables. Without it no step is bound by its
  // launches.
  void set_graphs(GraphRules graphs);
  const GraphRules& graphs() const { return graphs_; }
  std::int32_t num_stages() const { return operators_.empty() ? 1 : operators_.back().stage + 1; }
  // Which kind of graph a batch replays, if nobody else has a say.
  GraphMode graph_mode(const Features& f) const { return graphs_.mode(f); }
  // What one of the ranks that share prompts sees of a batch: its part of each prompt, and every
  // decode.
  Features rank_features(const Batch& batch) const {
    return context_ranks_ == 1 ? batch.features : share_of(batch).features;
  }
  // Where a step reads the tables: `tokens` padded, `gathered` those of all members of its domain.
  struct Place {
    std::int64_t tokens = 0, sequences = 0, gathered = 0, decodes = 0, prefills = 0;
    GraphMode mode = GraphMode::kNone;
    AdapterUse lora = {};
    EncoderUse encoder = {};
    // By Feature.
    std::array<std::int64_t, kNumFeatures> rows() const {
      std::array<std::int64_t, kNumFeatures> all{tokens, sequences, gathered, decodes, prefills};
      const auto counts = lora.counts();
      std::copy(counts.begin(), counts.end(), all.end() - counts.size() - EncoderUse::kCounts);
      all[kNumFeatures - 2] = encoder.tokens;
      all[kNumFeatures - 1] = encoder.pairs;
      return all;
    }
    std::int64_t at(Feature feature) const {
      switch (feature) {
        case Feature::kTokens:
          return tokens;
        case Feature::kSequences:
          return sequences;
        case Feature::kGathered:
          return gathered;
        case Feature::kDecodes:
          return decodes;
        case Feature::kPrefills:
          return prefills;
        default:
          return rows()[static_cast<std::size_t>(feature)];
      }
    }
  };
  Place place(const Features& f, std::int64_t padded_tokens, std::int64_t gathered) const {
    const std::int64_t rows = f.sequences + (drafts_have_rows_ ? f.drafts : 0);
    return {
        padded_tokens,    std::min(rows, static_cast<std::int64_t>(fused_[1].size()) - 1),
        gathered,         f.prefill_sequences > 0 ? f.decode_sequences + f.drafts : padded_tokens,
        f.prefill_tokens, graphs_.mode(f),
        f.lora,           f.encoder};
  }
  // The same for a batch whose prompts ranks share.
  Place place(const Batch& batch, std::int64_t padded_tokens, std::int64_t gathered) const {
    Place at = place(batch.features, padded_tokens, gathered);
    if (context_ranks_ > 1) at.mode = graphs_.mode(rank_features(batch));
    return at;
  }
  // One layer of each kind of attention.
  AttentionPrices attention_layer(const Batch& batch) const {
    return context_ranks_ == 1 ? attention_of(batch) : attention_of(share_of(batch));
  }
  // By number of a layer: when its KV and its state are there, after the start of the step that
  // `evaluate` counted as number `step`, for a group alone in one stage; kEndOfTime: it has none.
  // Replaces the contents of `out`.
  void cached_at(const Batch& batch, std::int64_t step, std::vector<Ps>& out) const;
  // One more than the number of the last layer that has KV or a state.
  std::int32_t cached_layers() const;
  // All layers of all stages, in the order in which they run.
  const std::vector<ProgramLayer>& layers() const { return layers_; }
  // What of a step's computing is an encoder's.
  Ps encoder_ps(const EncoderUse& use) const {
    return computing(Feature::kEncoderTokens, use.tokens) +
           computing(Feature::kEncoderPairs, use.pairs);
  }
  // Idle time of the device after a step of so many sequences, while the host works.
  Ps host_gap(std::int64_t sequences) const { return host_gap_ + sequences * host_sequence_; }
  // How long operators last whose kernels the host begins to launch when they begin.
  Ps launched(Ps operators, GraphMode mode) const {
    return std::max(operators, graphs_.launching(mode));
  }
  // What the host takes for each sequence of a step.
  void set_host_sequence(Ps each) { host_sequence_ = each; }
  // Without it devices keep their full clock. Throws std::invalid_argument for tables of other
  // lengths than the program's.
  void set_power(PowerTables power);
  bool limits_power() const { return power_.limit.window > 0; }
  const PowerLimit& power_limit() const { return power_.limit; }
  // Of a device of a stage, on average over the stages.
  DeviceWork device_work(const Batch& batch, const Place& place,
                         const AttentionPrices& attention) const;
  std::int64_t stages_of_power() const { return power_.stages; }
  // From now on a verified draft counts as a sequence in the tables: its logits are computed, too.
  void give_drafts_rows() { drafts_have_rows_ = true; }
  // The least time that the step's reads of weights and KV, or its operations, take at the data
  // sheet's peaks.
  Ps lower_bound_ps(const Features& features, std::int64_t tokens) const;

  struct Usage {
    std::array<std::vector<std::int64_t>, kNumFeatures>
        rows;                     // by Feature: how often each table row was read
    AttentionPrices attention{};  // one layer of each kind, summed; the farthest reach
    std::vector<int128> sampled;  // by operator, where any is sampled: its time so far
    std::int64_t steps = 0, steps_below_lower_bound = 0;
    std::array<std::int64_t, kNumGraphModes> steps_by_mode{};
    Ps launching = 0;  // by which steps lasted longer than they would with no launches to wait for
    Ps slowed = 0;     // and than at the full clock
    std::int64_t sequences = 0;           // scheduled, summed over steps
    std::int64_t attended_tokens_x2 = 0;  // twice the (new token, attended token) pairs
    std::int64_t kv_read_tokens =
        0;  // cached tokens that attention read, once per sequence and step
  };
  Usage new_usage() const;
  // Time of one step, and the parts of it that are collectives and that the power limit adds.
  struct StepPrice {
    Ps ps = 0, communication_ps = 0, slowed_ps = 0;
  };
  // Price of one iteration of a group alone: chains of operators that read the same feature were
  // fused into one table (docs/explanation/execution.md, A: this is equal to evaluating every
  // rank's nodes). Without the host's time.
  StepPrice evaluate(const Batch& batch, Usage& usage) const {
    const Place at = place(batch, padded(rank_features(batch)), 0);
    return evaluate(batch, at, attention_layer(batch), usage, {});
  }
  // The same at another place of the tables: how long a member of a domain works, wherever it waits
  // in between. `draws` are those of `draw` for this step; without them they are made.
  StepPrice evaluate(const Batch& batch, const Place& place, const AttentionPrices& attention,
                     Usage& usage, std::span<const Ps> draws) const;
  // The same of a drafter's pass, whose kernels are launched when it begins.
  StepPrice evaluate_pass(const Batch& batch, Usage& usage) const;
  // The two halves of it, for steps whose operators do not all read the tables at one place: counts
  // a step, and counts and prices one run of the operators there.
  void count(const Features& features, GraphMode mode, Usage& usage) const;
  StepPrice run(const Place& place, const AttentionPrices& attention, Usage& usage,
                std::span<const Ps> draws) const;
  // The times of the sampled operators in one step, one operator's layers after the other.
  void draw(const Place& place, std::int64_t step, std::vector<Ps>& draws) const;
  bool draws() const { return num_draws_ > 0; }
  std::int64_t num_draws() const { return num_draws_; }
  // Whether any operator's time depends on a feature.
  bool reads(Feature feature) const { return !fused_[static_cast<std::size_t>(feature)].empty(); }
  // Where an operator's draws begin; -1: it has none.
  std::int64_t first_draw(std::size_t op) const { return first_draw_[op]; }
  // One row per operator, in order, and those of kTimesBeside that there are.
  std::vector<OperatorTime> busy_time(const Usage& usage) const;

 private:
  // Of all operators over a feature, but for collectives.
  Ps computing(Feature feature, std::int64_t row) const {
    const auto& all = fused_[static_cast<std::size_t>(feature)];
    const auto& sent = collective_[static_cast<std::size_t>(feature)];
    const auto i = static_cast<std::size_t>(row);
    return (all.empty() ? 0 : all[i]) - (sent.empty() ? 0 : sent[i]);
  }
  void check_padding(const std::vector<std::int32_t>& padded_tokens) const;
  AttentionPrices attention_of(const Batch& batch) const {
    AttentionPrices prices;
    for (std::size_t i = 0; i < attentions_.size(); ++i) prices[i] = attentions_[i]->price(batch);
    return prices;
  }
  Batch share_of(const Batch& batch) const;
  void add_draws(const Place& place, std::span<const Ps> draws, Usage& usage,
                 StepPrice& price) const;

  void lay_out_layers();

  std::vector<Operator> operators_;
  std::vector<ProgramLayer> layers_;
  std::vector<std::unique_ptr<AttentionCost>> attentions_;
  std::array<std::int64_t, kMaxAttentions> attention_repeat_{};
  std::vector<std::int32_t> padded_tokens_;
  GraphRules graphs_;
  LowerBound floor_;
  Ps host_gap_;  // of a step, without its sequences
  Ps host_sequence_ = 0;
  bool drafts_have_rows_ = false;
  PowerTables power_;
  std::int32_t context_ranks_;            // ranks that share the tokens of prompts
  std::vector<std::int64_t> first_draw_;  // by operator
  std::int64_t num_draws_ = 0;
  std::array<std::vector<Ps>, kNumFeatures> fused_;       // by Feature; empty: no operator reads it
  std::array<std::vector<Ps>, kNumFeatures> collective_;  // collectives and hand-overs among them
};

}  // namespace llmsim
