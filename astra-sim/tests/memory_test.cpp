// Memory tiers: durations, sharing, channels, ports, the network on the way, space, and cancelling.
#include <algorithm>
#include <map>
#include <queue>

#include "engine/loop/engine.h"
#include "model/base/arithmetic.h"
#include "model/graph/graph_builder.h"
#include "tests/check.h"

using namespace astra_sim;
using namespace astra_sim::engine;
using model::GraphBuilder;
using model::MemorySystem;
using model::NodeKind;
using model::Stream;
using model::Tier;
using model::TierSharing;

namespace {

constexpr NetworkKind kNetworks[] = {NetworkKind::kCongestionAware, NetworkKind::kCongestionUnaware,
                                     NetworkKind::kFairShare};
constexpr model::BytesPerSecond kBytePerPs = 1'000'000'000'000;

std::shared_ptr<const Topology> four() {
  return Topology::single(model::TopologyKind::kSwitched, 4, kBytePerPs, 10);
}

// 1 byte per ps, latency 100, one per device.
Tier tier(TierSharing sharing = TierSharing::kNetwork) {
  Tier out;
  out.name = "dram";
  out.capacity_bytes = 1000;
  out.latency_ps = 100;
  out.read_bytes_per_s = kBytePerPs;
  out.sharing = sharing;
  out.instance_of = model::one_per_device(4);
  return out;
}

struct Wanted {
  DeviceId device;
  Bytes bytes;
  bool store = false;
  Ps at = 0;
};

std::vector<Ps> ends_of(Engine& engine, const std::vector<Wanted>& all) {
  std::map<GraphId, std::size_t> index;
  for (std::size_t i = 0; i < all.size(); ++i) {
    index[engine.access(0, all[i].device, all[i].bytes, all[i].store, all[i].at)] = i;
  }
  std::vector<Ps> out(all.size(), -1);
  while (const auto done = engine.advance()) out[index.at(done->graph)] = done->end_ps;
  return out;
}

std::vector<Ps> ends(NetworkKind kind, const Tier& where, const std::vector<Wanted>& all) {
  const auto topology = four();
  Engine engine(topology, {kind, 7, {}, MemorySystem::make(topology, {where})});
  return ends_of(engine, all);
}

using Times = std::vector<Ps>;

void check_times(const Times& got, const Times& expected, int line) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    test::check_equal(got[i], expected[i], "end of an access", __FILE__, line);
  }
}
#define CHECK_TIMES(got, ...) check_times((got), Times __VA_ARGS__, __LINE__)

void sharing() {
  const auto aware = NetworkKind::kCongestionAware;
  const auto unaware = NetworkKind::kCongestionUnaware;
  const auto fair = NetworkKind::kFairShare;
  const std::vector<Wanted> two{{0, 1000}, {0, 1000}};
  for (const NetworkKind kind : kNetworks) CHECK_TIMES(ends(kind, tier(), {{0, 1000}}), {1100});
  CHECK_TIMES(ends(aware, tier(), two), {1100, 2100});
  CHECK_TIMES(ends(unaware, tier(), two), {1100, 1100});
  CHECK_TIMES(ends(fair, tier(), two), {2100, 2100});
  for (const NetworkKind kind : kNetworks) {
    Tier line = tier(TierSharing::kFifo);
    CHECK_TIMES(ends(kind, line, two), {1100, 2100});
    CHECK_TIMES(ends(kind, line, {{0, 1000}, {1, 1000}}), {1100, 1100});  // one each
    CHECK_TIMES(ends(kind, line, {{0, 1000}, {0, 500, true}}), {1100, 1600});
    line.channels = 2;
    CHECK_TIMES(ends(kind, line, {{0, 1000}, {0, 300}, {0, 500}}),
                {1100, 400, kind == aware ? 1600 : 900});
    line = tier(TierSharing::kFifo);
    line.instance_of = model::one_per_node(4, 2);
    CHECK_TIMES(ends(kind, line, {{0, 1000}, {1, 1000}, {2, 1000}}), {1100, 2100, 1100});
  }
  Tier apart = tier();
  apart.write_bytes_per_s = kBytePerPs / 2;
  for (const NetworkKind kind : kNetworks) {
    CHECK_TIMES(ends(kind, apart, {{0, 1000}, {0, 1000, true}}), {1100, 2100});
  }
}

