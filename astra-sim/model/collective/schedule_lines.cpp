// Message patterns on one line: ring, direct, chain, star, halving and doubling, dissemination.
#include <bit>

#include "model/collective/schedule.h"

namespace astra_sim::model {

void ScheduleBuilder::lay(const Line& line, CollectiveKind kind, Algorithm algorithm) {
  using enum CollectiveKind;
  const bool rooted = kind == kBroadcast || kind == kReduce || kind == kGather || kind == kScatter;
  if (algorithm == Algorithm::kInSwitch) return in_switch(line, kind);
  if (kind == kBarrier) return dissemination(line);
  switch (algorithm) {
    case Algorithm::kRing:
      return rooted ? chain(line, kind) : ring(line, kind);
    case Algorithm::kDirect:
      return rooted ? star(line, kind) : direct(line, kind);
    case Algorithm::kHalvingDoubling:
      if (rooted) return binomial(line, kind);
      return halving(line, kind != kAllGather, kind != kReduceScatter);
    case Algorithm::kDoubleBinaryTree:
      return two_trees(line, kind);
    default:
      return;  // refused by Schedule::check
  }
}

// Message s of a rank waits for message s - 1 of the rank before it.
void ScheduleBuilder::ring(const Line& line, CollectiveKind kind) {
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
      here[at] = add(line, at, (at + 1) % n, first, part, {after, *after == kNone ? 0U : 1U});
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

void ScheduleBuilder::direct(const Line& line, CollectiveKind kind) {
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
      sent[distance][at] = add(line, at, to, gathers ? line.first[at] : line.first[at] + to * part,
                               part, after, true);
    }
  }
}

// Position v of the chain is v ranks after the root; gather and scatter carry what lies behind.
void ScheduleBuilder::chain(const Line& line, CollectiveKind kind) {
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
    last = add(line, from, to, line.first[grows ? place(inner + 1) : from], units,
               {&last, last == kNone ? 0U : 1U}, true);
  }
}

void ScheduleBuilder::star(const Line& line, CollectiveKind kind) {
  const std::uint32_t n = line.size();
  const bool outward = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kScatter;
  const std::int64_t units = kind == CollectiveKind::kScatter ? line.units / n : line.units;
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    const std::uint32_t other = (line.root + distance) % n;
    add(line, outward ? line.root : other, outward ? other : line.root, line.first[other], units,
        {});
  }
}

// Recursive halving (scatter), then doubling (gather), between 2^k pairs or single ranks: the first
// `extra` pairs are neighbours of which the odd one gives its vector to the even one before, and
// gets its result after.
void ScheduleBuilder::halving(const Line& line, bool scatters, bool gathers) {
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
    return std::pair(to, add(line, from, to, first, units, got[from], true));
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

// In round k, to the rank 2^k further; after the last round everybody has heard of everybody.
void ScheduleBuilder::dissemination(const Line& line) {
  const std::uint32_t n = line.size();
  std::vector<Ids> got(n);
  for (std::uint32_t distance = 1; distance < n; distance *= 2) {
    std::vector<std::uint32_t> round(n);
    for (std::uint32_t at = 0; at < n; ++at) {
      round[at] = add(line, at, (at + distance) % n, line.first[at], line.units, got[at], true);
    }
    for (std::uint32_t at = 0; at < n; ++at) got[(at + distance) % n].push_back(round[at]);
  }
}

}  // namespace astra_sim::model
