// Energy of what an engine counted: power by class of node and of idle devices, and a price per
// byte on every link.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/base/types.h"
#include "model/graph/results.h"

namespace astra_sim::model {

// What a device draws beyond its idle power while a node of a class runs on it (nodes of several
// streams add up), and what a byte costs on a link (memory channels and ports are links). 1 mW for
// 1 ps is 1 fJ.
struct EnergyRates {
  std::array<std::int64_t, kNumPowerClasses> class_mw{};
  std::int64_t idle_mw = 0;                    // of every device, all the time
  std::vector<std::int64_t> link_fj_per_byte;  // by link; empty: 0
};

// Nanojoules, each rounded down; the total is their sum.
struct Energy {
  std::array<std::int64_t, kNumPowerClasses> class_nj{};  // all devices
  std::int64_t idle_nj = 0;
  std::vector<std::int64_t> link_nj;  // by link
  std::int64_t total_nj = 0;
};

// Throws InvalidGraph when a rate is negative or the links do not match; OutOfRange beyond 2^62 nJ.
Energy energy_of(std::span<const DeviceCounters> devices, std::span<const LinkCounters> links,
                 Ps elapsed_ps, const EnergyRates& rates);

}  // namespace astra_sim::model
