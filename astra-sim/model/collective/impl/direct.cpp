// Messages to every other rank at once, or between the root and every other rank.
#include "model/collective/schedule.h"

namespace astra_sim::model {

namespace {

void everyone(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
  const std::uint32_t n = line.size();
  const bool gathers = kind == CollectiveKind::kAllGather;
  const std::int64_t part = gathers ? line.units : line.units / n;
  const std::uint32_t window = line.window == 0 ? n : line.window;
  std::vector<Ids> sent(n, Ids(n));  // by distance, then sender
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    for (std::uint32_t at = 0; at < n; ++at) {
      const std::uint32_t to = (at + distance) % n;
      Ids after;  // with a window: the one that came in as the `distance - window`-th
      if (distance > window)
        after.push_back(sent[distance - window][(at + n - (distance - window)) % n]);
      sent[distance][at] = out.add(
          line, at, to, gathers ? line.first[at] : line.first[at] + to * part, part, after, true);
    }
  }
}

void star(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
  const std::uint32_t n = line.size();
  const bool outward = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kScatter;
  const std::int64_t units = kind == CollectiveKind::kScatter ? line.units / n : line.units;
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    const std::uint32_t other = (line.root + distance) % n;
    out.add(line, outward ? line.root : other, outward ? other : line.root, line.first[other],
            units, {});
  }
}

}  // namespace

namespace patterns {

void direct(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
  is_rooted(kind) ? star(out, line, kind) : everyone(out, line, kind);
}

}  // namespace patterns

}  // namespace astra_sim::model
