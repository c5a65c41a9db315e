// Each half of the vector on a binary tree of its own.
#include <algorithm>

#include "model/collective/schedule.h"

namespace astra_sim::model {

namespace {

// Parents in a balanced binary search tree over 1 .. n - 1 below root 0, numbered in order: the
// children of a place whose lowest bit is b are b / 2 before and after it (or less far where the
// range ends).
std::vector<std::uint32_t> binary_tree(std::uint32_t n) {
  std::vector<std::uint32_t> up(n, kNone);
  for (std::uint32_t at = 1; at < n; ++at) {
    const std::uint32_t bit = at & (~at + 1);
    const std::uint32_t above = (at ^ bit) | (bit << 1);
    up[at] = above >= n ? at ^ bit : above;
  }
  return up;
}

// Up a tree, then down it (all-reduce), or one of the two. `up[i]`: parent, by position in the
// tree; `order[i]`: the position on the line.
void tree(ScheduleBuilder& out, const Line& line, std::span<const std::uint32_t> up,
          CollectiveKind kind, std::int64_t first, std::int64_t units, const Ids& order) {
  const auto n = static_cast<std::uint32_t>(up.size());
  Ids depth(n, 0);
  Ids by_depth(n);
  for (std::uint32_t at = 0; at < n; ++at) {
    by_depth[at] = at;
    for (std::uint32_t above = at; up[above] != kNone; above = up[above]) ++depth[at];
  }
  std::stable_sort(by_depth.begin(), by_depth.end(),
                   [&](auto a, auto b) { return depth[a] < depth[b]; });
  std::vector<Ids> got(n);
  if (kind != CollectiveKind::kBroadcast) {
    for (std::uint32_t i = n; i-- > 0;) {
      const std::uint32_t at = by_depth[i];
      if (up[at] == kNone) continue;
      got[up[at]].push_back(out.add(line, order[at], order[up[at]], first, units, got[at], true));
    }
  }
  if (kind != CollectiveKind::kReduce) {
    for (const std::uint32_t at : by_depth) {
      if (up[at] == kNone) continue;
      const Ids after = got[up[at]];
      const std::uint32_t down = out.add(line, order[up[at]], order[at], first, units, after, true);
      got[at].assign(1, down);
    }
  }
}

}  // namespace

namespace patterns {

// All-reduce: the second tree is the first one mirrored (even n) or shifted by one (odd n), so that
// inner ranks of one are leaves of the other. Broadcast and reduce: trees over all but the root,
// which joins them above their tops.
void double_binary_tree(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
  const std::uint32_t n = line.size();
  const bool rooted = kind != CollectiveKind::kAllReduce;
  const std::uint32_t inner = rooted ? n - 1 : n;
  const std::int64_t half = line.units / 2;
  for (std::uint32_t second = 0; second < 2; ++second) {
    std::vector<std::uint32_t> up = binary_tree(inner);
    Ids order(inner);
    for (std::uint32_t at = 0; at < inner; ++at) {
      const std::uint32_t other = inner % 2 == 0 ? inner - 1 - at : (at + 1) % inner;
      const std::uint32_t place = second == 0 ? at : other;
      order[at] = rooted ? (line.root + 1 + place) % n : place;
    }
    if (rooted) {
      up[0] = inner;
      up.push_back(kNone);
      order.push_back(line.root);
    }
    tree(out, line, up, kind, line.first[0] + second * half, half, order);
  }
}

}  // namespace patterns

}  // namespace astra_sim::model
