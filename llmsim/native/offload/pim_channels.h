// Processing in memory: decodes attend where their KV lies, spread over sets of channels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/interpolation.h"
#include "network/shared_network.h"
#include "program/batch.h"

namespace llmsim {

// Of one rank; all ranks' are alike.
struct PimConfig {
  std::vector<std::int64_t> context;  // tokens, ascending
  std::vector<Ps> ps;     // attention of one sequence in one layer on its channels, at each context
  std::int32_t sets = 1;  // of channels; a sequence stays on its set until it is preempted
  Ps latency = 0;         // of the way to the memory and back
  std::int64_t bytes_per_s = 1;   // of that way, in each direction
  std::int64_t query_bytes = 0;   // to the memory, per decode and layer: query, key and value
  std::int64_t output_bytes = 0;  // back, per decode and layer
  std::int64_t kv_bytes =
      0;  // per token and layer: prompts' KV to the memory, their earlier context back
  bool concurrent = false;  // a channel is read and written while it computes (two row buffers)
  std::vector<NetworkNodeId>
      places;  // of each rank's channels, stage by stage; empty: not on the network
};

// Which set of channels holds the KV of which sequence.
class PimChannels {
 public:
  // Throws std::invalid_argument for a part without channels or without times.
  explicit PimChannels(const PimConfig& config);
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

}  // namespace llmsim
