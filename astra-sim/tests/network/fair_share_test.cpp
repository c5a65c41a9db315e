// FairShare against a full solver written from the rules: the same rates and ends, bit for bit.
#include "engine/network/fair_share.h"

#include <algorithm>
#include <numeric>

#include "engine/loop/engine.h"
#include "model/base/arithmetic.h"
#include "model/base/errors.h"
#include "model/graph/graph_builder.h"
#include "tests/check.h"

using namespace astra_sim;
using namespace astra_sim::engine;
using model::BytesPerSecond;
using model::Dimension;
using model::LinkId;
using model::TopologyKind;

namespace {

// Everything anew at every change; settles everything at every change.
struct FullSolver {
  struct Flow {
    std::vector<LinkId> route;
    unsigned __int128 volume;
    Rate rate = 0;
    bool open = true;
    Bytes bytes = 0;
  };
  Incast incast;  // on every second link
  std::vector<BytesPerSecond> capacities;
  std::vector<Flow> flows;  // by number of start; ended ones stay

  void solve() {
    std::vector<Rate> left;
    for (const BytesPerSecond b : capacities) left.push_back(b << 16);
    for (LinkId l = 0; l < left.size() && !incast.off(); l += 2) {
      Bytes bursts = 0;
      for (const Flow& flow : flows) {
        const bool here = std::count(flow.route.begin(), flow.route.end(), l) > 0;
        if (flow.open && here) bursts += std::min(flow.bytes, incast.burst_bytes);
      }
      left[l] = incast.capacity(left[l], bursts);
    }
    std::vector<bool> frozen(flows.size());
    for (std::size_t i = 0; i < flows.size(); ++i) frozen[i] = !flows[i].open;
    while (true) {
      std::vector<Rate> count(left.size(), 0);
      for (std::size_t i = 0; i < flows.size(); ++i) {
        for (const LinkId l : flows[i].route) count[l] += frozen[i] ? 0 : 1;
      }
      Rate level = -1;
      for (LinkId l = 0; l < left.size(); ++l) {
        if (count[l] > 0 && (level < 0 || left[l] / count[l] < level)) level = left[l] / count[l];
      }
      if (level < 0) return;
      std::vector<bool> limits(left.size());
      for (LinkId l = 0; l < left.size(); ++l)
        limits[l] = count[l] > 0 && left[l] / count[l] == level;
      for (std::size_t i = 0; i < flows.size(); ++i) {
        if (frozen[i]) continue;
        const auto& route = flows[i].route;
        if (std::none_of(route.begin(), route.end(), [&](LinkId l) { return limits[l]; })) continue;
        frozen[i] = true;
        flows[i].rate = level;
        for (const LinkId l : route) left[l] -= level;
      }
    }
  }
  Ps next_end(Ps now) const {
    Ps next = FairShare::kNever;
    for (const Flow& flow : flows) {
      if (!flow.open) continue;
      const auto rate = static_cast<unsigned __int128>(flow.rate);
      next = std::min(next, now + static_cast<Ps>((flow.volume + rate - 1) / rate));
    }
    return next;
  }
  std::vector<std::size_t> move(Ps span) {
    std::vector<std::size_t> ended;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      Flow& flow = flows[i];
      if (!flow.open) continue;
      const auto served =
          static_cast<unsigned __int128>(flow.rate) * static_cast<unsigned __int128>(span);
      if (flow.volume <= served) {
        flow.open = false;
        ended.push_back(i);
      } else {
        flow.volume -= served;
      }
    }
    return ended;
  }
};

std::vector<LinkId> random_route(test::Random& random, std::int64_t links) {
  std::vector<LinkId> all(static_cast<std::size_t>(links));
  std::iota(all.begin(), all.end(), 0U);
  const auto length = static_cast<std::size_t>(random.between(1, std::min<std::int64_t>(links, 4)));
  for (std::size_t i = 0; i < length; ++i) {
    std::swap(
        all[i],
        all[static_cast<std::size_t>(random.between(static_cast<std::int64_t>(i), links - 1))]);
  }
  all.resize(length);
  return all;
}

// What starts together: flows of several routes, or many equal ones of one route, which pile up.
enum class Bursts : std::uint8_t { kScattered, kPiled };

