#include "router/coordinator.h"

#include <algorithm>

namespace llmsim {

void Coordinator::load_changed(std::int32_t group, const PublishedLoad& load, Iteration at,
                               Ps now) {
  hear(now);
  if (at > newest_) {
    newest_ = at;
    if (has_news_) before_ = loads_;
  }
  loads_[static_cast<std::size_t>(group)] = load;
  has_news_ = true;
}

void Coordinator::wave_changed(WaveNews news, Ps now) {
  const bool engine_tells = news != WaveNews::kBegins || !rules_.hears_of_first_requests;
  const bool rank_tells = news != WaveNews::kFirstIterationEnds || rules_.hears_of_first_iterations;
  if (!engine_tells || !rank_tells) return;
  hear(now);
  set_wave(news != WaveNews::kEnds);
}

void Coordinator::first_request(bool of_lockstep, Ps now) {
  hear(now);
  if (of_lockstep && !rules_.hears_of_first_iterations) set_wave(true);
}

void Coordinator::hear(Ps now) {
  report_until(now);
  heard_at_ = now;
}

void Coordinator::set_wave(bool in_wave) {
  if (in_wave_ == in_wave) return;
  in_wave_ = in_wave;
  listener_.wave_reported(in_wave);
}

// The loop of DPCoordinatorProc.process_input_socket.
Ps Coordinator::next_report() const {
  const Ps last = std::max(heard_at_, reported_at_);
  const Ps quiet = before_.empty() ? rules_.quiet : 0;
  if (reported_at_ < 0) return last + quiet;
  const Ps period = has_news_ ? period_ : kIdlePeriod;
  const Ps rest = whole_ms(reported_at_) + period - whole_ms(last);
  return last + std::max(quiet, rest);
}

void Coordinator::report_until(Ps now) {
  for (Ps due = next_report(); due < now; due = next_report()) {
    const bool idle = !has_news_ && reported_at_ >= 0;
    report(idle ? due + (now - 1 - due) / kIdlePeriod * kIdlePeriod : due);
  }
}

void Coordinator::report(Ps now) {
  reported_at_ = now;
  if (before_.empty()) {
    has_news_ = false;
    listener_.reported(loads_, in_wave_);
  } else {
    listener_.reported(before_, in_wave_);
    before_.clear();
  }
}

}  // namespace llmsim
