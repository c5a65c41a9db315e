// vLLM's coordinator of data-parallel engines (v1/engine/coordinator.py).
#pragma once

#include <span>
#include <vector>

#include "group/api/balancer_rules.h"
#include "group/load_listener.h"

namespace llmsim {

// An API server that hears of the engines from their coordinator.
class ReportListener {
 public:
  virtual ~ReportListener() = default;
  // Of each group, and whether ranks in lock-step are in a wave.
  virtual void reported(std::span<const PublishedLoad> loads, bool in_wave) = 0;
  virtual void wave_reported(bool in_wave) = 0;
};

// It passes on what engines tell it when it has heard of one and a period has passed since it last
// did, else every 5 s. It starts with the run, counts whole milliseconds, and waits for the rest of
// a period from each message on: its report comes so much into a millisecond as the last message.
//
// Ranks in lock-step say in which iteration they are. With the first news of an iteration it keeps
// what held before, and reports that, so that one report is of one iteration.
class Coordinator final : public LoadListener {
 public:
  Coordinator(Ps period, ReportListener& listener) : period_(period), listener_(listener) {}
  // Before anything else.
  void use_rules(const BalancerRules& rules) { rules_ = rules; }
  void add_group() { loads_.emplace_back(); }

  void load_changed(std::int32_t group, const PublishedLoad& load, Iteration at, Ps now) override;
  void wave_changed(WaveNews news, Ps now) override;
  // An API server tells it of a request, which is no news to report. `of_lockstep`: for ranks in
  // lock-step.
  void first_request(bool of_lockstep, Ps now);
  // Reports what was due before `now`; at one time it reports last.
  void report_until(Ps now);

 private:
  static constexpr Ps kPsPerMs = 1'000'000'000;
  static constexpr Ps kIdlePeriod = 5000 * kPsPerMs;
  static Ps whole_ms(Ps time) { return time / kPsPerMs * kPsPerMs; }
  void hear(Ps now);
  void set_wave(bool in_wave);
  Ps next_report() const;
  void report(Ps now);

  Ps period_;
  ReportListener& listener_;
  BalancerRules rules_;
  std::vector<PublishedLoad> loads_;   // by group
  std::vector<PublishedLoad> before_;  // the present iteration; empty: nothing is kept
  Iteration newest_{-1, -1};
  bool has_news_ = false, in_wave_ = false;
  Ps heard_at_ = 0;
  Ps reported_at_ = -1;  // -1: not yet
};

}  // namespace llmsim
