// folded == expanded, to the picosecond, on random chains; and the maps that make it so.
#include "engine/folded/folded.h"

#include "tests/random_chain.h"

using namespace astra_sim;
using namespace astra_sim::engine;
using test::Random;

namespace {

struct Tally {
  int equal = 0;
  int refused = 0;
};

void compare(const Chain& chain, const std::vector<Ps>& starts, Tally& tally) {
  std::vector<Ps> folded(starts.size());
  std::vector<Ps> expanded(starts.size());
  FoldedChain compiled(chain);
  try {
    compiled.end(starts, folded);
  } catch (const model::NotFoldable&) {
    CHECK(!compiled.linear());
    ++tally.refused;
    return;
  }
  expanded_ends(chain, starts, expanded);
  for (std::size_t rank = 0; rank < starts.size(); ++rank)
    CHECK_EQUAL(folded[rank], expanded[rank]);
  ++tally.equal;
}

void equal_starts(int cases) {
  Random random(1);
  Tally tally;
  for (int i = 0; i < cases; ++i) {
    const Chain chain = test::random_chain(random, 9);
    compare(chain, std::vector<Ps>(chain.sites[0].group.size(), random.between(0, 5'000'000)),
            tally);
  }
  std::fprintf(stderr, "equal starts: %d equal, %d refused\n", tally.equal, tally.refused);
  CHECK(tally.equal > cases * 9 / 10);
}

void skewed_starts(int cases) {
  Random random(2);
  Tally tally;
  for (int i = 0; i < cases; ++i) {
    Chain chain = test::random_chain(random, 9);
    if (i % 2 == 0) test::skew_compute(random, chain);
    std::vector<Ps> starts(chain.sites[0].group.size());
    const Ps spread = std::int64_t{1} << random.between(1, 40);
    for (Ps& start : starts) start = random.between(0, spread);
    compare(chain, starts, tally);
  }
  std::fprintf(stderr, "skewed starts: %d equal, %d refused\n", tally.equal, tally.refused);
  CHECK(tally.equal > cases / 2);
  CHECK(tally.refused > 0);  // shared links have to be noticed
}

// The leap over identical layers changes nothing: one block of 200 against 200 blocks of one.
void leap_is_exact() {
  Random random(3);
  for (int i = 0; i < 100; ++i) {
    Chain chain = test::random_chain(random, 6);
    if (chain.blocks.empty()) continue;
    chain.blocks.resize(1);
    chain.blocks[0].repeat = 200;
    Chain unrolled = chain;
    unrolled.blocks[0].repeat = 1;
    unrolled.blocks.resize(200, unrolled.blocks[0]);
    const std::size_t n = chain.sites[0].group.size();
    std::vector<Ps> starts(n, 17);
    FoldedChain leaping(chain);
    FoldedChain plain(unrolled);
    if (leaping.linear()) {
      for (Ps& start : starts) start = random.between(0, 10'000'000);
    }
    std::vector<Ps> a(n);
    std::vector<Ps> b(n);
    try {
      leaping.end(starts, a);
      plain.end(starts, b);
    } catch (const model::NotFoldable&) {
      continue;
    }
    for (std::size_t rank = 0; rank < n; ++rank) CHECK_EQUAL(a[rank], b[rank]);
  }
}

void maps_match_simulation(int cases) {
  Random random(4);
  int forms[4] = {0, 0, 0, 0};
  for (int i = 0; i < cases; ++i) {
    const CollectiveSite site = test::random_site(random, 10);
    const Bytes bytes = test::random_bytes(random);
    const CollectiveMap map = CollectiveMap::isolated(site, bytes);
    ++forms[static_cast<int>(map.form())];
    CHECK(map.linear() == is_linear(site));
    const std::size_t n = site.group.size();
    IsolatedSimulation simulation(site);
    std::vector<Ps> starts(n);
    std::vector<Ps> ends(n);
    std::vector<Ps> expected(n);
    for (int round = 0; round < 3; ++round) {
      const Ps spread = std::int64_t{1} << random.between(1, 44);
      for (Ps& start : starts) start = random.between(0, spread);
      map.apply(starts, ends);
      simulation.run(bytes, starts, expected);
      for (std::size_t rank = 0; rank < n; ++rank) CHECK_EQUAL(ends[rank], expected[rank]);
    }
    CHECK_EQUAL(isolated_duration(site, bytes), simulation.duration(bytes));
    CHECK_EQUAL(map.simultaneous_ps(), simulation.duration(bytes));
  }
  std::fprintf(stderr, "maps: %d scalar, %d circulant, %d matrix, %d simulated\n", forms[0],
               forms[1], forms[2], forms[3]);
  for (const int count : forms) CHECK(count > 0);
}

void errors() {
  Chain chain;
  CHECK_THROWS(model::InvalidGraph, "at least one collective site", FoldedChain{chain});
  Random random(5);
  chain = test::random_chain(random, 4);
  chain.blocks = {{{{{}, 9, 8}}, 1}};
  CHECK_THROWS(model::InvalidGraph, "names site 9", FoldedChain{chain});
  chain.blocks = {{{{{1}, 0, 0}}, std::int64_t{1} << 62}};
  CHECK_THROWS(model::OutOfRange, "ps", FoldedChain{chain}.end(1));
}

}  // namespace

int main() {
  equal_starts(3000);
  skewed_starts(3000);
  leap_is_exact();
  maps_match_simulation(1500);
  errors();
  return test::finish("folded_test");
}
