// Integer quantities that graph, topology and engine share: time, bytes and ids.
#pragma once

#include <cstdint>

namespace astra_sim::model {

using Ps = std::int64_t;              // picoseconds; the only unit of time
using Bytes = std::int64_t;           // exact byte counts
using BytesPerSecond = std::int64_t;  // bandwidth, rounded once when a configuration is read

using DeviceId = std::uint32_t;
using VertexId = std::uint32_t;  // a device, or a switch numbered after the devices
using LinkId = std::uint32_t;    // one direction of a full-duplex link
using NodeIndex = std::uint32_t;
using GroupId = std::uint32_t;
using PlanId = std::uint32_t;
using CallId = std::uint32_t;

inline constexpr std::uint32_t kNone = 0xffffffffU;

// The clock stops here (53 days); with no single span above kMaxSpan, the sum of a time, a
// serialisation and a latency cannot overflow before it is compared with the horizon.
inline constexpr Ps kHorizon = Ps{1} << 62;
inline constexpr Ps kMaxSpan = Ps{1} << 60;
inline constexpr Bytes kMaxBytes = Bytes{1} << 60;

// Adds to a sum over messages, nodes or accesses, which may run side by side: such a sum stays at
// 2^63 - 1, where it would pass it, while the clock is far from its end.
inline void add_up_to_end(std::int64_t& sum, std::int64_t more) {
  if (__builtin_add_overflow(sum, more, &sum)) sum = INT64_MAX;
}

}  // namespace astra_sim::model
