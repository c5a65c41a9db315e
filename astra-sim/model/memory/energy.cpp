// Exact products of counters and rates.
#include "model/memory/energy.h"

#include <algorithm>
#include <string>

#include "model/base/errors.h"

namespace astra_sim::model {

namespace {

using Signed128 = __int128;
constexpr Signed128 kFemtoPerNano = 1'000'000;

std::int64_t nanojoules(Signed128 femtojoules) {
  const Signed128 out = femtojoules / kFemtoPerNano;
  if (out > kHorizon) throw OutOfRange("the energy of a run is beyond 2^62 nJ (1.3 GWh)");
  return static_cast<std::int64_t>(out);
}

void check(std::span<const std::int64_t> rates, const char* what) {
  const auto bad =
      std::find_if(rates.begin(), rates.end(), [](std::int64_t rate) { return rate < 0; });
  if (bad == rates.end()) return;
  throw InvalidGraph(std::string(what) + " " + std::to_string(bad - rates.begin()) + " is " +
                     std::to_string(*bad) + ": it has to be at least 0");
}

}  // namespace

Energy energy_of(std::span<const DeviceCounters> devices, std::span<const LinkCounters> links,
                 Ps elapsed_ps, const EnergyRates& rates) {
  check(rates.class_mw, "the power (mW) of class");
  check({&rates.idle_mw, 1}, "the idle power (mW) of device");
  check(rates.link_fj_per_byte, "the energy (fJ per byte) of link");
  if (!rates.link_fj_per_byte.empty() && rates.link_fj_per_byte.size() != links.size()) {
    throw InvalidGraph("energies per byte are given for " +
                       std::to_string(rates.link_fj_per_byte.size()) +
                       " links, but the engine has " + std::to_string(links.size()));
  }
  Energy out;
  Signed128 total = 0;
  for (std::size_t c = 0; c < kNumPowerClasses; ++c) {
    Signed128 busy = 0;
    for (const DeviceCounters& device : devices) busy += device.class_ps[c];
    out.class_nj[c] = nanojoules(busy * rates.class_mw[c]);
    total += out.class_nj[c];
  }
  out.idle_nj = nanojoules(static_cast<Signed128>(elapsed_ps) * rates.idle_mw *
                           static_cast<Signed128>(devices.size()));
  total += out.idle_nj;
  out.link_nj.assign(links.size(), 0);
  for (std::size_t l = 0; l < links.size() && !rates.link_fj_per_byte.empty(); ++l) {
    out.link_nj[l] = nanojoules(static_cast<Signed128>(links[l].bytes) * rates.link_fj_per_byte[l]);
    total += out.link_nj[l];
  }
  out.total_nj = nanojoules(total * kFemtoPerNano);
  return out;
}

}  // namespace astra_sim::model
