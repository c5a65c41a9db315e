// Recursive halving and doubling between pairs; rooted kinds on a binomial tree.
#include <algorithm>
#include <bit>
#include <utility>

#include "model/collective/schedule.h"

namespace astra_sim::model {

namespace {

// Recursive halving (scatter), then doubling (gather), between 2^k pairs or single ranks: the first
// `extra` pairs are neighbours of which the odd one gives its vector to the even one before, and
// gets its result after.
void halving(ScheduleBuilder& out, const Line& line, bool scatters, bool gathers) {
  const std::uint32_t n = line.size();
  const std::uint32_t power = std::bit_floor(n);
  const std::uint32_t extra = n - power;
  const auto head = [&](std::uint32_t s) {
    return s < extra ? 2 * s : s + extra;
  };  // also: chunks before it
  const std::int64_t chunk = scatters ? line.units / n : line.units;
  const std::int64_t whole = chunk * n;
  const auto first_of = [&](std::uint32_t at) { return line.first[0] + at * chunk; };
  std::vector<Ids> got(n);
  const auto send = [&](std::uint32_t from, std::uint32_t to, std::int64_t first,
                        std::int64_t units) {
    return std::pair(to, out.add(line, from, to, first, units, got[from], true));
  };
  std::vector<std::pair<std::uint32_t, std::uint32_t>> round;
  const auto close = [&] {
    for (const auto& [to, id] : round) got[to].push_back(id);
    round.clear();
  };
  for (std::uint32_t s = 0; s < extra; ++s) {
    round.push_back(send(2 * s + 1, 2 * s, scatters ? line.first[0] : first_of(2 * s + 1),
                         scatters ? whole : chunk));
  }
  close();
  for (std::uint32_t distance = power / 2; scatters && distance > 0; distance /= 2) {
    for (std::uint32_t s = 0; s < power; ++s) {
      const std::uint32_t other =
          (s ^ distance) / distance * distance;  // the half that is not ours
      const std::uint32_t from = head(other);
      const std::uint32_t to = other + distance == power ? n : head(other + distance);
      round.push_back(send(head(s), head(s ^ distance), first_of(from), (to - from) * chunk));
    }
    close();
  }
  for (std::uint32_t distance = 1; gathers && distance < power; distance *= 2) {
    for (std::uint32_t s = 0; s < power; ++s) {
      const std::uint32_t own = s / distance * distance;
      const std::uint32_t from = head(own);
      const std::uint32_t to = own + distance == power ? n : head(own + distance);
      round.push_back(send(head(s), head(s ^ distance), first_of(from), (to - from) * chunk));
    }
    close();
  }
  for (std::uint32_t s = 0; s < extra; ++s) {
    send(2 * s, 2 * s + 1, gathers ? line.first[0] : first_of(2 * s + 1), gathers ? whole : chunk);
  }
}

// Position v is v ranks after the root; its parent lacks v's highest bit, and it has the 2^k places
// from v on below it.
void binomial(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
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
        out.add(line, place(from), place(to), line.first[place(v)], units, got[from], true));
  }
}

}  // namespace

namespace patterns {

void halving_doubling(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
  if (is_rooted(kind)) return binomial(out, line, kind);
  halving(out, line, kind != CollectiveKind::kAllGather, kind != CollectiveKind::kReduceScatter);
}

}  // namespace patterns

}  // namespace astra_sim::model
