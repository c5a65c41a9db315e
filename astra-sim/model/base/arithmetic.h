// The few integer formulas whose rounding decides whether folded equals expanded.
#pragma once

#include "model/base/types.h"

namespace astra_sim::model {

// ceil(bytes * 10^12 / bandwidth): the time a message occupies a link; never below the speed of
// light. Throws OutOfRange when it exceeds kMaxSpan. Needs bandwidth > 0 and bytes >= 0.
Ps serialisation_ps(Bytes bytes, BytesPerSecond bandwidth);

// count * span, guarded. Throws OutOfRange above kHorizon.
Ps repeated_ps(std::int64_t count, Ps span);

// bytes * units / denominator, rounded up or down. Throws OutOfRange above 2^60. Needs all >= 0.
Bytes share_of(Bytes bytes, std::int64_t units, std::int64_t denominator, bool up);

// Timing uses equal chunks ceil(bytes / parts); unequal ones would let ranks drift apart by a few
// ps.
constexpr Bytes timing_chunk(Bytes bytes, std::int64_t parts) {
  return bytes / parts + (bytes % parts != 0 ? 1 : 0);
}

// Counters use exact chunks: the first (bytes % parts) chunks carry one byte more.
constexpr Bytes exact_chunk(Bytes bytes, std::int64_t parts, std::int64_t index) {
  return bytes / parts + (index < bytes % parts ? 1 : 0);
}

}  // namespace astra_sim::model
