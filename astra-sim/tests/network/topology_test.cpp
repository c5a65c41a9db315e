// Grids of any number of dimensions and explicit networks: every route leads where it should, and
// by the rules.
#include "model/topology/topology.h"

#include <set>

#include "model/base/errors.h"
#include "model/topology/topology_builder.h"
#include "tests/check.h"

using namespace astra_sim;
using namespace astra_sim::model;

namespace {

// Follows the route and checks that its links join up.
std::vector<VertexId> walk(const Topology& topology, DeviceId from, DeviceId to) {
  std::vector<LinkId> route;
  topology.route(from, to, route);
  std::vector<VertexId> out{from};
  for (const LinkId link : route) {
    CHECK_EQUAL(topology.links()[link].from, out.back());
    out.push_back(topology.links()[link].to);
  }
  CHECK_EQUAL(out.back(), to);
  return out;
}

std::uint32_t expected_hops(const Dimension& dimension, std::uint32_t from, std::uint32_t to) {
  if (from == to) return 0;
  const std::uint32_t n = dimension.num_devices;
  const std::uint32_t clockwise = (to + n - from) % n;
  switch (dimension.kind) {
    case TopologyKind::kRing:
      return std::min(clockwise, n - clockwise);
    case TopologyKind::kSwitched:
      return dimension.bisection_bytes_per_s != 0 ? 3 : 2;
    case TopologyKind::kFullyConnected:
      return 1;
  }
  return 0;
}

void random_grids(int cases) {
  test::Random random(11);
  for (int i = 0; i < cases; ++i) {
    std::vector<Dimension> dimensions(static_cast<std::size_t>(random.between(1, 4)));
    for (Dimension& d : dimensions) {
      d = {static_cast<TopologyKind>(random.between(0, 2)),
           static_cast<std::uint32_t>(random.between(1, 5)), random.between(1, 1'000'000),
           random.between(0, 1000), 0};
      if (d.kind == TopologyKind::kSwitched && random.between(0, 1) == 0)
        d.bisection_bytes_per_s = 7;
    }
    const auto topology = Topology::grid(dimensions);
    std::set<std::pair<VertexId, VertexId>> ends;
    for (const Link& link : topology->links()) CHECK(ends.emplace(link.from, link.to).second);
    for (DeviceId from = 0; from < topology->num_devices(); ++from) {
      for (DeviceId to = 0; to < topology->num_devices(); ++to) {
        std::uint32_t hops = 0;
        Ps latency = 0;
        std::uint32_t stride = 1;
        for (const Dimension& d : dimensions) {
          const std::uint32_t more =
              expected_hops(d, from / stride % d.num_devices, to / stride % d.num_devices);
          hops += more;
          latency += (more == 3 ? 2 : more) * d.latency_ps;  // the inside of a switch has none
          stride *= d.num_devices;
        }
        walk(*topology, from, to);
        CHECK_EQUAL(topology->hops(from, to), hops);
        std::vector<LinkId> route;
        topology->route(from, to, route);
        for (const LinkId link : route) latency -= topology->links()[link].latency_ps;
        CHECK_EQUAL(latency, 0);
      }
    }
  }
}

void grid_limits() {
  CHECK_THROWS(InvalidTopology, "no dimensions", Topology::grid({}));
  const Dimension large[] = {{TopologyKind::kRing, 1U << 20, 1, 0}, {TopologyKind::kRing, 2, 1, 0}};
  CHECK_THROWS(InvalidTopology, "2^20 devices", Topology::grid(large));
  const Dimension ring[] = {{TopologyKind::kRing, 4, 1, 0, 5}};
  CHECK_THROWS(InvalidTopology, "only switches", Topology::grid(ring));
}

// Two leaves of four devices, two spines: 0-3 | 4-7, leaves 8 and 9, spines 10 and 11.
TopologyBuilder two_leaves(std::uint32_t divisor, BytesPerSecond bisection) {
  TopologyBuilder builder(8);
  builder.add_switch(0, divisor);
  builder.add_switch(0, divisor);
  builder.add_switch(bisection);
  builder.add_switch(bisection);
  for (DeviceId device = 0; device < 8; ++device) builder.add_link(device, 8 + device / 4, 100, 5);
  for (VertexId leaf = 8; leaf < 10; ++leaf) {
    for (VertexId spine = 10; spine < 12; ++spine) builder.add_link(leaf, spine, 200, 7);
  }
  return builder;
}

void explicit_routes() {
  const auto spread = two_leaves(1, 0).build();
  for (DeviceId from = 0; from < 4; ++from) {
    for (DeviceId to = 4; to < 8; ++to) CHECK_EQUAL(walk(*spread, from, to)[2], 10 + to % 2);
  }
  CHECK_EQUAL(spread->hops(0, 3), 2U);
  const auto hashed = two_leaves(0, 0).build();
  std::set<VertexId> spines;
  for (DeviceId from = 0; from < 4; ++from) {
    for (DeviceId to = 4; to < 8; ++to) spines.insert(walk(*hashed, from, to)[2]);
  }
  CHECK_EQUAL(spines.size(), 2U);  // both are used
  for (DeviceId from = 0; from < 8; ++from) {
    for (DeviceId to = 0; to < 8; ++to)
      CHECK(walk(*hashed, from, to) == walk(*two_leaves(0, 0).build(), from, to));
  }
  const auto blocking = two_leaves(1, 50).build();
  CHECK_EQUAL(blocking->hops(0, 7), 5U);
  CHECK_EQUAL(blocking->num_vertices(), 14U);
  TopologyBuilder given = two_leaves(1, 50);
  given.add_route({0, 8, 11, 9, 4});
  CHECK_EQUAL(walk(*given.build(), 0, 4)[2], 11U);
  CHECK_EQUAL(walk(*given.build(), 4, 0)[2], 10U);  // the way back is another pair
}

void explicit_limits() {
  TopologyBuilder apart(3);
  apart.add_link(0, 1, 1, 0);
  CHECK_THROWS(InvalidTopology, "no route leads from device 0 to device 2", apart.build());
  apart.add_link(1, 2, 1, 0);
  CHECK_THROWS(InvalidTopology, "do not relay", apart.build());
  TopologyBuilder line(3, true);
  line.add_link(0, 1, 1, 0);
  line.add_link(1, 2, 1, 0);
  CHECK_EQUAL(line.build()->hops(0, 2), 2U);
  line.add_route({0, 2});
  CHECK_THROWS(InvalidTopology, "no link joins them", line.build());
  TopologyBuilder loop(2);
  loop.add_link(1, 1, 1, 0);
  CHECK_THROWS(InvalidTopology, "two different", loop.build());
  TopologyBuilder slow(2);
  slow.add_link(0, 1, 0, 0);
  CHECK_THROWS(InvalidTopology, "at least 1 byte/s", slow.build());
  TopologyBuilder back = two_leaves(1, 0);
  back.add_route({0, 8, 0, 8, 9, 4});
  CHECK_THROWS(InvalidTopology, "no link joins", back.build());
  TopologyBuilder again = two_leaves(1, 0);
  again.add_route({0, 8, 10, 8, 11, 9, 4});
  CHECK_THROWS(InvalidTopology, "twice", again.build());
}

}  // namespace

int main() {
  random_grids(300);
  grid_limits();
  explicit_routes();
  explicit_limits();
  return test::finish("topology_test");
}
