// Collectives against what no algorithm can beat, against closed forms, and against their own
// symmetry; for every size of group, on every network.
#include <algorithm>
#include <numeric>

#include "engine/folded/folded.h"
#include "engine/loop/engine.h"
#include "model/base/arithmetic.h"
#include "model/graph/graph_builder.h"
#include "tests/check.h"

using namespace astra_sim;
using namespace astra_sim::engine;
using model::Algorithm;
using model::CollectiveKind;
using model::TopologyKind;

namespace {

constexpr model::BytesPerSecond kBandwidth = 1'000'000'007;
constexpr Ps kLatency = 1000;

CollectiveSite site(TopologyKind where, std::uint32_t n, CollectiveKind kind, Algorithm algorithm,
                    NetworkKind network) {
  std::vector<DeviceId> group(n);
  std::iota(group.begin(), group.end(), 0U);
  CollectiveSite out{Topology::single(where, n, kBandwidth, kLatency),
                     group,
                     kind,
                     algorithm,
                     nullptr,
                     {network, 0}};
  out.shape.topology = out.topology;
  return out;
}

struct Result {
  std::vector<Ps> ends;
  std::vector<model::LinkCounters> links;
  Ps last() const { return *std::max_element(ends.begin(), ends.end()); }
};

Result simulate(const CollectiveSite& where, Bytes bytes) {
  Engine engine(where.topology, where.options);
  model::GraphBuilder builder(where.topology->num_devices());
  builder.add_plan(where.plan(builder.add_group(where.group)));
  for (const DeviceId device : where.group) builder.collective(device, 0, 0, bytes, {});
  const GraphId id = engine.submit(builder.build(), 0);
  engine.run();
  const auto ends = engine.times(id).end_ps;
  return {{ends.begin(), ends.end()}, engine.link_counters()};
}

// What ranks have to receive in all, whatever the algorithm; 0: at least nothing. Parts differ by a
// byte.
Bytes least_received(CollectiveKind kind, std::int64_t n, Bytes bytes) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1) * bytes;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return (n - 1) * bytes;
    case CollectiveKind::kAllToAll:
      return (n - 1) * bytes - n * n;
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return bytes - bytes / n - 2;
    case CollectiveKind::kBarrier:
      return 0;
  }
  return 0;
}

void check_bounds(const CollectiveSite& where, Bytes bytes) {
  const Result result = simulate(where, bytes);
  const Topology& topology = *where.topology;
  const auto n = static_cast<std::int64_t>(where.group.size());
  const bool waits = where.options.network != NetworkKind::kCongestionUnaware;
  std::vector<Bytes> out(topology.num_vertices(), 0);
  std::vector<Bytes> in(topology.num_vertices(), 0);
  Ps busiest = 0;
  for (std::size_t l = 0; l < result.links.size(); ++l) {
    out[topology.links()[l].from] += result.links[l].bytes;
    in[topology.links()[l].to] += result.links[l].bytes;
    busiest = std::max(busiest, result.links[l].busy_ps);
    // The speed of light: a link that carried so many bytes was busy that long.
    const Ps least = model::serialisation_ps(result.links[l].bytes, kBandwidth);
    CHECK(result.links[l].busy_ps >= least);
    if (waits) CHECK(result.last() >= least);
  }
  if (waits) CHECK(result.last() >= busiest);
  CHECK(n == 1 || result.last() >= kLatency);
  if (n == 1) CHECK_EQUAL(result.last(), 0);
  // Bytes: switches pass on what they get, unless they reduce and multicast.
  const bool in_switch = where.algorithm == Algorithm::kInSwitch;
  for (model::VertexId v = topology.num_devices(); v < topology.num_vertices() && !in_switch; ++v) {
    CHECK_EQUAL(out[v], in[v]);
  }
  const Bytes received = std::accumulate(in.begin(), in.begin() + topology.num_devices(), Bytes{0});
  const Bytes sent = std::accumulate(out.begin(), out.begin() + topology.num_devices(), Bytes{0});
  if (!in_switch && n > 1) {
    CHECK_EQUAL(received, sent);
    CHECK(received >= least_received(where.kind, n, bytes));
  }
  const bool best = where.algorithm == Algorithm::kDirect && n > 1 &&
                    where.kind != CollectiveKind::kBarrier &&
                    topology.dimensions()[0].kind != TopologyKind::kRing;
  if (best) CHECK(received <= least_received(where.kind, n, bytes) + n * n);
}

