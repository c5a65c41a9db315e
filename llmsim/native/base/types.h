// The integer types that the serving core computes with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>

namespace llmsim {

using Ps = std::int64_t;         // picoseconds since the trace's zero
using RequestId = std::int32_t;  // row of the workload
using BlockId = std::int32_t;    // block of one group's pool; 0 is the null block
using Key = std::uint64_t;       // identity of a full block's content and prefix
using int128 = __int128;

// Content that no other request can have; keys of a workload keep this bit clear.
inline constexpr Key kOwnKey = Key{1} << 63;

inline constexpr Ps kNever = -1;
inline constexpr Ps kEndOfTime = std::numeric_limits<Ps>::max();
inline constexpr Ps kHorizon = Ps{1} << 62;  // 53 days; what a step may add to it still fits
inline constexpr Ps kPsPerSecond = 1'000'000'000'000;

// Converts an id to an index. Negative ids mean "none" and must not be passed.
constexpr std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// How long bytes take at a rate, rounded up (docs/explanation/execution.md, A). A rate that is no
// whole number of bytes per second comes in parts of it, `parts` a byte.
constexpr Ps transfer_time(std::int64_t bytes, int128 rate, std::int64_t parts = 1) {
  return static_cast<Ps>((int128{bytes} * kPsPerSecond * parts + rate - 1) / rate);
}

// Rounds a / b half up; b > 0. Exact in 128 bits (docs/explanation/execution.md, A7).
constexpr std::int64_t round_div(int128 a, int128 b) {
  const int128 doubled = 2 * a + b;
  int128 quotient = doubled / (2 * b);
  if (doubled % (2 * b) < 0) --quotient;
  return static_cast<std::int64_t>(quotient);
}

// Nothing can move although requests are unfinished; the text names every group's state.
class Stalled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The engine that is simulated would end with an error for lack of KV memory.
class OutOfKvMemory : public Stalled {
 public:
  using Stalled::Stalled;
};

// The engine that is simulated would end with another error; the text says which.
class EngineFails : public Stalled {
 public:
  using Stalled::Stalled;
};

// An invariant does not hold; the text begins with its number.
class Violated : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// How a time was obtained, as llmsim.core.Provenance.
enum class Provenance : std::uint8_t {
  kMeasured,
  kInterpolated,
  kExtrapolated,
  kScaled,
  kAnalytic
};
inline constexpr int kNumProvenances = 5;

}  // namespace llmsim
