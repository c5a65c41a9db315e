// A group whose weights live elsewhere or whose decodes attend in memory: steps over several streams of a device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "evaluator.h"
#include "grid.h"
#include "streams.h"

namespace llmsim {

// Weights that a step copies in. Layers, prologue and head are the step's places, in order.
struct WeightStreaming {
  // By operator of the program and its executions in a step: time to copy that execution's weights, as early as a
  // buffer is free, also while the step before runs; 0: resident. An operator without an entry is resident.
  std::vector<std::vector<Ps>> ahead;
  // By operator: time by tokens (padded) of a copy that depends on the batch: experts that its tokens touch, rows of a
  // table. Empty: none. It starts with the step, or (`demand`) when the operator before has ended.
  std::vector<std::vector<Ps>> by_tokens;
  std::vector<bool> demand;
  // Places whose weights fit the buffers: a copy waits until the place, of those with copies, that many before it has
  // been computed.
  std::int32_t buffers = 2;
};

enum class Interleaving : std::uint8_t { kNever, kWhenShorter, kAlways };

// Processing in memory: decodes attend where their KV lies, spread over sets of channels.
struct PimConfig {
  std::vector<std::int64_t> context;  // tokens, ascending
  std::vector<Ps> ps;                 // attention of one sequence in one layer on its channels, at each context
  std::int32_t sets = 1;              // of channels; a sequence stays on its set until it is preempted
  Ps latency = 0;                     // of the way to the memory and back
  std::int64_t bytes_per_s = 1;       // of that way, in each direction
  std::int64_t query_bytes = 0;       // to the memory, per decode and layer: query, key and value
  std::int64_t output_bytes = 0;      // back, per decode and layer
  std::int64_t kv_bytes = 0;          // per token and layer: prompts' KV to the memory, their earlier context back
  bool concurrent = false;            // a channel is read and written while it computes (two row buffers)
  Interleaving interleaving = Interleaving::kNever;
};

// What a group keeps elsewhere.
struct OffloadConfig {
  WeightStreaming weights;
  PimConfig pim;
  bool has_pim = false, expanded = false;
};

struct OffloadCounters {
  Ps channel_busy = 0;  // of all sets and layers together
  std::int64_t to_memory_bytes = 0, from_memory_bytes = 0;
  std::int64_t interleaved_steps = 0;
  Ps stalled = 0;  // the device waited for a copy or for the memory
};

// Which set of channels holds the KV of which sequence.
class PimChannels {
 public:
  PimChannels(const PimConfig& config);
  // Gives every decode without a set the one with the least work; sequences keep theirs.
  void place(std::span<const Item> decodes);
  // The longest any set works on one layer, and the sum over all sets.
  struct Work {
    Ps longest = 0, sum = 0;
  };
  Work work(std::span<const Item> decodes);

 private:
  struct Home {
    std::int32_t set = -1;
    std::uint32_t epoch = 0;
  };
  Ps attention(const Item& item) const;
  bool settled(const Item& item) const {
    const auto at = static_cast<std::size_t>(item.request);
    return at < home_.size() && home_[at].set >= 0 && home_[at].epoch == item.epoch;
  }

  Grid<1> ps_;
  std::vector<Home> home_;  // by request
  std::vector<Ps> load_;    // by set
};

// Owns what the streams carry from step to step. Collectives stay on the compute stream.
class OffloadEvaluator final : public Evaluator {
 public:
  // `pim` may be null. Throws std::invalid_argument where the tables do not fit the program.
  OffloadEvaluator(std::shared_ptr<const Program> program, WeightStreaming weights, const PimConfig* pim,
                   std::unique_ptr<StreamTiming> timing);
  StepTimes run(const Batch& batch, Ps now) override;
  const OffloadCounters& counters() const { return counters_; }

 private:
  struct Place {  // prologue, layer or head: operators of the program in order
    std::vector<std::int32_t> ops;
    std::vector<std::int32_t> execution;  // which of the operator's executions this is
  };
  class Builder;

  // Prices of the operators of one lane, and after them of what its attention moves and computes in memory.
  enum Extra : std::int32_t { kPush, kInMemory, kPull, kContext, kPrompts, kNumExtras };
  std::size_t price_of(std::int32_t lane, std::int32_t what) const {
    return static_cast<std::size_t>(lane * (num_ops_ + kNumExtras) + what);
  }

  void find_places();
  AttentionPrices price_lane(std::int32_t lane, const Batch& batch, const Program::Place& place);
  void split(const Batch& batch);
  Ps computing(const StreamGraph& graph) const;
  Ps copy(std::int64_t bytes) const;

  WeightStreaming weights_;
  std::vector<Place> places_;
  StreamGraph whole_, halves_;  // one lane; two of half the batch each
  std::int32_t num_ops_ = 0, first_ahead_ = 0, first_by_tokens_ = 0;
  std::int64_t attention_layers_ = 0;
  std::vector<Ps> prices_;  // lanes: 0 the whole batch, 1 and 2 its halves; then copies
  std::unique_ptr<StreamTiming> timing_;
  StreamCarry carry_;
  Ps free_ = 0;
  std::unique_ptr<PimConfig> pim_;
  std::unique_ptr<PimChannels> channels_;
  Batch prefills_, half_[2];
  std::vector<Item> decodes_;
  OffloadCounters counters_;
};

}  // namespace llmsim