// Ranks that nothing tells apart: a rotation of the group changes neither the network nor the
// messages.
bool symmetric(const CollectiveSite& where) {
  const std::size_t n = where.group.size();
  const bool power = (n & (n - 1)) == 0;
  if (where.kind > CollectiveKind::kAllToAll && where.kind != CollectiveKind::kBarrier)
    return false;
  if (where.algorithm == Algorithm::kInSwitch) return true;
  if (where.algorithm == Algorithm::kDoubleBinaryTree)
    return where.kind == CollectiveKind::kBarrier;
  if (where.kind == CollectiveKind::kBarrier) return true;
  return where.algorithm != Algorithm::kHalvingDoubling || power;
}

void every_size() {
  test::Random random(61);
  int cases = 0;
  for (std::uint32_t n = 1; n <= 17; ++n) {
    for (int i = 0; i < 9 * 6 * 9; ++i) {
      const auto network = static_cast<NetworkKind>(i % 3);
      const auto topology = static_cast<TopologyKind>(i / 3 % 3);
      const auto algorithm = static_cast<Algorithm>(i / 9 % 6);
      CollectiveSite where =
          site(topology, n, static_cast<CollectiveKind>(i / 54), algorithm, network);
      where.shape.root = static_cast<std::uint32_t>(random.between(0, n - 1));
      if (random.between(0, 2) == 0)
        where.shape.pieces = static_cast<std::uint32_t>(random.between(1, 4));
      try {
        check_site(where);
        if (where.scheduled()) model::Schedule::make(where.plan(), where.group);
      } catch (const model::InvalidTopology&) {
        continue;  // no such algorithm for the kind, or no switch
      }
      ++cases;
      const Bytes bytes =
          random.between(0, 3) == 0 ? random.between(0, 40) : random.between(0, 1'000'000);
      check_bounds(where, bytes);
      // On a ring of links equal routes go both ways half around: a rotation keeps them.
      if (!symmetric(where) || topology == TopologyKind::kRing) continue;
      const Result result = simulate(where, bytes);
      for (const Ps end : result.ends) CHECK_EQUAL(end, result.ends[0]);
    }
  }
  CHECK(cases > 17 * 9 * 25);
}

// One link per pair, equal parts of S / n: what the textbook says, in whole picoseconds.
void closed_forms() {
  using enum CollectiveKind;
  for (std::int64_t n = 2; n <= 17; ++n) {
    const Bytes bytes = n * 8640;
    const auto took = [&](CollectiveKind kind, Algorithm algorithm, std::uint32_t window = 0) {
      std::vector<Ps> all;
      for (const auto network : {NetworkKind::kCongestionUnaware, NetworkKind::kCongestionAware,
                                 NetworkKind::kFairShare}) {
        CollectiveSite where = site(TopologyKind::kFullyConnected, static_cast<std::uint32_t>(n),
                                    kind, algorithm, network);
        if (window != 0) where.shape.windows = {window};
        all.push_back(simulate(where, bytes).last());
      }
      CHECK_EQUAL(all[0], all[1]);
      CHECK_EQUAL(all[0], all[2]);
      return all[0];
    };
    const auto step = [&](Bytes size) {
      return kLatency + model::serialisation_ps(size, kBandwidth);
    };
    const Bytes part = bytes / n;
    CHECK_EQUAL(took(kAllReduce, Algorithm::kRing), 2 * (n - 1) * step(part));
    CHECK_EQUAL(took(kAllGather, Algorithm::kRing), (n - 1) * step(part));
    CHECK_EQUAL(took(kAllToAll, Algorithm::kDirect), step(part));
    CHECK_EQUAL(took(kAllReduce, Algorithm::kDirect), 2 * step(part));
    for (std::int64_t window = 1; window <= n; ++window) {
      const std::int64_t rounds = (n - 1 + window - 1) / window;
      CHECK_EQUAL(took(kAllToAll, Algorithm::kDirect, static_cast<std::uint32_t>(window)),
                  rounds * step(part));
      CHECK_EQUAL(took(kAllReduce, Algorithm::kDirect, static_cast<std::uint32_t>(window)),
                  2 * rounds * step(part));
    }
    Ps exchange = 0;
    std::int64_t rounds = 0;
    for (std::int64_t reach = 1; reach < n; reach *= 2) ++rounds;
    CHECK_EQUAL(took(kBarrier, Algorithm::kRing), rounds * step(bytes));
    CHECK_EQUAL(took(kBroadcast, Algorithm::kRing), (n - 1) * step(bytes));
    CHECK_EQUAL(took(kBroadcast, Algorithm::kDirect), step(bytes));
    if ((n & (n - 1)) != 0) continue;
    for (Bytes size = bytes / 2; size >= part; size /= 2) exchange += step(size);
    CHECK_EQUAL(took(kAllReduce, Algorithm::kHalvingDoubling), 2 * exchange);
    CHECK_EQUAL(took(kReduceScatter, Algorithm::kHalvingDoubling), exchange);
    CHECK_EQUAL(took(kBroadcast, Algorithm::kHalvingDoubling), rounds * step(bytes));
  }
}

