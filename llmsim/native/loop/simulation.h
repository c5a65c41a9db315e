// The event loop: arrivals, groups and the clock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "frontend/clients.h"
#include "frontend/frontend.h"
#include "kv_transfer/kv_transfer_delivery.h"
#include "loop/series.h"
#include "loop/simulation_config.h"
#include "network/network_events.h"

namespace llmsim {

// Requests take KV blocks from each other for ever, and nothing is left to come that could end it;
// the text names the groups. The simulation stands between two events, so that its results can be
// read.
class Circular : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Owns the clock and everything that moves. Two simulations never meet: no globals, no statics.
class Simulation final : private Membership {
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
  // Null where no layouts were given.
  const LayoutSwitch* layout_switch() const { return layout_switch_; }

  // Handles events until the end (true), or until about `max_events` were handled, `max_wall_ms`
  // have passed on the wall clock, or a series has no room left (false: call again). At least one
  // event is handled.
  bool run(std::int64_t max_events, std::int64_t max_wall_ms = kAnyTime);
  static constexpr std::int64_t kAnyTime = std::int64_t{1} << 40;
  // Samples the series at the last event of a run that goes no further.
  void end_series() { series_.finish(now()); }

  // Of a simulation with live requests (live.cpp). A row is asked once until `reusable_rows` gives
  // it out again; times are not before the last event.
  void ask(RequestId row, LiveRequest request);
  void leave(RequestId row, Ps time);
  // Where each of these requests stands.
  std::vector<std::uint8_t> statuses(std::span<const RequestId> rows) const;
  // Handles all events until then, and that time included.
  void run_until(Ps time);
  Ps next_event() const { return events_.empty() ? kEndOfTime : events_.top().time; }
  LiveEvents take_live_events() { return live().take(); }
  // Forgets requests that have ended and that nothing in the simulation refers to.
  std::vector<RequestId> reusable_rows();

  Ps now() const { return events_.now(); }
  std::int64_t num_finished() const { return frontend_->num_finished(); }
  std::int64_t num_rejected() const;
  const std::vector<std::unique_ptr<Group>>& groups() const override { return groups_; }
  const Series& series() const { return series_.series(); }
  // Hands over what was recorded since the last call; what is taken is not kept.
  Series take_series() { return series_.take(); }
  LinkSeries take_link_series() { return network_ ? network_->take_series() : LinkSeries{}; }
  TierSeries take_kv_tier_series() { return kv_tiers_ ? kv_tiers_->take_series() : TierSeries{}; }

 private:
  struct Prompts {
    SequenceTable sequences;
    RequestLog log;
  };

  // The loop (simulation.cpp).
  void enter(Entity& entity);
  void observe(ClockObserver& observer);
  // The first event happens, or is dropped. False: it may not happen, or not yet.
  bool handle_next();
  LiveRequests& live();
  // Observers look at all times before the event's. False: it may not happen, or not yet.
  bool look(Ps event_time);
  bool anything_from_outside() const;
  void check_finished() const;
  void check_circles() const;

  // Parts of the constructor, in the order of the calls (build.cpp).
  Prompts& prompts();
  // What a group of this role works on. The prefill side of disaggregated requests has a table of
  // its own, in which every answer is one token long; what clients see is in the other one.
  SequenceTable& sequences_of(Role role) {
    return role == Role::kPrefill ? prompts().sequences : sequences_;
  }
  RequestLog& log_of(Role role) { return role == Role::kPrefill ? prompts().log : log_; }
  Group& make_group(const GroupSpec& spec);
  void build_lockstep(const LockstepSpec& spec);
  void build_network(const NetworkConfig& config);
  void build_contention(const ContentionSpec& spec);
  void build_kv_tiers(const KvTiersConfig& config);
  void use_tiers(Group& group);
  // Gives the group what notes its times, as far as the observers ask for it.
  void watch(Group& group);
  void build_offloading(const std::vector<GroupCopiesConfig>& groups);
  void use_copies(Group& group, const GroupCopiesConfig& config);
  RouterContext router_context(bool decode_side) const;
  void build_frontend(const FrontendConfig& config);
  void build_kv_transfers(const KvTransferConfig& config, const RouterMaker& make_router);
  // Whence it gets requests, and who hears of their ends.
  void connect(Group& group);
  void start_routers();
  void start_executors();
  void start_controllers(const std::vector<ControllerMaker>& makers);
  void start_layouts(const std::shared_ptr<const LayoutsConfig>& layouts);

  // Groups that come and go (membership.cpp).
  void add_group(const GroupAddition& addition) override;
  void remove_group(std::int32_t index, Removal removal) override;
  void refuse_removal(const Group& group, Removal removal) const;
  void retire(Group& group);
  std::int32_t add_layout(const LayoutSpec& layout) override;
  void start_layout(std::int32_t first) override;
  void build_together(const LayoutSpec& layout, std::size_t first);
  void add_kv_transfers(const LayoutSpec& layout, std::size_t first);
  void hold_arrivals() override { frontend_->hold(true); }
  void release_arrivals() override { frontend_->release(now()); }
  std::int32_t num_held() const override { return frontend_->num_held(); }
  void hold_transfers(StepEnds& landed) override;
  void release_transfers() override;
  bool anything_moves() const override { return network_ && network_->num_in_flight() > 0; }
  HeldKv holder(RequestId request) const;
  std::vector<Group*> working_for(RequestId request) const;
  Displaced displace(const std::vector<std::int32_t>& indices, bool keep_answers) override;
  void place(const Displaced& displaced, bool with_kv) override;
  HeldKv kv_brought(RequestId request) const override;
  void opened(Ps until) override { log_.opened(first_move_, until); }
  std::int64_t num_open() const override { return clients_->num_open(); }
  std::int64_t num_requests() const override {
    return static_cast<std::int64_t>(sequences_.size());
  }
  void hand_back(Group& group);

  EventQueue events_;
  std::vector<Entity*> entities_;  // by id; null: it was removed
  std::vector<ClockObserver*> observers_;

  std::unique_ptr<LiveRequests> live_;  // null: the workload is known
  std::shared_ptr<const Source> source_;
  SequenceTable sequences_;
  RequestLog log_;
  std::unique_ptr<Prompts> prompts_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<LockstepGroup>> lockstep_groups_;
  std::unique_ptr<SharedNetwork> network_;
  std::unique_ptr<NetworkEvents> network_events_;
  std::unique_ptr<KvTiers> kv_tiers_;
  std::unique_ptr<OffloadingCopies> offloading_copies_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<Clients> clients_;
  std::unique_ptr<KvTransfers> kv_transfers_;
  std::unique_ptr<KvTransferDelivery> kv_transfer_delivery_;
  NoCompletion no_completion_;
  std::vector<std::unique_ptr<Controller>> controllers_;
  ObserversConfig watched_;
  SeriesRecorder series_;
  bool checks_;
  Ps horizon_;
  bool at_horizon_ = false;
  std::vector<std::int32_t> leaving_;  // groups that have been removed, and may still work
  std::size_t first_move_ = 0;         // of the requests that were displaced last
  LayoutSwitch* layout_switch_ = nullptr;
};

}  // namespace llmsim
