// Guarded integer formulas, computed in 128 bits.
#include "model/base/arithmetic.h"

#include <string>

#include "model/base/errors.h"

namespace astra_sim::model {

namespace {
using Wide = unsigned __int128;
constexpr std::uint64_t kPsPerSecond = 1'000'000'000'000ULL;
}  // namespace

Ps serialisation_ps(Bytes bytes, BytesPerSecond bandwidth) {
  const Wide numerator = static_cast<Wide>(bytes) * kPsPerSecond;
  const Wide divisor = static_cast<Wide>(bandwidth);
  const Wide span = (numerator + divisor - 1) / divisor;
  if (span > static_cast<Wide>(kMaxSpan)) {
    throw OutOfRange("sending " + std::to_string(bytes) + " bytes at " + std::to_string(bandwidth) +
                     " bytes/s takes longer than the engine's limit of 2^60 ps (13 days)");
  }
  return static_cast<Ps>(span);
}

Ps repeated_ps(std::int64_t count, Ps span) {
  const Wide total = static_cast<Wide>(count) * static_cast<Wide>(span);
  if (total > static_cast<Wide>(kHorizon)) {
    throw OutOfRange(std::to_string(count) + " times " + std::to_string(span) +
                     " ps is beyond the engine's horizon of 2^62 ps (53 days)");
  }
  return static_cast<Ps>(total);
}

}  // namespace astra_sim::model