// A pool of 4 bytes per ps behind ports of 1 byte per ps, one for two devices.
void ports() {
  Tier pool = tier();
  pool.instance_of = model::one_for_all(4);
  pool.read_bytes_per_s = 4 * kBytePerPs;
  pool.port_of = model::one_per_node(4, 2);
  pool.port_bytes_per_s = kBytePerPs;
  const std::vector<Wanted> all{{0, 1000}, {1, 1000}, {2, 1000}, {3, 1000, true}};
  CHECK_TIMES(ends(NetworkKind::kFairShare, pool, all), {2100, 2100, 1100, 1100});
  CHECK_TIMES(ends(NetworkKind::kCongestionUnaware, pool, all), {1100, 1100, 1100, 1100});
  // Whole accesses pass first the pool (250 each, stores after their port), then the port.
  CHECK_TIMES(ends(NetworkKind::kCongestionAware, pool, all), {1350, 2350, 1850, 1350});
  pool.read_bytes_per_s = kBytePerPs;
  CHECK_TIMES(ends(NetworkKind::kFairShare, pool, all), {4100, 4100, 4100, 4100});
}

// A tier held by device 3: loads cross the network and meet its messages there.
void across_the_network() {
  Tier remote = tier();
  remote.instance_of = model::one_for_all(4);
  remote.held_by = {3};
  remote.read_bytes_per_s = 2 * kBytePerPs;
  CHECK_TIMES(ends(NetworkKind::kFairShare, remote, {{0, 1000}, {1, 1000}}),
              {2120, 2120});  // device 3's uplink
  CHECK_TIMES(ends(NetworkKind::kFairShare, remote, {{0, 1000}, {3, 1000}}), {1120, 1100});
  CHECK_TIMES(ends(NetworkKind::kCongestionAware, remote, {{0, 1000}}), {500 + 100 + 2 * 1010});
  const auto topology = four();
  Engine engine(topology, {NetworkKind::kFairShare, 0, {}, MemorySystem::make(topology, {remote})});
  const GraphId load = engine.access(0, 0, 1000, false, 0);
  const GraphId message = engine.transfer(3, 1, 1000, 0);
  CHECK_EQUAL(engine.advance()->graph, message);
  CHECK_EQUAL(engine.now(), 2020);
  CHECK_EQUAL(engine.advance()->graph, load);
  CHECK_EQUAL(engine.now(), 2120);
  CHECK_EQUAL(engine.link_counters().size(), topology->links().size() + 1);
  CHECK_EQUAL(engine.link_counters().back().bytes, 1000);
}

// Loads on a stream of their own overlap with compute and a collective; the next layer waits for
// its weights.
void streams() {
  const auto topology = four();
  Engine engine(topology, {NetworkKind::kFairShare, 0, {}, MemorySystem::make(topology, {tier()})});
  GraphBuilder builder(4);
  const std::uint64_t load = builder.add(NodeKind::kMemoryLoad, Stream::kCopyIn, 0, 5000, 0, 0, {});
  builder.add(NodeKind::kMemoryLoad, Stream::kCopyIn, 0, 1000, 0, 0,
              {});  // after the first: same stream
  builder.compute(0, 3000, {});
  builder.add_plan({model::CollectiveKind::kAllReduce, model::Algorithm::kDirect,
                    builder.add_group(std::vector<DeviceId>{0, 1}), nullptr});
  builder.collective(0, 0, 0, 2000, {});
  builder.collective(1, 0, 0, 2000, {});
  builder.compute(0, 10, {&load, 1});
  builder.add(NodeKind::kMemoryLoad, Stream::kPim, 0, 500, 0, 0,
              {});  // a PIM unit reads the same memory
  const GraphId id = engine.submit(builder.build(), 0);
  engine.run();
  const auto end = engine.times(id).end_ps;
  CHECK_EQUAL(end[7 - 1], 1000 + 100);  // half of the bandwidth until then
  CHECK_EQUAL(end[0], 5500 + 100);
  CHECK_EQUAL(end[1], 6600 + 100);
  CHECK_EQUAL(end[2], 3000);
  CHECK_EQUAL(end[3], 2 * 1020);
  CHECK_EQUAL(end[5], 5610);
  CHECK_EQUAL(engine.device_counters()[0].busy_ps[static_cast<std::size_t>(Stream::kCopyIn)], 6700);
  CHECK_EQUAL(engine.tier_counters()[0].loads, 3);
}

