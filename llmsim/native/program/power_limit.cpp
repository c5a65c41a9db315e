#include "program/power_limit.h"

#include <algorithm>

namespace llmsim {

namespace {

constexpr std::int64_t kFullClock = 1 << 20;
constexpr std::int64_t kLowestClock = kFullClock / 4;
constexpr std::int64_t kMwPsPerPj = 1000;

// A step at a clock, in parts of the full one; energy in mW ps.
struct Clocked {
  Ps ps = 0;
  int128 energy = 0;
};

Clocked at_clock(const PowerLimit& limit, const DeviceWork& work, Ps alone, std::int64_t clock) {
  const int128 longer = int128{work.clocked} * (kFullClock - clock) / clock;
  const Ps ps = alone + static_cast<Ps>(longer);
  const int128 square = int128{clock} * clock;
  const int128 switching = int128{work.switching_pj} * square / (int128{kFullClock} * kFullClock);
  return {ps, (switching + work.traffic_pj) * kMwPsPerPj + int128{limit.idle_mw} * ps};
}

}  // namespace

void DeviceClock::pass(const PowerLimit& limit, int128 energy, Ps ps) {
  const int128 window = limit.window;
  mean_mw_ = static_cast<std::int64_t>((mean_mw_ * window + energy) / (window + ps));
}

Ps DeviceClock::lengthen(const PowerLimit& limit, const DeviceWork& work, Ps alone, Ps at) {
  if (mean_mw_ < 0) {
    mean_mw_ = limit.idle_mw;
    until_ = at;
  }
  if (at > until_) {
    const Ps idle = at - until_;
    pass(limit, int128{limit.idle_mw} * idle, idle);
    until_ = at;
  }
  const auto fits = [&](const Clocked& step) {
    const int128 most = int128{limit.limit_mw} * (int128{limit.window} + step.ps);
    return int128{mean_mw_} * limit.window + step.energy <= most;
  };
  Clocked step = at_clock(limit, work, alone, kFullClock);
  if (work.clocked > 0 && !fits(step)) {
    std::int64_t low = kLowestClock, high = kFullClock;  // the highest that fits is in [low, high)
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (fits(at_clock(limit, work, alone, middle)) ? low : high) = middle;
    }
    step = at_clock(limit, work, alone, low);
  }
  pass(limit, step.energy, step.ps);
  until_ += step.ps;
  return step.ps - alone;
}

}  // namespace llmsim
