// Gauges and counters of all groups, sampled at equal intervals.
#pragma once

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/columns.h"
#include "events/entity.h"
#include "group/group.h"
#include "kv/tiers/kv_tiers.h"
#include "network/shared_network.h"

namespace llmsim {

// Gauges and counters per interval and group, as columns.
struct Series {
  std::vector<Ps> time_ps;
  std::vector<std::int16_t> group;
  std::vector<std::int32_t> running, waiting, kv_blocks_used, kv_blocks_cached, preemptions;
  std::vector<std::int64_t> prompt_tokens, generation_tokens, hit_tokens, queried_tokens;

  static constexpr auto columns() {
    return std::tuple{
        Column{"time_ps", &Series::time_ps},
        Column{"group", &Series::group},
        Column{"running", &Series::running},
        Column{"waiting", &Series::waiting},
        Column{"kv_blocks_used", &Series::kv_blocks_used},
        Column{"kv_blocks_cached", &Series::kv_blocks_cached},
        Column{"prompt_tokens", &Series::prompt_tokens},
        Column{"generation_tokens", &Series::generation_tokens},
        Column{"hit_tokens", &Series::hit_tokens},
        Column{"queried_tokens", &Series::queried_tokens},
        Column{"preemptions", &Series::preemptions},
    };
  }
};

class SeriesRecorder final : public ClockObserver {
 public:
  // An interval of 0 ps records nothing.
  SeriesRecorder(const std::vector<std::unique_ptr<Group>>& groups, Ps interval)
      : groups_(groups), interval_(interval) {
    if (interval_ > 0) next_look_ = interval_;
  }
  // Pools whose series are sampled at the same times; null: there are none.
  void sample_tiers(KvTiers* tiers) { tiers_ = tiers; }
  // Links whose series are sampled at the same times; null: groups share none.
  void sample_links(SharedNetwork* network) {
    network_ = network;
    if (network_ != nullptr) network_->expect_look(next_look_);
  }

  // Room for kRowsPerCall further rows: years without requests are many samples.
  void make_room() { most_rows_ = series_.time_ps.size() + kRowsPerCall; }
  // False: the room is used up.
  bool look(Ps next_event) override;
  // The run has ended at `now`: the last, shorter interval.
  void finish(Ps now);

  const Series& series() const { return series_; }
  // Hands over what was recorded since the last call; what is taken is not kept.
  Series take() { return std::exchange(series_, {}); }

 private:
  static constexpr std::size_t kRowsPerCall = 1 << 18;
  struct Counted {
    std::int64_t prompt = 0, generation = 0, hit = 0, queried = 0, preemptions = 0;
  };
  void record(Ps time);
  void record(const Group& group, Counted& last, Ps time);

  const std::vector<std::unique_ptr<Group>>& groups_;
  Ps interval_, last_look_ = kNever;
  KvTiers* tiers_ = nullptr;
  SharedNetwork* network_ = nullptr;
  std::size_t most_rows_ = kRowsPerCall;
  Series series_;
  std::vector<Counted> counted_;  // by group, until the last sample
};

}  // namespace llmsim