// A line with channels is the textbook's queue: the next access takes the first channel that is
// free.
void lines_equal_a_queue() {
  test::Random random(71);
  for (int i = 0; i < 300; ++i) {
    Tier line = tier(TierSharing::kFifo);
    line.channels = static_cast<std::uint32_t>(random.between(1, 3));
    line.read_bytes_per_s = random.between(1, 4) * 333'333'333;
    const NetworkKind kind =
        random.between(0, 1) == 0 ? NetworkKind::kCongestionUnaware : NetworkKind::kFairShare;
    std::vector<Wanted> all;
    Ps at = 0;
    for (std::int64_t n = random.between(1, 30); n > 0; --n) {
      all.push_back({0, random.between(1, 2000), random.between(0, 1) == 0, at});
      at += random.between(0, 2'000'000);
    }
    const std::vector<Ps> got = ends(kind, line, all);
    std::priority_queue<Ps, std::vector<Ps>, std::greater<>> free;
    for (std::uint32_t c = 0; c < line.channels; ++c) free.push(0);
    for (std::size_t k = 0; k < all.size(); ++k) {
      const Ps begin = std::max(free.top(), all[k].at);
      free.pop();
      const Ps left = begin + model::serialisation_ps(all[k].bytes, line.read_bytes_per_s);
      free.push(left);
      // A flow's rate is a whole number of 2^-16 bytes/s: exact for a lone flow on a channel.
      CHECK_EQUAL(got[k], left + line.latency_ps);
    }
  }
}

void space() {
  const auto topology = four();
  Tier node = tier();
  node.instance_of = {0, 0, 1, model::kNone};
  Engine engine(topology, {NetworkKind::kFairShare, 0, {}, MemorySystem::make(topology, {node})});
  engine.reserve(0, 0, 600);
  engine.reserve(0, 2, 1000);
  CHECK_THROWS(model::OutOfMemory,
               "401 bytes do not fit into memory tier 'dram' of device 1: 600 of its 1000",
               engine.reserve(0, 1, 401));
  engine.reserve(0, 1, 400);
  engine.free(0, 0, 1000);
  CHECK_THROWS(model::InvalidGraph, "cannot be freed", engine.free(0, 0, 1));
  CHECK_THROWS(model::InvalidGraph, "device 3 reaches no memory tier 0", engine.reserve(0, 3, 1));
  CHECK_EQUAL(engine.tier_counters()[0].peak_used_bytes, 1000);
  CHECK_EQUAL(engine.tier_counters()[1].used_bytes, 1000);
}

