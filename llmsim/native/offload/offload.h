// Groups that keep weights elsewhere, or run operators on other devices than their own: steps over
// several streams.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "offload/pim_channels.h"
#include "step/contended_streams.h"
#include "step/lockstep_step.h"
#include "step/streams.h"

namespace llmsim {

// A memory that weights are copied from.
struct CopySource {
  Ps latency = 0;  // of a copy
  std::int64_t rate_q16 =
      1;  // 2^-16 bytes/s to each rank, when all ranks of a stage copy and nobody else does
  NetworkNodeId place = -1;  // on the network
  Ps before = 0;             // latency that the network's route does not charge
};

// Weights that a step copies in. Layers, prologue and head are the step's places, in order.
struct WeightStreaming {
  std::vector<CopySource> sources;
  // By operator of the program and its executions in a step: bytes of that execution's weights,
  // copied as early as a buffer is free, also while the step before runs; 0: resident. An operator
  // without an entry is resident.
  std::vector<std::vector<std::int64_t>> ahead;
  std::vector<std::vector<std::int32_t>> ahead_from;  // of each: the source
  // By operator: bytes by its feature (padded) of a copy that depends on the batch: experts that
  // its tokens touch, rows of a table; or sampled by execution. Empty: none. It starts with the
  // step, or (`demand`) when the operator before has ended.
  std::vector<std::vector<std::int64_t>> by_batch;
  std::vector<std::shared_ptr<const SampledCostTable>> sampled;
  std::vector<std::int32_t> by_batch_from;
  std::vector<bool> demand;
  // Places whose weights fit the buffers: a copy waits until the place, of those of its stage with
  // copies, that many before it has been computed.
  std::int32_t buffers = 2;
};

enum class Interleaving : std::uint8_t { kNever, kWhenShorter, kAlways };

// Operators that the node's processors run, and what goes there and back: bytes by the operator's
// feature.
struct HostOperators {
  std::vector<bool> runs;  // by operator of the program; empty: none
  std::vector<std::int64_t> input_bytes, output_bytes;
  Ps latency = 0;
  std::int64_t bytes_per_s = 1;
  NetworkNodeId place = -1;  // on the network
  Ps before = 0;             // latency that the network's route does not charge
};

// What a group keeps elsewhere.
struct OffloadConfig {
  WeightStreaming weights;
  PimConfig pim;
  bool has_pim = false;
  HostOperators host;
  // Two halves of a batch alternate: one computes while the other attends elsewhere.
  Interleaving interleaving = Interleaving::kNever;
  bool expanded = false;
  // Something else may use the same links or memories: everything that moves is a transfer on the
  // network.
  bool shared = false;
  std::vector<std::vector<NetworkNodeId>> ranks;  // by stage: the devices, on the network
};

// The groups of a domain (one, or data-parallel ranks in lock-step), in any number of stages. Owns
// what the streams carry from step to step. Collectives stay on the compute streams.
class OffloadDomain final : public StepExecutor {
 public:
  // `configs` have an entry per member and differ in places only. Throws std::invalid_argument
  // where the tables do not fit the program.
  OffloadDomain(std::vector<GroupCosts*> members,
                std::vector<std::shared_ptr<const OffloadConfig>> configs);
  void start(SharedNetwork* network) override;
  void begin(std::span<const Batch* const> batches, Ps now, StepSink& sink) override;
  // The nodes of the run's step of that number (from 1), if nothing ran before and nobody else
  // moves anything.
  struct Described {
    const StreamGraph* graph = nullptr;
    std::vector<Ps> ps, end;                   // of each node
    std::vector<std::int64_t> bytes;           // that it moves
    std::vector<std::array<Batch, 2>> halves;  // by member, where two halves alternate
  };
  Described describe(std::span<const Batch* const> batches, std::int64_t step);

 private:
  struct Place {  // prologue, layer, head or hand-over: operators of the program in order
    std::int32_t stage = 0;
    std::vector<std::int32_t> ops;
    std::vector<std::int32_t> execution;  // which of the operator's executions this is
  };
  class GraphBuilder;

