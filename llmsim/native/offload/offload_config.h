// What a group keeps outside of its devices: weights, KV that a memory attends to, operators.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "network/shared_network.h"
#include "offload/pim_channels.h"
#include "program/sampled_table.h"

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
  std::int64_t rate_q16 = 1;  // as of a CopySource
  NetworkNodeId place = -1;   // on the network
  Ps before = 0;              // latency that the network's route does not charge
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

}  // namespace llmsim