// Flows start in bursts at random times, on few or many links, until all have ended.
void incremental_equals_full(int cases, Bursts shape, bool incast) {
  test::Random random(21);
  std::uint64_t visits = 0;
  std::uint64_t solved = 0;
  for (int i = 0; i < cases; ++i) {
    const std::int64_t num_links = random.between(1, random.between(0, 1) == 0 ? 4 : 40);
    FullSolver full;
    for (std::int64_t l = 0; l < num_links; ++l)
      full.capacities.push_back(random.between(1, 4) * 333'333'331);
    FairShare share(full.capacities);
    if (incast) {
      full.incast = {random.between(1, 5000), random.between(1, 2000),
                     random.between(10'000, 1'000'000)};
      std::vector<LinkId> crowded;
      for (LinkId l = 0; l < full.capacities.size(); l += 2) crowded.push_back(l);
      share.crowd(full.incast, crowded);
    }
    std::vector<FlowId> id_of;
    Ps now = 0;
    std::int64_t bursts = random.between(1, 12);
    while (true) {
      Ps next = full.next_end(now);
      if (bursts > 0 && (next == FairShare::kNever || random.between(0, 1) == 0)) {
        --bursts;
        const Ps start = now + random.between(0, 2'000'000);
        next = std::min(next, start);
      }
      if (next == FairShare::kNever) break;
      const std::vector<std::size_t> expected = full.move(next - now);
      now = next;
      std::vector<FlowId> ended;
      share.end_due(now, ended);
      CHECK_EQUAL(ended.size(), expected.size());
      std::sort(ended.begin(), ended.end());
      std::vector<FlowId> wanted;
      for (const std::size_t flow : expected) wanted.push_back(id_of[flow]);
      std::sort(wanted.begin(), wanted.end());
      CHECK(ended == wanted);
      const std::int64_t most = shape == Bursts::kPiled ? 30 : 8;
      const std::int64_t more = bursts > 0 ? random.between(0, most) : 0;
      std::vector<LinkId> route;
      Bytes bytes = 0;
      for (std::int64_t k = 0; k < more; ++k) {
        if (k == 0 || shape == Bursts::kScattered) {
          route = random_route(random, num_links);
          bytes = random.between(1, random.between(0, 1) == 0 ? 3 : 3000);
        }
        id_of.push_back(share.start(now, route, bytes));
        full.flows.push_back({route,
                              (static_cast<unsigned __int128>(bytes) << 16) * 1'000'000'000'000ULL,
                              0, true, bytes});
      }
      share.solve(now);
      full.solve();
      std::size_t open = 0;
      for (std::size_t f = 0; f < full.flows.size(); ++f) {
        if (!full.flows[f].open) continue;
        ++open;
        CHECK_EQUAL(share.rate(id_of[f]), full.flows[f].rate);
      }
      CHECK_EQUAL(share.num_flows(), open);
      solved += open;
    }
    visits += share.num_visits();
    CHECK_EQUAL(share.num_flows(), 0U);
  }
  std::fprintf(stderr, "incremental solves visited %.1f %% of the flows\n",
               100.0 * static_cast<double>(visits) / static_cast<double>(solved));
  CHECK(visits < solved);
}

// b bytes at a buffer of B have b / (B + (b - B) / e) of the link.
void bursts_cost_capacity() {
  const Incast incast{1000, 600, 250'000};
  CHECK_EQUAL(incast.capacity(1 << 20, 0), 1 << 20);
  CHECK_EQUAL(incast.capacity(1 << 20, 1000), 1 << 20);
  CHECK_EQUAL(incast.capacity(1 << 20, 2000), (1 << 20) * 2 / 5);
  CHECK_EQUAL(incast.capacity(1 << 20, 1'000'000'000), (1 << 18));
  Rate before = 1 << 30;
  for (Bytes bursts = 0; bursts < 20'000; bursts += 7) {
    const Rate here = incast.capacity(1 << 30, bursts);
    CHECK(here <= before && here > 0);
    before = here;
  }
}

// Ends of transfers that start at 0 on streams of their own.
std::vector<Ps> ends(Engine& engine, const std::vector<std::array<DeviceId, 2>>& pairs,
                     const std::vector<Bytes>& sizes) {
  model::GraphBuilder builder(engine.topology().num_devices());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    builder.transfer(pairs[i][0], pairs[i][1], sizes[i], {}, model::Stream::kNone);
  }
  const GraphId id = engine.submit(builder.build(), engine.now());
  engine.run();
  const auto span = engine.times(id).end_ps;
  return {span.begin(), span.end()};
}

// 1 TB/s: 1 byte per ps; latency 10 ps per link, once per route.
void known_ends() {
  const auto topology = model::Topology::single(TopologyKind::kSwitched, 4, 1'000'000'000'000, 10);
  Engine engine(topology, {NetworkKind::kFairShare, 5});
  const std::vector<Ps> out = ends(engine, {{0, 3}, {1, 3}, {2, 1}}, {1000, 3000, 500});
  CHECK_EQUAL(out[0], 2000 + 25);
  CHECK_EQUAL(out[1], 4000 + 25);
  CHECK_EQUAL(out[2], 500 + 25);
  const LinkCounters down = engine.link_counters()[4 + 3];
  CHECK_EQUAL(down.bytes, 4000);
  CHECK_EQUAL(down.busy_ps, 4000);
  CHECK_EQUAL(down.peak_messages, 2);
  const Ps before = engine.now();
  CHECK_EQUAL(ends(engine, {{0, 3}}, {0})[0], before + 25);
  const Dimension limited[] = {
      {TopologyKind::kSwitched, 4, 1'000'000'000'000, 10, 1'000'000'000'000}};
  Engine blocks(model::Topology::grid(limited), {NetworkKind::kFairShare, 0});
  for (const Ps end : ends(blocks, {{0, 1}, {1, 2}, {2, 3}, {3, 0}}, {1000, 1000, 1000, 1000})) {
    CHECK_EQUAL(end, 4020);
  }
}

// The quantum delays re-solves, never more than it says, and counts them.
void quantum() {
  for (const std::int64_t ppm : {0, 10'000, 300'000}) {
    std::vector<BytesPerSecond> capacities(2, 1'000'000'000);
    FairShare share(capacities, {ppm, 0});
    const LinkId route[] = {0};
    for (Bytes i = 1; i <= 100; ++i) share.start(0, route, 1000 * i);
    Ps now = 0;
    std::vector<FlowId> ended;
    for (share.solve(0); share.next_end() != FairShare::kNever; share.solve(now)) {
      now = share.next_end();
      share.end_due(now, ended);
    }
    CHECK_EQUAL(ended.size(), 100U);
    const Ps exact = 5'050'000'000;  // the sum of all bytes at 1 GB/s
    CHECK(now >= exact && now - exact <= exact * ppm / 500'000 + 100 * 100);
    CHECK_EQUAL(share.num_deferred() > 0, ppm > 0);
  }
  FairShare equal(std::vector<BytesPerSecond>{1000, 2000}, {10'000, 0});
  const LinkId slow[] = {0};
  const LinkId fast[] = {1};
  for (int i = 0; i < 8; ++i) equal.start(0, i % 2 == 0 ? std::span(slow) : std::span(fast), 77);
  std::vector<FlowId> ended;
  Ps now = 0;
  for (equal.solve(0); equal.next_end() != FairShare::kNever; equal.solve(now)) {
    now = equal.next_end();
    equal.end_due(now, ended);
    CHECK_EQUAL(equal.num_deferred(), 0U);
  }
  CHECK_EQUAL(ended.size(), 8U);
}

void limits() {
  CHECK_THROWS(model::OutOfRange, "too fast",
               FairShare(std::vector<BytesPerSecond>{BytesPerSecond{1} << 47}));
  const auto topology = model::Topology::single(TopologyKind::kRing, 2, 1, 0);
  CHECK_THROWS(model::InvalidTopology, "rate quantum",
               Engine(topology, {NetworkKind::kFairShare, 0, {-1, 0}}));
  Engine slow(topology, {NetworkKind::kFairShare, 0});
  CHECK_THROWS(model::OutOfRange, "horizon", ends(slow, {{0, 1}}, {model::kMaxBytes}));
}

// Collectives end, alone and skewed, and no byte is lost; a ring on private links takes what it
// takes alone.
void collectives() {
  test::Random random(22);
  for (int i = 0; i < 200; ++i) {
    const auto n = static_cast<std::uint32_t>(random.between(2, 9));
    const auto topology = model::Topology::single(static_cast<TopologyKind>(random.between(0, 2)),
                                                  n, 1'000'000'007, 10);
    Engine engine(topology, {NetworkKind::kFairShare, random.between(0, 3)});
    model::GraphBuilder builder(n);
    std::vector<DeviceId> group(n);
    std::iota(group.begin(), group.end(), 0U);
    const auto algorithm = static_cast<model::Algorithm>(random.between(0, 1));
    builder.add_plan({static_cast<model::CollectiveKind>(random.between(0, 3)), algorithm,
                      builder.add_group(group), nullptr});
    for (std::uint64_t d = 0; d < n; ++d)
      builder.compute(static_cast<DeviceId>(d), random.between(0, 9'000), {});
    for (std::uint64_t d = 0; d < n; ++d) {
      builder.collective(static_cast<DeviceId>(d), 0, 0, random.between(0, 0) + 12'345, {&d, 1});
    }
    engine.submit(builder.build(), 0);
    CHECK(engine.run() > 0);
    CHECK_EQUAL(engine.num_in_flight(), 0U);
    CHECK_EQUAL(engine.fair_share_counters().flows, 0U);
  }
  const auto ring = model::Topology::single(TopologyKind::kRing, 8, 1'000'000'007, 10);
  std::vector<DeviceId> group(8);
  std::iota(group.begin(), group.end(), 0U);
  model::GraphBuilder builder(8);
  builder.add_plan({model::CollectiveKind::kAllReduce, model::Algorithm::kRing,
                    builder.add_group(group), nullptr});
  for (DeviceId d = 0; d < 8; ++d) builder.collective(d, 0, 0, 80'001, {});
  Engine engine(ring, {NetworkKind::kFairShare, 0});
  engine.submit(builder.build(), 0);
  CHECK_EQUAL(engine.run(), 14 * (10 + model::serialisation_ps(10'001, 1'000'000'007)));
}

}  // namespace

int main() {
  bursts_cost_capacity();
  incremental_equals_full(1500, Bursts::kScattered, false);
  incremental_equals_full(1500, Bursts::kScattered, true);
  incremental_equals_full(500, Bursts::kPiled, false);
  known_ends();
  quantum();
  limits();
  collectives();
  return test::finish("fair_share_test");
}
