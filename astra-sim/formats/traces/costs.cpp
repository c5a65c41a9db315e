#include "formats/traces/costs.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/base/arithmetic.h"
#include "model/base/input_error.h"

namespace astra_sim::traces {

using model::InputError;
using model::Ps;

Ps to_ps(double value, double unit_ps, const char* what) {
  const double ps = std::floor(value * unit_ps + 0.5);
  if (!(ps >= 0) || ps > static_cast<double>(model::kMaxSpan)) {
    throw InputError(std::string(what) + " is longer than 2^60 ps (13 days)");
  }
  return static_cast<Ps>(ps);
}

Ps duration_of(const chakra::NodeFields& node) {
  if (node.duration_ps >= 0) return node.duration_ps;
  constexpr std::uint64_t kPerMicro = 1'000'000;
  if (node.duration_micros > static_cast<std::uint64_t>(model::kMaxSpan) / kPerMicro) {
    throw InputError("duration_micros is " + std::to_string(node.duration_micros) +
                     "; at most 2^60 ps (13 days) were expected");
  }
  return static_cast<Ps>(node.duration_micros * kPerMicro);
}

namespace {

// Rates of files are reals: a rate of whole units per second keeps the division in integers.
Ps at_rate(std::int64_t amount, double per_second) {
  const double rate = std::floor(per_second + 0.5);
  if (rate < 1 || rate >= static_cast<double>(model::kMaxSpan))
    return to_ps(static_cast<double>(amount) / per_second, 1e12, "a span");
  return model::serialisation_ps(amount, static_cast<std::int64_t>(rate));
}

}  // namespace

Ps roofline(const chakra::NodeFields& node, const config::SystemConfig& system) {
  return std::max(at_rate(node.operations, system.peak_tflops * 1e12),
                  at_rate(node.bytes, system.local_memory_gb_per_s * 1e9));
}

}  // namespace astra_sim::traces
