// Message patterns on trees: binomial, two binary trees, and a switch that reduces and multicasts.
#include <algorithm>
#include <bit>
#include <string>

#include "model/base/errors.h"
#include "model/collective/schedule.h"
#include "model/topology/topology.h"

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

}  // namespace

// Position v is v ranks after the root; its parent lacks v's highest bit, and it has the 2^k places
// from v on below it.
void ScheduleBuilder::binomial(const Line& line, CollectiveKind kind) {
  const std::uint32_t n = line.size();
  const auto place = [&](std::uint32_t v) { return (line.root + v) % n; };
  const bool outward = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kScatter;
  const bool grows = kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
  const std::int64_t part = kind == CollectiveKind::kScatter ? line.units / n : line.units;
  // Parent of v: without its lowest bit; below v: v .. v + bit - 1. Far subtrees are served first.
  Ids order;
  for (std::uint32_t bit = std::bit_ceil(n); bit > 0; bit /= 2) {
    for (std::uint32_t v = bit; v < n; v += 2 * bit) order.push_back(v);
  }
  if (!outward) std::reverse(order.begin(), order.end());
  std::vector<Ids> got(n);
  for (const std::uint32_t v : order) {
    const std::uint32_t bit = v & (~v + 1);
    const std::uint32_t parent = v ^ bit;
    const std::int64_t units = grows ? part * std::min(bit, n - v) : line.units;
    const std::uint32_t from = outward ? parent : v;
    const std::uint32_t to = outward ? v : parent;
    got[to].push_back(
        add(line, place(from), place(to), line.first[place(v)], units, got[from], true));
  }
}

// Up a tree, then down it (all-reduce), or one of the two. `up[i]`: parent, by position in the
// tree; `order[i]`: the position on the line.
void ScheduleBuilder::tree(const Line& line, std::span<const std::uint32_t> up, CollectiveKind kind,
                           std::int64_t first, std::int64_t units, const Ids& order) {
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
      got[up[at]].push_back(add(line, order[at], order[up[at]], first, units, got[at], true));
    }
  }
  if (kind != CollectiveKind::kReduce) {
    for (const std::uint32_t at : by_depth) {
      if (up[at] == kNone) continue;
      const Ids after = got[up[at]];
      const std::uint32_t down = add(line, order[up[at]], order[at], first, units, after, true);
      got[at].assign(1, down);
    }
  }
}

// All-reduce: the second tree is the first one mirrored (even n) or shifted by one (odd n), so that
// inner ranks of one are leaves of the other. Broadcast and reduce: trees over all but the root,
// which joins them above their tops.
void ScheduleBuilder::two_trees(const Line& line, CollectiveKind kind) {
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
    tree(line, up, kind, line.first[0] + second * half, half, order);
  }
}

void ScheduleBuilder::in_switch(const Line& line, CollectiveKind kind) {
  using enum CollectiveKind;
  const std::uint32_t n = line.size();
  const Topology& topology = *plan_.shape.topology;
  std::vector<LinkId> up(n);
  std::vector<LinkId> down(n);
  std::vector<LinkId> route;
  for (std::uint32_t at = 0; at < n; ++at) {
    const DeviceId device = group_[line.ranks[at]];
    const DeviceId other = group_[line.ranks[(at + 1) % n]];
    route.clear();
    topology.route(device, other, route);
    up[at] = route.front();
    route.clear();
    topology.route(other, device, route);
    down[at] = route.back();
    const Link& first = topology.links()[up[0]];
    const bool same = topology.links()[up[at]].to == first.to &&
                      topology.links()[down[at]].from == topology.links()[down[0]].from;
    if (!same || first.to < topology.num_devices()) {
      throw InvalidTopology("an in-switch " + std::string(name_of(kind)) +
                            " needs all its ranks on one switch, but devices " +
                            std::to_string(group_[line.ranks[0]]) + " and " +
                            std::to_string(device) +
                            " are not: make it one dimension of a plan of several");
    }
  }
  const auto [place, fresh] =
      agents_.try_emplace(line.ranks, num_ranks_ + static_cast<std::uint32_t>(agents_.size()));
  if (fresh) out_->switches_.push_back(topology.links()[up[0]].to);
  const std::uint32_t agent = place->second;  // above all positions: an endpoint, see `add`
  Ids heard;
  const std::int64_t part = kind == kReduceScatter ? line.units / n : line.units;
  for (std::uint32_t at = 0; at < n; ++at) {
    const bool sends = kind == kBroadcast ? at == line.root : kind != kReduce || at != line.root;
    if (sends) heard.push_back(add(line, at, agent, line.first[at], line.units, {}, false, up[at]));
  }
  for (std::uint32_t at = 0; at < n; ++at) {
    const bool hears = kind == kReduce ? at == line.root : kind != kBroadcast || at != line.root;
    const std::int64_t first = kind == kReduceScatter ? line.first[at] + at * part : line.first[0];
    if (hears)
      add(line, agent, at, first, kind == kAllGather ? part * n : part, heard, false, down[at]);
  }
}

}  // namespace astra_sim::model
