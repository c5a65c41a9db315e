// Barriers.
#include "model/collective/schedule.h"

namespace astra_sim::model {

namespace patterns {

// In round k, to the rank 2^k further; after the last round everybody has heard of everybody.
void dissemination(ScheduleBuilder& out, const Line& line, CollectiveKind) {
  const std::uint32_t n = line.size();
  std::vector<Ids> got(n);
  for (std::uint32_t distance = 1; distance < n; distance *= 2) {
    std::vector<std::uint32_t> round(n);
    for (std::uint32_t at = 0; at < n; ++at) {
      round[at] = out.add(line, at, (at + distance) % n, line.first[at], line.units, got[at], true);
    }
    for (std::uint32_t at = 0; at < n; ++at) got[(at + distance) % n].push_back(round[at]);
  }
}

}  // namespace patterns

}  // namespace astra_sim::model