void refusals() {
  const auto topology = four();
  const auto make = [&](auto change) {
    Tier bad = tier();
    change(bad);
    MemorySystem::make(topology, {bad});
  };
  CHECK_THROWS(model::InvalidTopology, "'dram' reads 0",
               make([](Tier& t) { t.read_bytes_per_s = 0; }));
  CHECK_THROWS(model::InvalidTopology, "0 channels", make([](Tier& t) { t.channels = 0; }));
  CHECK_THROWS(model::InvalidTopology, "latency of -1", make([](Tier& t) { t.latency_ps = -1; }));
  CHECK_THROWS(model::InvalidTopology, "for 3 devices",
               make([](Tier& t) { t.instance_of.pop_back(); }));
  CHECK_THROWS(model::InvalidTopology, "reached by no device",
               make([](Tier& t) { t.instance_of.assign(4, model::kNone); }));
  CHECK_THROWS(model::InvalidTopology, "ports of 0",
               make([](Tier& t) { t.port_of = model::one_for_all(4); }));
  CHECK_THROWS(model::InvalidTopology, "held by 1", make([](Tier& t) { t.held_by = {0}; }));
  Engine engine(topology, {NetworkKind::kFairShare, 0, {}, MemorySystem::make(topology, {tier()})});
  CHECK_THROWS(model::InvalidGraph, "names memory tier 1", engine.access(1, 0, 1, false, 0));
  CHECK_THROWS(model::OutOfRange, "-1 bytes", engine.access(0, 0, -1, false, 0));
  GraphBuilder builder(4);
  builder.add(NodeKind::kMemoryStore, Stream::kCopyOut, 2, 8, 1, 0, {});
  CHECK_THROWS(model::InvalidGraph, "node 0 (memory store on device 2) names memory tier 1",
               engine.submit(builder.build(), 0));
  CHECK_THROWS(
      model::InvalidTopology, "another topology",
      Engine(four(), {NetworkKind::kFairShare, 0, {}, MemorySystem::make(topology, {tier()})}));
}

// Whatever is cancelled, the rest is served, and the tier is idle at the end: one more access takes
// its plain time.
void random_cancels() {
  test::Random random(72);
  for (int i = 0; i < 300; ++i) {
    const auto topology = four();
    Tier where = tier(random.between(0, 1) == 0 ? TierSharing::kFifo : TierSharing::kNetwork);
    where.channels = static_cast<std::uint32_t>(random.between(1, 2));
    where.instance_of = model::one_per_node(4, static_cast<std::uint32_t>(random.between(1, 4)));
    if (random.between(0, 1) == 0) where.held_by.assign(4 / (where.instance_of[3] == 3 ? 1 : 4), 1);
    if (where.held_by.size() != where.instance_of[3] + std::size_t{1}) where.held_by.clear();
    const NetworkKind kind = kNetworks[random.between(0, 2)];
    Engine engine(topology, {kind, 0, {}, MemorySystem::make(topology, {where})});
    std::map<GraphId, int> open;
    for (int k = 0; k < 30; ++k) {
      const auto device = static_cast<DeviceId>(random.between(0, 3));
      const Bytes bytes = random.between(0, 5000);
      const bool store = random.between(0, 1) == 0;
      if (random.between(0, 1) == 0) {
        open[engine.access(0, device, bytes, store, engine.now())] = 0;
      } else {
        GraphBuilder builder(4);
        for (int copies = 0; copies < 2; ++copies) {
          builder.add(store ? NodeKind::kMemoryStore : NodeKind::kMemoryLoad, Stream::kNone, device,
                      bytes, 0, 0, {});
        }
        open[engine.submit(builder.build(), engine.now())] = 0;
      }
      if (const auto done = engine.advance_until(engine.now() + random.between(0, 2000)))
        open.erase(done->graph);
      if (open.empty() || random.between(0, 1) == 0) continue;
      const auto victim =
          std::next(open.begin(), random.between(0, static_cast<std::int64_t>(open.size()) - 1));
      try {
        engine.cancel(victim->first);
        open.erase(victim);
      } catch (const model::InvalidGraph&) {  // finished, and to be reported next
      }
    }
    while (const auto done = engine.advance()) open.erase(done->graph);
    CHECK(open.empty());
    CHECK(!engine.next_event_ps());
    const Ps begin = engine.now() + 1'000'000;
    engine.access(0, 1, 1000, false, begin);
    engine.run();
    CHECK_EQUAL(engine.now() - begin, 1100);
  }
}

}  // namespace

int main() {
  sharing();
  ports();
  across_the_network();
  streams();
  lines_equal_a_queue();
  space();
  refusals();
  random_cancels();
  return test::finish("memory_test");
}
