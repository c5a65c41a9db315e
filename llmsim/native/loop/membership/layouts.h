// Layouts over the same devices, of which one serves at a time, and what switches between them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "loop/membership/kv_move.h"
#include "loop/membership/membership.h"

namespace llmsim {

enum class TriggerKind : std::uint8_t {
  kAt,               // a time
  kOpenShareBelow,   // of all requests, those that have not ended
  kEndedShareAbove,  // and those that have
  kWaitingBelow,     // requests that wait in the groups
};

// Switches come in the order in which they are given.
struct LayoutTrigger {
  std::int32_t to = 0;
  TriggerKind kind = TriggerKind::kAt;
  std::int64_t value = 0;  // ps, millionths of all requests, or requests
};

enum class KvOnSwitch : std::uint8_t {
  kMove,       // to the group that takes the request
  kRecompute,  // there, with the answer so far as part of the prompt
  kDrop,       // requests begin anew
};

// What a callable decides at the end of each step: the layout to switch to, or -1. It sees
// (requests that run, that wait) of each group that serves.
using LayoutDecision =
    std::function<std::int32_t(Ps, const std::vector<std::pair<std::int32_t, std::int32_t>>&)>;

struct LayoutsConfig {
  std::vector<LayoutSpec> layouts;
  std::int32_t initial = 0;  // the simulation begins with its groups
  std::vector<LayoutTrigger> triggers;
  LayoutDecision decide;                 // null: triggers alone
  std::vector<std::vector<Ps>> weights;  // [from][to]: until all devices hold their new shards
  Ps process = 0;                        // processes restart and capture their graphs
  KvOnSwitch kv = KvOnSwitch::kRecompute;
  // Where KV moves, and it takes time of its own: the network, and what goes from a kind of group
  // to another one.
  std::optional<NetworkConfig> network;
  std::vector<KvTable> moves;
  std::vector<std::vector<std::int32_t>> move_of;
};

// One switch; its parts follow each other.
struct Reconfiguration {
  std::int32_t from = 0, to = 0, trigger = -1;  // -1: the callable decided
  Ps asked = 0;                                 // when the trigger was met
  Ps drained = 0;                               // when the last step had ended
  Ps weights = 0, kv = 0, process = 0;
  Ps opened = kNever;
  std::int64_t requests = 0;  // that were in groups
  std::int64_t held = 0;      // that arrived meanwhile
  std::int64_t kv_tokens = 0, kv_bytes = 0;
  // (group that sends, group that gets) -> bytes of KV from device to device.
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> kv_sent;
  std::int32_t first_group = 0;  // of the layout that opened
};

// Serves, drains, moves, and serves again.
class LayoutSwitch final : public Controller, public StepEnds {
 public:
  explicit LayoutSwitch(std::shared_ptr<const LayoutsConfig> config);

  void begin(Membership& membership) override;
  Outlook outlook(const Event& event) const override;
  void on_event(Ps now, Phase phase, std::uint32_t argument) override;
  void step_ended(Ps now) override;

  const std::vector<Reconfiguration>& reconfigurations() const { return done_; }
  const LayoutsConfig& config() const { return *config_; }

 private:
  enum Act : std::uint32_t { kTimeHasCome, kDrain, kSwitch, kOpen };
  bool serving() const { return state_ == State::kServing; }
  bool met(const LayoutTrigger& trigger) const;
  void post_time();
  void ask(std::int32_t to, std::int32_t trigger, Ps now);
  void drain(Ps now);
  void switch_groups(Ps now);
  void open(Ps now);
  void add_groups(std::int32_t layout);
  void serve(std::int32_t first, std::size_t groups);
  void move_kv(const Displaced& displaced, std::int32_t first_before, Reconfiguration& row);
  bool quiet() const;
  Group& group(std::int32_t index) const { return *membership_->groups()[at(index)]; }

  std::shared_ptr<const LayoutsConfig> config_;
  std::optional<KvMove> kv_move_;
  Membership* membership_ = nullptr;
  enum class State : std::uint8_t { kServing, kAsked, kDraining, kMoving } state_ = State::kServing;
  std::int32_t layout_;
  std::size_t next_ = 0;               // trigger
  std::vector<std::int32_t> serving_;  // groups of the layout
  std::vector<Reconfiguration> done_;
};

}  // namespace llmsim
