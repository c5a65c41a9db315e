// Messages to the next rank: around the ring, or from the root along a chain.
#include "model/collective/schedule.h"

namespace astra_sim::model {

namespace {

// Message s of a rank waits for message s - 1 of the rank before it.
void around(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
  const std::uint32_t n = line.size();
  std::vector<std::uint32_t> before(n, kNone);
  std::vector<std::uint32_t> here(n);
  const std::int64_t part = kind == CollectiveKind::kAllGather ? line.units : line.units / n;
  const auto step = [&](auto chunk_of) {
    for (std::uint32_t at = 0; at < n; ++at) {
      const std::uint32_t chunk = chunk_of(at) % n;
      const std::int64_t first =
          kind == CollectiveKind::kAllGather ? line.first[chunk] : line.first[at] + chunk * part;
      const std::uint32_t* after = &before[(at + n - 1) % n];
      here[at] = out.add(line, at, (at + 1) % n, first, part, {after, *after == kNone ? 0U : 1U});
    }
    before = here;
  };
  if (kind == CollectiveKind::kAllToAll) {
    // In round d a rank relays what came from d ranks back: n - 1 - d blocks, the longest way
    // first.
    for (std::uint32_t d = 0; d + 1 < n; ++d) {
      for (std::uint32_t p = 0; p + 1 + d < n; ++p)
        step([&](std::uint32_t at) { return at + 2 * n - 1 - d - p; });
    }
    return;
  }
  const std::uint32_t lead = kind == CollectiveKind::kReduceScatter ? 1 : 0;
  for (std::uint32_t s = 0; s + 1 < n; ++s)
    step([&](std::uint32_t at) { return at + 2 * n - lead - s; });
}

// Position v of the chain is v ranks after the root; gather and scatter carry what lies behind.
void chain(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
  const std::uint32_t n = line.size();
  const auto place = [&](std::uint32_t v) { return (line.root + v) % n; };
  const bool outward = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kScatter;
  const bool grows = kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
  const std::int64_t part = kind == CollectiveKind::kScatter ? line.units / n : line.units;
  std::uint32_t last = kNone;
  for (std::uint32_t s = 0; s + 1 < n; ++s) {
    const std::uint32_t inner = outward ? s : n - 2 - s;
    const std::uint32_t from = place(outward ? inner : inner + 1);
    const std::uint32_t to = place(outward ? inner + 1 : inner);
    const std::int64_t units = grows ? part * (n - 1 - inner) : line.units;
    last = out.add(line, from, to, line.first[grows ? place(inner + 1) : from], units,
                   {&last, last == kNone ? 0U : 1U}, true);
  }
}

}  // namespace

namespace patterns {

void ring(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
  is_rooted(kind) ? chain(out, line, kind) : around(out, line, kind);
}

}  // namespace patterns

}  // namespace astra_sim::model
