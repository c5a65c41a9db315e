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

// Most products fit 64 bits, whose division is many times faster.
Bytes share_of(Bytes bytes, std::int64_t units, std::int64_t denominator, bool up) {
  std::int64_t product = 0;
  if (!__builtin_mul_overflow(bytes, units, &product)) {
    return product / denominator + (up && product % denominator != 0 ? 1 : 0);
  }
  using Wide = unsigned __int128;
  const Wide wide = static_cast<Wide>(bytes) * static_cast<Wide>(units);
  const Wide size =
      (wide + static_cast<Wide>(up ? denominator - 1 : 0)) / static_cast<Wide>(denominator);
  if (size > static_cast<Wide>(kMaxBytes))
    throw OutOfRange("a message of a collective is larger than 2^60 bytes");
  return static_cast<Bytes>(size);
}

}  // namespace astra_sim::model
