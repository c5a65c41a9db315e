// Streams, many graphs in flight, re-entrance, messages, stalls and the event queue.
#include "engine/loop/engine.h"

#include <algorithm>
#include <map>

#include "model/graph/graph_builder.h"
#include "tests/check.h"
#include "tests/random_chain.h"

using namespace astra_sim;
using namespace astra_sim::engine;
using model::GraphBuilder;
using model::NodeKind;
using model::Stream;
using model::TopologyKind;

namespace {

using Parents = std::vector<std::uint64_t>;

std::shared_ptr<const Topology> small(TopologyKind kind = TopologyKind::kSwitched) {
  return Topology::single(kind, 4, 1'000'000'000'000, 10);
}

void streams_order_and_overlap() {
  Engine engine(small(), {});
  GraphBuilder builder(4);
  builder.compute(0, 100, Parents{});
  builder.compute(0, 50, Parents{});                      // waits for node 0: same stream
  builder.compute(0, 30, Parents{}, Stream::kCopyIn, 2);  // overlaps
  builder.compute(1, 10, Parents{1});                     // waits for node 1 across devices
  builder.compute(0, 5, Parents{2});                      // ready at 30, but behind node 1
  const GraphId id = engine.submit(builder.build(), 1000);
  const auto done = engine.advance();
  CHECK(done && done->graph == id && done->end_ps == 1160);
  const auto times = engine.times(id);
  CHECK_EQUAL(times.start_ps[1], 1100);
  CHECK_EQUAL(times.end_ps[2], 1030);
  CHECK_EQUAL(times.end_ps[3], 1160);
  CHECK_EQUAL(times.start_ps[4], 1150);
  CHECK(!engine.advance());
  CHECK_EQUAL(engine.device_counters()[0].busy_ps[0], 155);
  CHECK_EQUAL(engine.device_counters()[0].class_ps[2], 30);
}

void graphs_share_links_and_streams() {
  Engine engine(small(), {});
  GraphBuilder builder(4);
  builder.transfer(0, 1, 1000, Parents{});
  const auto graph = builder.build();
  const GraphId first = engine.submit(graph, 0);
  const std::int64_t larger[] = {2000};
  const GraphId second = engine.submit(graph, 0, larger);  // same stream: after the first
  builder.clear();
  builder.transfer(0, 2, 1000, Parents{}, Stream::kCopyIn);
  const GraphId third = engine.submit(builder.build(), 500);  // same uplink: queues 500 ps
  CHECK_EQUAL(engine.advance()->graph, first);
  CHECK_EQUAL(engine.now(), 2020);
  CHECK_EQUAL(engine.num_in_flight(), 2U);
  CHECK_EQUAL(engine.advance()->graph, third);
  CHECK_EQUAL(engine.now(), 3020);
  CHECK(!engine.advance_until(6039));
  CHECK_EQUAL(*engine.next_event_ps(), 6040);
  const auto done = engine.advance_until(6040);
  CHECK(done && done->graph == second && done->end_ps == 2020 + 4020);
  engine.release(first);
  CHECK_THROWS(model::InvalidGraph, "not known", engine.times(first));
  CHECK_THROWS(model::InvalidGraph, "clock is at 6040", engine.submit(graph, 6039));
  CHECK_EQUAL(engine.submit(graph, 6040), 3U);  // reuses the first one's memory
  CHECK_THROWS(model::InvalidGraph, "has not finished", engine.times(3));
  CHECK_EQUAL(engine.run(), 6040 + 2020);
}

void simultaneous_completions_and_empty_graphs() {
  Engine engine(small(), {});
  GraphBuilder builder(4);
  const GraphId empty = engine.submit(builder.build(), 7);
  for (DeviceId device = 4; device-- > 0;) {
    builder.clear();
    builder.compute(device, 0, Parents{});
    engine.submit(builder.build(), 7);
  }
  for (GraphId id = empty; id < 5; ++id) {
    const auto done = engine.advance();
    CHECK(done && done->graph == (id == 0 ? 0 : done->graph) && done->end_ps == 7);
  }
  CHECK(!engine.advance());
  CHECK(!engine.next_event_ps());
}

void send_and_recv() {
  for (const Ps late : {0, 5000}) {
    Engine engine(small(), {});
    GraphBuilder builder(4);
    builder.add(NodeKind::kSend, Stream::kComm, 0, 1000, 1, 9, Parents{});
    builder.compute(1, late, Parents{});
    builder.add(NodeKind::kRecv, Stream::kNone, 1, 1000, 0, 9, Parents{1});
    const GraphId id = engine.submit(builder.build(), 0);
    engine.run();
    CHECK_EQUAL(engine.times(id).end_ps[0], 2020);
    CHECK_EQUAL(engine.times(id).end_ps[2], std::max<Ps>(2020, late));
  }
}

// Two ranks that call two collectives in opposite orders on their comm streams wait for each other.
void stalls() {
  Engine engine(small(), {});
  GraphBuilder builder(4);
  builder.add_plan({model::CollectiveKind::kAllReduce, model::Algorithm::kRing,
                    builder.add_group(std::vector<DeviceId>{0, 1}), nullptr});
  builder.collective(0, 0, 0, 8, Parents{});
  builder.collective(0, 0, 1, 8, Parents{});
  builder.collective(1, 0, 1, 8, Parents{});
  builder.collective(1, 0, 0, 8, Parents{});
  engine.submit(builder.build(), 0);
  CHECK_THROWS(model::Stalled,
               "node 0 (collective on device 0) waits for node 3 (collective on device 1)",
               engine.run());
  CHECK_THROWS(model::Stalled,
               "node 2 (collective on device 1) waits for node 1 (collective on device 0)",
               engine.run());
}

void refused_submissions() {
  Engine engine(small(), {});
  GraphBuilder builder(5);
  CHECK_THROWS(model::InvalidGraph, "5 devices, but the topology has 4",
               engine.submit(builder.build(), 0));
  GraphBuilder memory(4);
  memory.add(NodeKind::kMemoryLoad, Stream::kCopyIn, 0, 8, 0, 0, Parents{});
  CHECK_THROWS(model::InvalidGraph, "node 0 (memory load on device 0) names memory tier 0",
               engine.submit(memory.build(), 0));
  GraphBuilder pair(4);
  pair.add(NodeKind::kSend, Stream::kComm, 0, 8, 1, 0, Parents{});
  pair.add(NodeKind::kRecv, Stream::kComm, 1, 8, 0, 0, Parents{});
  const auto graph = pair.build();
  CHECK_THROWS(model::InvalidGraph, "1 amounts",
               engine.submit(graph, 0, std::vector<std::int64_t>{1}));
  CHECK_THROWS(model::InvalidGraph, "amount -1",
               engine.submit(graph, 0, std::vector<std::int64_t>{-1, 1}));
  CHECK_THROWS(model::InvalidGraph, "both ends have to agree",
               engine.submit(graph, 0, std::vector<std::int64_t>{2, 1}));
  CHECK_THROWS(model::OutOfRange, "horizon", engine.submit(graph, model::kHorizon + 1));
  CHECK_EQUAL(engine.num_in_flight(), 0U);
  CHECK(!engine.advance());
}

// Buckets against an ordered multimap, with equal times, cache conflicts and pushes for the time
// being served.
void time_buckets() {
  test::Random random(11);
  TimeBuckets<int> buckets;
  std::multimap<Ps, int> reference;
  int next = 0;
  Ps now = 0;
  for (int round = 0; round < 20'000; ++round) {
    for (std::int64_t i = random.between(0, 3); i > 0; --i) {
      const Ps time = now + random.between(0, 1) * random.between(0, 600);
      buckets.push(time, next);
      reference.emplace(time, next++);
    }
    if (buckets.empty() || random.between(0, 2) == 0) continue;
    now = buckets.next_time();
    const std::vector<int>& batch = buckets.pop();
    const auto [first, last] = reference.equal_range(now);
    CHECK(first == reference.begin());
    CHECK(std::equal(batch.begin(), batch.end(), first, last,
                     [](int a, const auto& b) { return a == b.second; }));
    reference.erase(first, last);
    CHECK_EQUAL(buckets.empty(), reference.empty());
  }
}

// The same graphs give the same times whether one engine runs them in one go or is stopped at every
// picosecond asked.
void stopping_changes_nothing() {
  test::Random random(12);
  for (int i = 0; i < 200; ++i) {
    const Chain chain = test::random_chain(random, 6);
    const std::vector<Ps> starts(chain.sites[0].group.size(), 3);
    const auto graph = expand(chain, starts);
    Engine whole(chain.sites[0].topology, chain.sites[0].options);
    Engine stopped(chain.sites[0].topology, chain.sites[0].options);
    std::vector<GraphId> ids;
    for (int copy = 0; copy < 3; ++copy) {  // three at once: contention
      ids.push_back(whole.submit(graph, copy * 10));
      stopped.submit(graph, copy * 10);
    }
    whole.run();
    while (stopped.next_event_ps())
      stopped.advance_until(*stopped.next_event_ps() + random.between(0, 1000));
    for (const GraphId id : ids) {
      const auto a = whole.times(id).end_ps;
      const auto b = stopped.times(id).end_ps;
      CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
    }
    CHECK_EQUAL(whole.num_events(), stopped.num_events());
  }
}

}  // namespace

int main() {
  streams_order_and_overlap();
  graphs_share_links_and_streams();
  simultaneous_completions_and_empty_graphs();
  send_and_recv();
  stalls();
  refused_submissions();
  time_buckets();
  stopping_changes_nothing();
  return test::finish("engine_test");
}
