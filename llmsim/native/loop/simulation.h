// The event loop: arrivals, groups and the clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/columns.h"
#include "loop/simulation_config.h"

namespace llmsim {

// Requests take KV blocks from each other for ever, and nothing is left to come that could end it;
// the text names the groups. The simulation stands between two events, so that its results can be
// read.
class Circular : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An invariant does not hold; the text begins with its number.
class Violated : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

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

// Owns the clock and everything that moves. Two simulations never meet: no globals, no statics.
class Simulation {
 public:
  // Builds all parts in the order of their references. Throws std::invalid_argument that begins
  // with the path of the field that is wrong.
  explicit Simulation(const SimulationConfig& config);

  const KvTiers* kv_tiers() const { return kv_tiers_.get(); }  // null: none were given
  SharedNetwork* network() { return network_.get(); }          // null: none was given
  const SharedNetwork* network() const { return network_.get(); }
  const SequenceTable& sequences() const { return sequences_; }
  const RequestLog& log() const { return log_; }
  // Null where nothing is disaggregated.
  const KvTransfers* kv_transfers() const { return kv_transfers_.get(); }
  const SequenceTable* prompt_sequences() const {
    return prompts_ ? &prompts_->sequences : nullptr;
  }
  const RequestLog* prompt_log() const { return prompts_ ? &prompts_->log : nullptr; }

  bool at_horizon() const { return at_horizon_; }

  // Handles events until the end (true), or until about `max_events` were handled, `max_wall_ms`
  // have passed on the wall clock, or kSeriesRows of a series were recorded (false: call again). At
  // least one event is handled.
  bool run(std::int64_t max_events, std::int64_t max_wall_ms = kAnyTime);
  static constexpr std::int64_t kAnyTime = std::int64_t{1} << 40;

  Ps now() const { return now_; }
  std::int64_t num_finished() const { return num_finished_; }
  std::int64_t num_rejected() const;
  const std::vector<std::unique_ptr<Group>>& groups() const { return groups_; }
  const Series& series() const { return series_; }
  // Hands over what was recorded since the last call; what is taken is not kept.
  Series take_series() { return std::exchange(series_, {}); }
  TierSeries take_kv_tier_series() { return kv_tiers_ ? kv_tiers_->take_series() : TierSeries{}; }

 private:
  // At one time: outputs, landings, clients that give up or are free to ask again, arrivals,
  // scheduling, then the network's new rates; within a phase by entity (group or request), of which
  // at most one event is pending.
  enum class Phase : std::uint8_t {
    kStepDone,
    kTransferDone,
    kGiveUp,
    kClientIdle,
    kArrival,
    kSchedule,
    kRebalance
  };
  struct Event {
    Ps time;
    Phase phase;
    std::int32_t entity;
    bool operator>(const Event& other) const {
      if (time != other.time) return time > other.time;
      if (phase != other.phase) return phase > other.phase;
      return entity > other.entity;
    }
  };

  struct Prompts {
    SequenceTable sequences;
    RequestLog log;
  };

  Prompts& prompts();
  // What a group of this role works on. The prefill side of disaggregated requests has a table of
  // its own, in which every answer is one token long; what clients see is in the other one.
  SequenceTable& sequences_of(Role role) {
    return role == Role::kPrefill ? prompts().sequences : sequences_;
  }
  RequestLog& log_of(Role role) { return role == Role::kPrefill ? prompts().log : log_; }
  // Parts of the constructor, in the order of the calls.
  void add_group(const GroupSpec& spec);
  void build_lockstep(const LockstepSpec& spec);
  void build_network(const NetworkConfig& config);
  void build_contention(const ContentionSpec& spec);
  void build_kv_tiers(const KvTiersConfig& config);
  void record_device_shares();
  RouterContext router_context(bool decode_side) const;
  void build_frontend(const SimulationConfig& config);
  void build_kv_transfers(const KvTransferConfig& config, const RouterMaker& make_router);
  void start_executors();
  bool stop_at_horizon(std::size_t most_rows);
  // Records the samples that are due until then; false where the series would grow beyond
  // `most_rows`.
  bool sampled_until(Ps last, std::size_t most_rows);
  // What has become pointless since it was posted does not even move the clock.
  bool stale(const Event& event) const;
  // Whether the request has arrived and its client still waits for it.
  bool awaited(RequestId request) const;
  void handle(const Event& event);
  void on_outputs(std::int32_t group);
  void give_up(RequestId request);
  void on_free_client();
  void on_arrival(RequestId request);
  void on_pump(std::int32_t group);
  void on_landing();
  void on_settle();
  void post_next_arrival();
  void wake(std::int32_t group);
  void expect(Group& group);
  static bool from_outside(Phase phase) {
    return phase == Phase::kGiveUp || phase == Phase::kClientIdle || phase == Phase::kArrival;
  }
  void post(Ps time, Phase phase, std::int32_t entity) {
    outside_ += from_outside(phase);
    events_.push({time, phase, entity});
  }
  // The client will ask for nothing more in this session; later calls of it get this status.
  void end_session(RequestId request, Status rest);
  void record_series();
  void check_finished() const;
  void check_circles() const;
  void check_blocks(const Group& group) const;

  std::shared_ptr<const Source> source_;
  Clients clients_;
  SequenceTable sequences_;
  RequestLog log_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::vector<Group*>> groups_of_model_;
  std::unique_ptr<Router> router_;
  Admission admission_;
  bool checks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::unique_ptr<Prompts> prompts_;
  std::unique_ptr<SharedNetwork> network_;
  std::unique_ptr<KvTiers> kv_tiers_;
  std::unique_ptr<KvTransfers> kv_transfers_;
  Ps landing_at_ = kEndOfTime;  // time of the network's pending event
  bool settle_posted_ = false;
  std::vector<Ps> pump_at_;  // time of a group's pending pump, or kEndOfTime
  std::vector<bool> output_pending_;
  std::vector<std::unique_ptr<LockstepGroup>> lockstep_groups_;
  std::vector<RequestId> finished_;
  std::vector<RequestId> timed_;  // rows whose arrival the workload gives, in order of arrival
  std::size_t next_timed_ = 0;
  bool arrival_pending_ = false;  // of a row of `timed_`
  std::int64_t outside_ =
      0;  // pending arrivals, clients that may give up, and clients that are free to ask
  std::int64_t num_finished_ = 0;
  Ps now_ = 0, horizon_;
  bool at_horizon_ = false;
  static constexpr std::size_t kSeriesRows =
      1 << 18;  // of one call of `run`: years without requests are many samples
  Ps series_interval_, next_sample_, last_sample_ = kNever;
  Series series_;
  struct Sampled {
    std::int64_t prompt = 0, generation = 0, hit = 0, queried = 0, preemptions = 0;
  };
  std::vector<Sampled> sampled_;
};

}  // namespace llmsim
