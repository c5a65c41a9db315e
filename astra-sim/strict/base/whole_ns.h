// Spans as upstream makes them: a double cut off to whole nanoseconds.
#pragma once

#include <string>

#include "model/base/errors.h"
#include "strict/base/events.h"

namespace astra_sim::strict {

inline constexpr double kLongestSpanNs =
    1152921504606846976.0;  // 2^60: 36 years; sums of a few stay in 63 bits

// Throws model::OutOfRange beyond the longest span; `what` says what would take so long.
inline Ns whole_ns(double span_ns, const char* what) {
  if (!(span_ns < kLongestSpanNs)) {
    throw model::OutOfRange(std::string(what) + " would take longer than 2^60 ns (36 years)");
  }
  return static_cast<Ns>(span_ns);
}

}  // namespace astra_sim::strict
