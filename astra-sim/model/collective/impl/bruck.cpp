// Bruck's all-gather for any number of ranks, and its reverse: ceil(log2 n) messages a rank.
#include <algorithm>
#include <bit>

#include "model/collective/schedule.h"

namespace astra_sim::model::patterns {

// All-gather: in the round of distance d (1, 2, 4, ...) a rank sends the blocks that it has, its
// own one first, to the rank d before it, and of the last round no more than that one lacks.
// Reduce-scatter: the same messages the other way and in the opposite order, as partial sums.
void bruck(ScheduleBuilder& out, const Line& given, CollectiveKind kind) {
  const std::uint32_t n = given.size();
  const bool gathers = kind == CollectiveKind::kAllGather;
  const std::int64_t part = gathers ? given.units : given.units / n;
  Line line = given;
  line.lap = part * n;  // blocks go on at the first one behind the last one
  std::vector<Ids> got(n);
  Ids round(n);
  const auto exchange = [&](std::uint32_t distance) {
    const std::uint32_t blocks = std::min(distance, n - distance);
    const std::uint32_t step = gathers ? n - distance : distance;
    for (std::uint32_t at = 0; at < n; ++at) {
      const std::uint32_t block = gathers ? at : (at + distance) % n;
      round[at] = out.add(line, at, (at + step) % n, given.first[0] + block * part, blocks * part,
                          got[at], true);
    }
    for (std::uint32_t at = 0; at < n; ++at) got[(at + step) % n].push_back(round[at]);
  };
  if (gathers) {
    for (std::uint32_t distance = 1; distance < n; distance *= 2) exchange(distance);
  } else {
    for (std::uint32_t distance = std::bit_ceil(n) / 2; distance > 0; distance /= 2)
      exchange(distance);
  }
}

}  // namespace astra_sim::model::patterns
