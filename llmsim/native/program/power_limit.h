// What a device's power limit does to the steps that it computes. Tables of bursts are of the full
// clock; a device whose mean power reaches its limit lowers the clock.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

// Energies are in pJ, and powers in mW, which are a thousandth of a pJ per ps. A window of zero:
// there is no limit.
struct PowerLimit {
  std::int64_t limit_mw = 0, idle_mw = 0;
  Ps window = 0;  // over which the device averages its power
};

// Of one device in a step at the full clock. Switching energy goes with the square of the clock
// (voltage falls with it), and what is limited by the clock takes inversely as long.
struct DeviceWork {
  std::int64_t switching_pj = 0, traffic_pj = 0;
  Ps clocked = 0;

  DeviceWork& operator+=(const DeviceWork& other) {
    switching_pj += other.switching_pj;
    traffic_pj += other.traffic_pj;
    clocked += other.clocked;
    return *this;
  }
};

// Attention of one kind, all its layers on a device.
struct AttentionEnergy {
  std::int64_t switching_pj_per_pair = 0;  // of a new token of a prompt and one that it sees
  std::int64_t traffic_pj_per_token = 0;   // of KV that is read
  std::int64_t layers = 0;
};

// What the operators of a program do on one device: tables by the rows of a feature, which are
// empty where nothing reads it.
struct PowerTables {
  PowerLimit limit;
  std::vector<std::vector<DeviceWork>> rows;  // by Feature
  std::vector<AttentionEnergy> attentions;    // by kind
  std::int64_t stages = 1;
};

// A device's mean power so far, and what it makes of the next step.
class DeviceClock {
 public:
  // How much longer the device computes than the `alone` of a step which may begin at `at`, behind
  // those before it. The clock is the highest that leaves the mean power at its limit: a step of D
  // with the energy E takes the mean of a window W from P to (P W + E) / (W + D).
  Ps lengthen(const PowerLimit& limit, const DeviceWork& work, Ps alone, Ps at);

 private:
  void pass(const PowerLimit& limit, int128 energy, Ps ps);

  std::int64_t mean_mw_ = -1;  // negative: it has not begun
  Ps until_ = 0;
};

}  // namespace llmsim
