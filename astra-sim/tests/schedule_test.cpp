// Scheduled collectives: equal to the plain ones where both exist, correct as data movement, for
// any group.
#include "model/collective/schedule.h"

#include <numeric>

#include "engine/folded/folded.h"
#include "model/base/arithmetic.h"
#include "model/base/errors.h"
#include "model/graph/graph_builder.h"
#include "tests/random_chain.h"

using namespace astra_sim;
using namespace astra_sim::engine;
using model::Algorithm;
using model::CollectiveKind;
using model::TopologyKind;

namespace {

CollectiveSite site(TopologyKind where, std::uint32_t devices, CollectiveKind kind,
                    Algorithm algorithm, NetworkKind network = NetworkKind::kCongestionAware) {
  std::vector<DeviceId> group(devices);
  std::iota(group.begin(), group.end(), 0U);
  return {model::Topology::single(where, devices, 1'000'000'000'000, 10),
          group,
          kind,
          algorithm,
          nullptr,
          {network, 0}};
}

// Ring and direct through a schedule (a dimension list makes one) end when the plain ones end, rank
// by rank.
void equal_to_plain() {
  test::Random random(31);
  for (int i = 0; i < 600; ++i) {
    CollectiveSite plain = test::random_site(random, 9);
    plain.options.network = static_cast<NetworkKind>(random.between(0, 2));
    CollectiveSite scheduled = plain;
    scheduled.shape.dims = {static_cast<std::uint32_t>(plain.group.size())};
    const Bytes bytes = test::random_bytes(random);
    std::vector<Ps> starts(plain.group.size());
    const std::int64_t spread[] = {0, 1, 1'000'000, 10'000'000'000'000};
    for (Ps& start : starts) start = random.between(0, spread[random.between(0, 3)]);
    std::vector<Ps> a(starts.size());
    std::vector<Ps> b(starts.size());
    IsolatedSimulation(plain).run(bytes, starts, a);
    IsolatedSimulation(scheduled).run(bytes, starts, b);
    // A direct all-reduce of late ranks may send its second phase in another order: equal while
    // they start together.
    const bool together =
        std::all_of(starts.begin(), starts.end(), [&](Ps s) { return s == starts[0]; });
    if (plain.algorithm == Algorithm::kDirect && !together) continue;
    for (std::size_t r = 0; r < a.size(); ++r) CHECK_EQUAL(b[r], a[r]);
  }
}

CollectiveSite random_plan(test::Random& random) {
  CollectiveSite out;
  std::uint32_t n = 1;
  const std::int64_t dims = random.between(1, 3);
  for (std::int64_t d = 0; d < dims; ++d) {
    out.shape.dims.push_back(static_cast<std::uint32_t>(random.between(1, dims == 1 ? 20 : 5)));
    n *= out.shape.dims.back();
    const Algorithm choices[] = {Algorithm::kRing,
                                 Algorithm::kDirect,
                                 Algorithm::kHalvingDoubling,
                                 Algorithm::kDoubleBinaryTree,
                                 Algorithm::kInSwitch,
                                 Algorithm::kBruck};
    out.shape.algorithms.push_back(choices[random.between(0, 5)]);
  }
  out.topology = model::Topology::single(static_cast<TopologyKind>(random.between(0, 2)), n,
                                         7'000'000'001, 1000);
  if (std::count(out.shape.algorithms.begin(), out.shape.algorithms.end(), Algorithm::kInSwitch) !=
      0) {
    out.topology = model::Topology::single(TopologyKind::kSwitched, n, 7'000'000'001, 1000);
  }
  out.group.resize(n);
  std::iota(out.group.begin(), out.group.end(), 0U);
  out.kind = static_cast<CollectiveKind>(random.between(0, 8));
  out.algorithm = Algorithm::kRing;
  out.shape.pieces =
      static_cast<std::uint32_t>(random.between(0, 1) == 0 ? 1 : random.between(2, 5));
  out.shape.root = static_cast<std::uint32_t>(random.between(0, n - 1));
  out.shape.topology = out.topology;
  out.options.network = static_cast<NetworkKind>(random.between(0, 2));
  return out;
}

// Random plans of up to three dimensions: every network ends
// them, and where the ends are a max-plus linear function of the starts, the matrix says the same
// as the simulation.
void random_plans(int cases) {
  test::Random random(32);
  int refused = 0;
  int linear = 0;
  for (int i = 0; i < cases; ++i) {
    const CollectiveSite where = random_plan(random);
    const auto n = static_cast<std::uint32_t>(where.group.size());
    try {
      check_site(where);
    } catch (const model::InvalidTopology&) {
      ++refused;
      continue;
    }
    const Bytes bytes = test::random_bytes(random);
    IsolatedSimulation simulation(where);
    std::vector<Ps> starts(n);
    for (Ps& start : starts) start = random.between(0, 3'000'000);
    std::vector<Ps> ends(n);
    simulation.run(bytes, starts, ends);
    for (std::uint32_t r = 0; r < n; ++r) CHECK(ends[r] >= starts[r]);
    if (n > 16) continue;
    const CollectiveMap map = CollectiveMap::isolated(where, bytes);
    if (!map.linear()) continue;
    ++linear;
    std::vector<Ps> mapped(n);
    map.apply(starts, mapped);
    for (std::uint32_t r = 0; r < n; ++r) CHECK_EQUAL(mapped[r], ends[r]);
  }
  std::fprintf(stderr, "plans: %d of %d refused, %d linear\n", refused, cases, linear);
  CHECK(refused < cases * 3 / 4);
  CHECK(linear > cases / 40);
}

// 1 byte per ps, latency 10 per link, 8 ranks on a fully connected network unless said otherwise.
void known_durations() {
  using enum CollectiveKind;
  const auto full = TopologyKind::kFullyConnected;
  const auto took = [](const CollectiveSite& where, Bytes bytes) {
    return isolated_duration(where, bytes);
  };
  const Algorithm halving = Algorithm::kHalvingDoubling;
  CHECK_EQUAL(took(site(full, 8, kAllReduce, halving), 8000), 2 * (4000 + 2000 + 1000 + 3 * 10));
  CHECK_EQUAL(took(site(full, 8, kReduceScatter, halving), 8000), 7000 + 3 * 10);
  CHECK_EQUAL(took(site(full, 8, kAllGather, halving), 8000), 7000 + 3 * 10);
  // Six ranks: two pairs give their vectors first (6000), then four: 3 + ... chunks of 1000.
  CHECK(took(site(full, 6, kAllReduce, halving), 6000) > 2 * 6000);
  CHECK_EQUAL(took(site(full, 8, kBroadcast, Algorithm::kDirect), 8000), 8010);
  CHECK_EQUAL(took(site(full, 8, kBroadcast, Algorithm::kRing), 8000), 7 * 8010);
  CHECK_EQUAL(took(site(full, 8, kBroadcast, halving), 8000), 3 * 8010);
  CHECK_EQUAL(took(site(full, 8, kGather, Algorithm::kDirect), 8000), 1010);
  CHECK_EQUAL(took(site(full, 8, kBarrier, Algorithm::kRing), 0), 3 * 10);
  CollectiveSite pipelined = site(full, 8, kBroadcast, Algorithm::kRing);
  pipelined.shape.pieces = 8;
  CHECK_EQUAL(took(pipelined, 8000), (7 + 7) * 1000 + 7 * 10);
  CollectiveSite nvls = site(TopologyKind::kSwitched, 8, kAllReduce, Algorithm::kInSwitch);
  nvls.shape.topology = nvls.topology;
  CHECK_EQUAL(took(nvls, 8000), 2 * 8010);  // once up, once down
  nvls.shape.pieces = 8;
  CHECK_EQUAL(took(nvls, 8000), 9 * 1000 + 2 * 10);
  CollectiveSite grid = site(full, 8, kAllReduce, Algorithm::kDirect);
  const model::Dimension dims[] = {{full, 4, 1'000'000'000'000, 10},
                                   {full, 2, 100'000'000'000, 100}};
  grid.topology = model::Topology::grid(dims);
  grid.shape.dims = {4, 2};
  CHECK_EQUAL(took(grid, 8000),
              2 * (2000 + 10) + 2 * (10'000 + 100));  // S/4 inside, S/8 at a tenth of the speed
  grid.options.network = NetworkKind::kFairShare;
  CHECK_EQUAL(took(grid, 8000), 2 * (2000 + 10) + 2 * (10'000 + 100));
  CollectiveSite pairs = site(full, 3, kAllToAll, Algorithm::kDirect);
  pairs.shape.pair_units = std::make_shared<const std::vector<std::int64_t>>(
      std::vector<std::int64_t>{0, 5, 0, 1, 0, 0, 7, 0, 0});
  CHECK_EQUAL(took(pairs, 100), 710);
}

// Every network carries the bytes of the algorithm, whatever the remainder.
void bytes_are_exact() {
  using enum CollectiveKind;
  test::Random random(33);
  for (int i = 0; i < 300; ++i) {
    const auto n = static_cast<std::uint32_t>(random.between(2, 17));
    const CollectiveKind kinds[] = {kReduceScatter, kAllGather, kBroadcast,
                                    kReduce,        kGather,    kScatter};
    const CollectiveKind kind = kinds[random.between(0, 5)];
    CollectiveSite where = site(TopologyKind::kFullyConnected, n, kind, Algorithm::kDirect);
    where.shape.dims = {n};
    where.shape.root = static_cast<std::uint32_t>(random.between(0, n - 1));
    const Bytes bytes = random.between(0, 1000);
    const auto schedule = model::Schedule::make(where.plan(), where.group);
    Bytes total = 0;
    for (std::uint32_t m = 0; m < schedule->num_messages(); ++m) {
      total += schedule->exact_bytes(schedule->message(m), bytes);
      CHECK(schedule->timing_bytes(schedule->message(m), bytes) >=
            schedule->exact_bytes(schedule->message(m), bytes));
    }
    const bool whole = kind != kGather && kind != kScatter;
    if (whole) CHECK_EQUAL(total, (n - 1) * bytes);
    if (!whole) CHECK(total <= bytes && total >= bytes - bytes / n - 2);
  }
}

// In plans of several dimensions, too, where what a rank passes on may lie at both ends of its
// line's part.
void no_message_carries_more_than_its_timing() {
  test::Random random(34);
  for (int i = 0; i < 1500; ++i) {
    const CollectiveSite where = random_plan(random);
    const Bytes bytes = random.between(0, 2000);
    std::shared_ptr<const model::Schedule> schedule;
    try {
      schedule = model::Schedule::make(where.plan(), where.group);
    } catch (const model::InvalidTopology&) {
      continue;
    }
    for (const model::Message& message : schedule->messages()) {
      const Bytes exact = schedule->exact_bytes(message, bytes);
      const Bytes timing = schedule->timing_bytes(message, bytes);
      CHECK(exact <= timing && timing <= exact + 2);
    }
  }
}

void refusals() {
  using enum CollectiveKind;
  const auto full = TopologyKind::kFullyConnected;
  CHECK_THROWS(model::InvalidTopology, "no such message pattern",
               isolated_duration(site(full, 4, kAllToAll, Algorithm::kHalvingDoubling), 1));
  CHECK_THROWS(model::InvalidTopology, "needs to know the topology",
               isolated_duration(site(full, 4, kAllReduce, Algorithm::kInSwitch), 1));
  CollectiveSite apart = site(full, 4, kAllReduce, Algorithm::kInSwitch);
  apart.shape.topology = apart.topology;
  CHECK_THROWS(model::InvalidTopology, "on one switch", isolated_duration(apart, 1));
  CollectiveSite shape = site(full, 4, kAllReduce, Algorithm::kRing);
  shape.shape.dims = {3, 2};
  CHECK_THROWS(model::InvalidTopology, "product", isolated_duration(shape, 1));
  shape.shape.dims = {};
  shape.shape.pieces = 0;
  CHECK_THROWS(model::InvalidTopology, "0 pieces", isolated_duration(shape, 1));
  shape.shape.pieces = 1;
  shape.shape.pair_units = std::make_shared<const std::vector<std::int64_t>>(16, 1);
  CHECK_THROWS(model::InvalidTopology, "direct all-to-all", isolated_duration(shape, 1));
}

}  // namespace

int main() {
  equal_to_plain();
  random_plans(1500);
  known_durations();
  bytes_are_exact();
  no_message_carries_more_than_its_timing();
  refusals();
  return test::finish("schedule_test");
}