  // Table of prices:
  //   index               | price
  //   kNothing, kGap      | zero; the gap between steps
  //   lane_price          | an operator of a lane
  //   extra_price         | what a lane's attention moves to memory, computes there, and moves back
  //   to_host and back    | activations of a lane on their way to the host and back
  //   sampled, by lane    | operators whose times are sampled
  //   copies              | weights copied to the device
  enum Extra : std::int32_t { kPush, kInMemory, kPull, kContext, kPrompts, kNumExtras };
  // Ways behind those of the sources of weights: to the memory that computes and to the host, and
  // back.
  enum MemoryWay : std::int32_t { kToMemory, kFromMemory, kToHost, kFromHost };
  static constexpr std::int32_t kNothing = 0, kGap = 1,
                                kNumLanes = 3;  // lanes: the whole batch, and its halves
  std::size_t lane_price(std::size_t member, std::int32_t lane, std::int32_t what) const;
  std::size_t extra_price(std::size_t member, std::int32_t lane, Extra what) const;
  std::size_t to_host(std::size_t member, std::int32_t lane, std::int32_t op) const;
  std::size_t from_host(std::size_t member, std::int32_t lane, std::int32_t op) const;
  std::size_t op_price(std::size_t member, std::int32_t lane, std::int32_t op,
                       std::int32_t execution) const;
  std::size_t ahead_price(std::int32_t op, std::int32_t execution) const;
  std::size_t batch_price(std::size_t member, std::int32_t op, std::int32_t execution) const;

  const OffloadConfig& config() const { return *configs_.front(); }
  const Program& program() const { return members_.front()->program(); }
  bool on_host(std::int32_t op) const {
    const auto at = static_cast<std::size_t>(op);
    return at < config().host.runs.size() && config().host.runs[at];
  }
  void find_places();
  void lay_out_prices();
  void price_ahead();
  void set_copy(std::size_t price, std::int32_t source, std::int64_t bytes);
  void set_way(std::size_t price, std::int64_t bytes, std::int32_t way, Ps latency,
               std::int64_t bytes_per_s);
  std::vector<Way> ways() const;
  AttentionPrices price_memory(std::size_t member, std::int32_t lane, const Batch& batch);
  void price_lane(std::size_t member, std::int32_t lane, const MemberStep& step,
                  std::span<const Ps> draws);
  void price_copies(std::size_t member, const MemberStep& step);
  void count_memory(std::size_t member, const Batch& batch);
  bool split(std::span<const Batch* const> batches);
  bool price(std::span<const Batch* const> batches);
  void measure(const StreamGraph& graph, std::size_t member);
  const StreamGraph& choose(bool may_split, Ps now, std::span<Ps> starts, std::span<Ps> ends);

  std::vector<GroupCosts*> members_;
  std::vector<std::shared_ptr<const OffloadConfig>> configs_;
  std::vector<Place> places_;
  StreamGraph whole_, halves_;  // one lane; two of half the batch each
  std::int32_t num_ops_ = 0, stages_ = 1;
  std::int64_t attention_layers_ = 0, num_draws_ = 0;
  std::size_t first_sampled_ = 0, first_by_batch_ = 0;
  std::vector<std::size_t> ahead_of_, drawn_copy_of_;  // by operator: where its executions begin
  ContendedStreams::Amounts amounts_;
  std::unique_ptr<StreamTiming> timing_;
  StreamCarry carry_;
  std::vector<std::unique_ptr<PimChannels>> channels_;  // by member
  // The step at hand.
  LockstepExecutor features_;
  std::span<MemberStep> steps_;
  std::vector<Ps> half_draws_, starts_, ends_;
  std::vector<std::array<Batch, 2>> half_;
  Batch prefills_;
  std::vector<Item> decodes_;
  std::vector<StepTimes> open_;
  std::vector<Ps> busy_;
  // Steps whose ends are not known yet, by member; what a step waited is its length without this.
  struct Pending {
    StepTimes times;
    Ps busy = 0;
  };
  StepTimes timed(std::size_t member, Pending pending, Ps start, Ps end);
  std::unique_ptr<ContendedStreams> shared_;
  std::vector<std::deque<Pending>> pending_;
  StepSink* sink_ = nullptr;  // of all steps
};

}  // namespace llmsim