// A ring all-reduce spelled out message by message takes as long as the built-in one, whatever the
// starts.
void custom_schedules() {
  test::Random random(62);
  for (int i = 0; i < 100; ++i) {
    const auto n = static_cast<std::uint32_t>(random.between(2, 9));
    const auto network = static_cast<NetworkKind>(random.between(0, 2));
    CollectiveSite plain =
        site(TopologyKind::kRing, n, CollectiveKind::kAllReduce, Algorithm::kRing, network);
    std::vector<model::CustomMessage> messages;
    for (std::uint32_t s = 0; s < 2 * (n - 1); ++s) {
      for (std::uint32_t r = 0; r < n; ++r) {
        model::CustomMessage m{r, (r + 1) % n, (r + 2 * n - s) % n, 1, {}};
        if (s > 0) m.after.push_back((s - 1) * n + (r + n - 1) % n);
        messages.push_back(m);
      }
    }
    CollectiveSite custom = plain;
    custom.algorithm = Algorithm::kCustom;
    custom.schedule = model::Schedule::custom(n, n, messages);
    std::vector<Ps> starts(n);
    for (Ps& start : starts) start = random.between(0, 5'000'000);
    const Bytes bytes = random.between(0, 1'000'000);
    std::vector<Ps> a(n);
    std::vector<Ps> b(n);
    IsolatedSimulation(plain).run(bytes, starts, a);
    IsolatedSimulation(custom).run(bytes, starts, b);
    for (std::uint32_t r = 0; r < n; ++r) CHECK_EQUAL(b[r], a[r]);
    CHECK(is_linear(custom) == is_linear(plain));
  }
  const auto make = [](std::vector<model::CustomMessage> messages) {
    model::Schedule::custom(3, 4, messages);
  };
  CHECK_THROWS(model::InvalidTopology,
               "message 0 of a custom collective goes from rank 1 to rank 1",
               make({{1, 1, 0, 1, {}}}));
  CHECK_THROWS(model::InvalidTopology, "carries 5 units", make({{0, 1, 0, 5, {}}}));
  CHECK_THROWS(model::InvalidTopology, "does not arrive at its sender",
               make({{0, 1, 0, 1, {}}, {0, 2, 0, 1, {0}}}));
  CHECK_THROWS(model::InvalidTopology, "message 0 of a custom collective never leaves",
               make({{0, 1, 0, 1, {1}}, {1, 0, 0, 1, {0}}}));
  CollectiveSite where = site(TopologyKind::kRing, 4, CollectiveKind::kAllReduce,
                              Algorithm::kCustom, NetworkKind::kCongestionAware);
  CHECK_THROWS(model::InvalidTopology, "needs a schedule", isolated_duration(where, 1));
  where.schedule = model::Schedule::custom(3, 1, {});
  CHECK_THROWS(model::InvalidTopology, "schedule for 3 ranks, but its group has 4",
               isolated_duration(where, 1));
}

}  // namespace

int main() {
  every_size();
  closed_forms();
  custom_schedules();
  return test::finish("bounds_test");
}
