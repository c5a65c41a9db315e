// Links one message at a time: rounding, routes, queues and counters, against hand calculations.
#include "engine/network/network.h"

#include <array>
#include <vector>

#include "engine/loop/engine.h"
#include "model/base/arithmetic.h"
#include "model/base/errors.h"
#include "model/graph/graph_builder.h"
#include "tests/check.h"

using namespace astra_sim;
using namespace astra_sim::engine;
using model::GraphBuilder;
using model::TopologyKind;

namespace {

using Parents = std::vector<std::uint64_t>;

void arithmetic() {
  CHECK_EQUAL(model::serialisation_ps(0, 3), 0);
  CHECK_EQUAL(model::serialisation_ps(1, 3), 333'333'333'334);
  CHECK_EQUAL(model::serialisation_ps(450, 450'000'000'000), 1000);
  CHECK_EQUAL(model::serialisation_ps(451, 450'000'000'000),
              1003);  // 1002.2 up: never faster than light
  CHECK_THROWS(model::OutOfRange, "limit of 2^60", model::serialisation_ps(model::kMaxBytes, 1));
  CHECK_THROWS(model::OutOfRange, "horizon", model::repeated_ps(1 << 30, model::kMaxSpan));
  CHECK_EQUAL(model::timing_chunk(1'048'579, 8), 131'073);
  Bytes sum = 0;
  for (int i = 0; i < 8; ++i) sum += model::exact_chunk(1'048'579, 8, i);
  CHECK_EQUAL(sum, 1'048'579);
}

void topologies() {
  const auto ring = Topology::single(TopologyKind::kRing, 8, 1, 0);
  CHECK_EQUAL(ring->links().size(), 16U);
  CHECK_EQUAL(ring->hops(0, 4), 4U);  // tied: clockwise
  CHECK_EQUAL(ring->links()[ring->next_link(0, 0, 4)].to, 1U);
  CHECK_EQUAL(ring->hops(1, 7), 2U);
  CHECK_EQUAL(ring->links()[ring->next_link(1, 1, 7)].to, 0U);
  const auto pair =
      Topology::single(TopologyKind::kRing, 2, 1, 0);  // two links, not a pair of cables
  CHECK_EQUAL(pair->links().size(), 2U);
  CHECK_EQUAL(pair->hops(1, 0), 1U);
  CHECK_EQUAL(Topology::single(TopologyKind::kSwitched, 5, 1, 0)->hops(0, 4), 2U);
  const auto full = Topology::single(TopologyKind::kFullyConnected, 5, 1, 0);
  CHECK_EQUAL(full->links().size(), 20U);
  for (DeviceId from = 0; from < 5; ++from) {
    for (DeviceId to = 0; to < 5; ++to) {
      if (from == to) continue;
      CHECK_EQUAL(full->links()[full->next_link(from, from, to)].from, from);
      CHECK_EQUAL(full->links()[full->next_link(from, from, to)].to, to);
    }
  }
  CHECK_EQUAL(Topology::single(TopologyKind::kRing, 1, 1, 0)->links().size(), 0U);
  CHECK_THROWS(model::InvalidTopology, "0 devices", Topology::single(TopologyKind::kRing, 0, 1, 0));
  CHECK_THROWS(model::InvalidTopology, "bandwidth is 0",
               Topology::single(TopologyKind::kRing, 2, 0, 0));
  CHECK_THROWS(model::InvalidTopology, "latency is -1",
               Topology::single(TopologyKind::kRing, 2, 1, -1));
}

// Ends of transfers that all start at 0 on streams of their own.
std::vector<Ps> ends(Engine& engine, const std::vector<std::array<DeviceId, 2>>& pairs,
                     Bytes bytes) {
  GraphBuilder builder(engine.topology().num_devices());
  for (const auto& [from, to] : pairs)
    builder.transfer(from, to, bytes, Parents{}, model::Stream::kNone);
  const GraphId id = engine.submit(builder.build(), 0);
  engine.run();
  const auto span = engine.times(id).end_ps;
  return {span.begin(), span.end()};
}

// 1000 bytes at 1 TB/s: 1000 ps on a link; latency 10 ps.
void incast() {
  const auto topology = Topology::single(TopologyKind::kSwitched, 4, 1'000'000'000'000, 10);
  Engine aware(topology, {NetworkKind::kCongestionAware, 0});
  const std::vector<Ps> queued = ends(aware, {{0, 3}, {1, 3}, {2, 3}}, 1000);
  CHECK_EQUAL(queued[0], 2020);
  CHECK_EQUAL(queued[1], 3020);  // ties at the port: by link, that is by sender
  CHECK_EQUAL(queued[2], 4020);
  const auto down = aware.link_counters()[4 + 3];
  CHECK_EQUAL(down.bytes, 3000);
  CHECK_EQUAL(down.messages, 3);
  CHECK_EQUAL(down.busy_ps, 3000);
  CHECK_EQUAL(down.queue_ps, 3000);
  CHECK_EQUAL(down.peak_queue_ps, 2000);
  Engine unaware(topology, {NetworkKind::kCongestionUnaware, 7});
  for (const Ps end : ends(unaware, {{0, 3}, {1, 3}, {2, 3}}, 1000)) CHECK_EQUAL(end, 1027);
  CHECK_EQUAL(unaware.link_counters()[4 + 3].busy_ps, 3000);
  CHECK_EQUAL(unaware.link_counters()[4 + 3].queue_ps, 0);
}

// Each waits for all before it: the sum passes 2^63 ps long before the clock reaches its end.
void waits_add_up_to_the_end_of_the_counter() {
  constexpr std::uint32_t kSenders = 7;
  constexpr Ps kEach = (Ps{1} << 59) - (Ps{1} << 56);
  const auto topology =
      Topology::single(TopologyKind::kSwitched, kSenders + 1, 1'000'000'000'000, 0);
  std::vector<std::array<DeviceId, 2>> pairs;
  for (DeviceId from = 0; from < kSenders; ++from) pairs.push_back({from, kSenders});
  Engine aware(topology, {NetworkKind::kCongestionAware, 0});
  ends(aware, pairs, kEach);
  const auto down = aware.link_counters()[kSenders + 1 + kSenders];
  CHECK_EQUAL(down.peak_queue_ps, 6 * kEach);
  CHECK_EQUAL(down.queue_ps, INT64_MAX);
  Engine unaware(topology, {NetworkKind::kCongestionUnaware, 0});
  std::vector<std::array<DeviceId, 2>> many;
  for (int i = 0; i < 3; ++i) many.insert(many.end(), pairs.begin(), pairs.end());
  ends(unaware, many, kEach);
  CHECK_EQUAL(unaware.link_counters()[kSenders + 1 + kSenders].busy_ps, INT64_MAX);
}

// Who comes first at a tie is the order of the links, not the order in which the nodes were written
// down.
void ties_do_not_depend_on_the_graph() {
  const auto topology = Topology::single(TopologyKind::kSwitched, 4, 1'000'000'000'000, 10);
  Engine engine(topology, {NetworkKind::kCongestionAware, 0});
  const std::vector<Ps> out = ends(engine, {{2, 3}, {0, 3}, {1, 3}}, 1000);
  CHECK_EQUAL(out[1], 2020);
  CHECK_EQUAL(out[2], 3020);
  CHECK_EQUAL(out[0], 4020);
}

void store_and_forward() {
  const auto topology = Topology::single(TopologyKind::kRing, 6, 1'000'000'000'000, 10);
  Engine engine(topology, {NetworkKind::kCongestionAware, 3});
  const std::vector<Ps> out = ends(engine, {{0, 3}, {1, 3}, {4, 2}, {3, 2}}, 1000);
  CHECK_EQUAL(out[0], 3 * 1010 + 3);  // link 1->2 is free again when it comes
  CHECK_EQUAL(out[1], 2 * 1010 + 3);
  CHECK_EQUAL(out[3], 1010 + 3);      // full duplex: 3->2 does not meet 2->3
  CHECK_EQUAL(out[2], 2 * 1010 + 3);  // follows out[3] on 3->2, which left at 1000
}

void limits() {
  const auto topology = Topology::single(TopologyKind::kRing, 2, 1'000, model::kMaxSpan);
  for (const NetworkKind kind : {NetworkKind::kCongestionAware, NetworkKind::kCongestionUnaware}) {
    Engine engine(topology, {kind, model::kMaxSpan});
    GraphBuilder builder(2);
    for (std::uint64_t i = 0; i < 4; ++i) {
      builder.transfer(0, 1, 1'000'000'000, i == 0 ? Parents{} : Parents{i - 1},
                       model::Stream::kNone);
    }
    engine.submit(builder.build(), 0);
    CHECK_THROWS(model::OutOfRange, "horizon", engine.run());
  }
  CHECK_THROWS(model::InvalidTopology, "endpoint delay is -1",
               Engine(topology, {NetworkKind::kCongestionAware, -1}));
}

}  // namespace

int main() {
  arithmetic();
  topologies();
  incast();
  waits_add_up_to_the_end_of_the_counter();
  ties_do_not_depend_on_the_graph();
  store_and_forward();
  limits();
  return test::finish("network_test");
}
