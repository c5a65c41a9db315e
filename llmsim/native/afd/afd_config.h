// Attention-FFN disaggregation: attention members, whose schedulers make the batches, and FFN
// members, which compute every layer's FFN for all of them.
//
// A batch is cut into micro-batches ("lanes"), in the order of its tokens. In every layer a lane is
// computed by its attention member, travels to the FFN members (M2N), waits there for the same lane
// of all attention members, and travels back after the FFN; meanwhile the attention member runs its
// other lanes. Rows of a lane are dealt evenly over the FFN members, and in each of them over its
// columns of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "network/shared_network.h"
#include "program/program.h"

namespace llmsim {

// Bytes over one device's port: `bytes` for every `units` of a feature, rounded up.
struct PortBytes {
  Feature feature = Feature::kTokens;
  std::int64_t bytes = 0, units = 1;
  std::int64_t at(const Program::Place& place) const {
    return (place.at(feature) * bytes + units - 1) / units;
  }
};

// What one kind of layer moves between the two sides.
struct M2nHop {
  PortBytes attention_out, ffn_in, ffn_out, attention_in;
};

// One layer: operators of the attention's and of the FFN's program, by index. Without those of the
// FFN, nothing travels.
struct AfdLayer {
  std::vector<std::int32_t> attention, ffn;
  std::int32_t hop = 0;  // among AfdConfig::hops
};

// Layers that follow each other, `repeat` times.
struct AfdBand {
  std::int32_t stage = 0;
  std::int32_t repeat = 1;
  std::vector<AfdLayer> layers;
};

struct AfdConfig {
  std::int32_t attention_members = 1;  // the first ones; the others compute FFNs
  std::int32_t lanes = 1;
  std::int32_t columns = 1;  // of an FFN member: sets of ranks that get rows of their own
  std::int32_t sharing = 1;  // of these, those that exchange rows
  std::vector<AfdBand> bands;
  std::vector<M2nHop> hops;
  // Of the way between a port of an attention device and one of an FFN device.
  Ps latency = 0;
  std::int64_t attention_bytes_per_s = 0, ffn_bytes_per_s = 0;
  // Whether a step is timed once more as if rows took no time, so that what it waits for them is
  // told from other waiting.
  bool splits_waiting = true;

  // The least time that rows of a step are on their way between the two sides: one row, on links
  // that nobody else uses.
  Ps least_m2n() const;
};

// The port of a unit (a stage of a member), out or in, that other transfers of the run use, too.
struct SharedPort {
  std::int32_t member = 0, stage = 0;
  bool out = false;
  std::vector<PartialFlow> flows;  // of each device
};

}  // namespace llmsim
