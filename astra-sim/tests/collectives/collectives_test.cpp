// Collectives against closed forms and conservation of bytes; closed forms against the simulation.
#include <numeric>

#include "engine/isolated/isolated.h"
#include "model/base/arithmetic.h"
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
  return {Topology::single(where, devices, 1'000'000'000'000, 10),
          group,
          kind,
          algorithm,
          nullptr,
          {network, 0}};
}

// 8001 bytes on 8 ranks: chunks of 1001 bytes for timing; a link hop takes 1011 ps.
void known_durations() {
  using enum CollectiveKind;
  using enum TopologyKind;
  CHECK_EQUAL(isolated_duration(site(kRing, 8, kAllReduce, Algorithm::kRing), 8001), 14 * 1011);
  CHECK_EQUAL(isolated_duration(site(kRing, 8, kAllGather, Algorithm::kRing), 8001), 7 * 1011);
  CHECK_EQUAL(isolated_duration(site(kRing, 8, kReduceScatter, Algorithm::kRing), 8001), 7 * 1011);
  CHECK_EQUAL(isolated_duration(site(kRing, 8, kAllToAll, Algorithm::kRing), 8001), 28 * 1011);
  CHECK_EQUAL(isolated_duration(site(kSwitched, 8, kAllReduce, Algorithm::kRing), 8001), 14 * 2022);
  CHECK_EQUAL(isolated_duration(site(kFullyConnected, 8, kAllReduce, Algorithm::kDirect), 8001),
              2 * 1011);
  CHECK_EQUAL(isolated_duration(site(kSwitched, 8, kAllReduce, Algorithm::kDirect), 8001),
              2 * (8 * 1001 + 20));
  CHECK_EQUAL(isolated_duration(site(kSwitched, 8, kAllToAll, Algorithm::kDirect), 8001),
              8 * 1001 + 20);
  CHECK_EQUAL(isolated_duration(site(kRing, 1, kAllReduce, Algorithm::kRing), 8001), 0);
  CHECK_THROWS(model::OutOfRange, "-1 bytes",
               isolated_duration(site(kRing, 8, kAllReduce, Algorithm::kRing), -1));
}

// Every byte that the algorithm has to move crosses the links, and not one more, whatever the
// remainder.
void exact_bytes() {
  test::Random random(7);
  for (int i = 0; i < 400; ++i) {
    const auto n = static_cast<std::uint32_t>(random.between(2, 9));
    const auto kind = static_cast<CollectiveKind>(random.between(0, 3));
    const bool ring = random.between(0, 1) == 0;
    const CollectiveSite where = site(ring ? TopologyKind::kRing : TopologyKind::kFullyConnected, n,
                                      kind, ring ? Algorithm::kRing : Algorithm::kDirect);
    const Bytes bytes = random.between(0, 1000);
    Engine engine(where.topology, where.options);
    model::GraphBuilder builder(n);
    builder.add_plan({kind, where.algorithm, builder.add_group(where.group), nullptr});
    for (DeviceId device = 0; device < n; ++device) builder.collective(device, 0, 0, bytes, {});
    engine.submit(builder.build(), 0);
    engine.run();
    Bytes total = 0;
    for (const auto& link : engine.link_counters()) total += link.bytes;
    Bytes expected =
        (n - 1) *
        bytes;  // all-gather, reduce-scatter: each chunk to n - 1 ranks, in hops or at once
    if (kind == CollectiveKind::kAllReduce) expected *= 2;
    if (kind == CollectiveKind::kAllToAll) {
      // Block b of rank r travels (b - r) mod n links on a ring, one link otherwise.
      expected = 0;
      for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t b = 0; b < n; ++b) {
          const std::int64_t distance = (b - r + n) % n;
          expected += model::exact_chunk(bytes, n, b) * (ring ? distance : (distance != 0 ? 1 : 0));
        }
      }
    }
    CHECK_EQUAL(total, expected);
  }
}

void closed_forms(int cases) {
  test::Random random(8);
  int closed = 0;
  for (int i = 0; i < cases; ++i) {
    const CollectiveSite where = test::random_site(random, 17);
    const Bytes bytes = test::random_bytes(random);
    const std::optional<Ps> exact = closed_form(where, bytes);
    if (!exact) continue;
    ++closed;
    IsolatedSimulation simulation(where);
    CHECK_EQUAL(*exact, simulation.duration(bytes));
    CHECK_EQUAL(*exact, simulation.duration(bytes));  // its engine can be used again
  }
  std::fprintf(stderr, "closed forms: %d of %d sites\n", closed, cases);
  CHECK(closed > cases / 2);
}

void measured() {
  CollectiveSite where = site(TopologyKind::kRing, 4, CollectiveKind::kAllReduce, Algorithm::kRing);
  test::make_measured(where);
  IsolatedSimulation simulation(where);
  std::vector<Ps> ends(4);
  simulation.run(1000, std::vector<Ps>{5, 900, 1, 2}, ends);
  for (const Ps end : ends) CHECK_EQUAL(end, 900 + 6'000'001);
  where.table = nullptr;
  CHECK_THROWS(model::InvalidTopology, "a measured collective", check_site(where));
  where = site(TopologyKind::kRing, 4, CollectiveKind::kAllReduce, Algorithm::kRing);
  where.group = {0, 4};
  CHECK_THROWS(model::InvalidTopology, "device 4", IsolatedSimulation{where});
  where.group = {1, 1};
  CHECK_THROWS(model::InvalidTopology, "device 1 appears twice", isolated_duration(where, 1));
  where.group = {};
  CHECK_THROWS(model::InvalidTopology, "at least one device", isolated_duration(where, 1));
}

}  // namespace

int main() {
  known_durations();
  exact_bytes();
  closed_forms(4000);
  measured();
  return test::finish("collectives_test");
}
