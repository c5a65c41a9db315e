// The engine under a caller with a clock of its own: transfers without graphs, cancelling, counters
// at any time.
#include <algorithm>
#include <map>

#include "engine/loop/engine.h"
#include "model/graph/graph_builder.h"
#include "tests/check.h"
#include "tests/random_chain.h"

using namespace astra_sim;
using namespace astra_sim::engine;
using model::GraphBuilder;
using model::TopologyKind;

namespace {

constexpr NetworkKind kNetworks[] = {NetworkKind::kCongestionAware, NetworkKind::kCongestionUnaware,
                                     NetworkKind::kFairShare};

// A transfer without a graph takes as long as a transfer node, alone and among others.
void transfers_equal_nodes() {
  test::Random random(41);
  for (int i = 0; i < 300; ++i) {
    const auto topology = Topology::single(static_cast<TopologyKind>(random.between(0, 2)), 6,
                                           1'000'000'007, random.between(0, 500));
    const EngineOptions options{kNetworks[random.between(0, 2)], random.between(0, 100)};
    Engine nodes(topology, options);
    Engine bare(topology, options);
    std::map<GraphId, Ps> ends[2];
    for (std::int64_t count = random.between(1, 20); count > 0; --count) {
      const auto from = static_cast<DeviceId>(random.between(0, 5));
      const auto to = static_cast<DeviceId>((from + random.between(1, 5)) % 6);
      const Bytes bytes = random.between(0, 3) == 0 ? 0 : random.between(1, 5000);
      const Ps at = random.between(0, 3) * 1'000'000;
      GraphBuilder builder(6);
      builder.transfer(from, to, bytes, {}, model::Stream::kNone);
      CHECK_EQUAL(nodes.submit(builder.build(), at), bare.transfer(from, to, bytes, at));
    }
    const std::size_t sent = bare.num_in_flight();
    while (const auto done = nodes.advance()) ends[0].emplace(done->graph, done->end_ps);
    while (const auto next = bare.next_event_ps()) {
      const auto done = bare.advance_until(*next);
      if (done) ends[1].emplace(done->graph, done->end_ps);
    }
    CHECK_EQUAL(ends[1].size(), sent);
    CHECK(ends[0] == ends[1]);
    const auto a = nodes.link_counters();
    const auto b = bare.link_counters();
    for (std::size_t l = 0; l < a.size(); ++l) {
      CHECK_EQUAL(a[l].bytes, b[l].bytes);
      CHECK_EQUAL(a[l].busy_ps, b[l].busy_ps);
    }
  }
}

void refused_transfers() {
  Engine engine(Topology::single(TopologyKind::kRing, 2, 1'000'000'000'000, 10), {});
  CHECK_THROWS(model::InvalidGraph, "two different devices", engine.transfer(1, 1, 5, 0));
  CHECK_THROWS(model::InvalidGraph, "two different devices", engine.transfer(1, 2, 5, 0));
  CHECK_THROWS(model::OutOfRange, "-1 bytes", engine.transfer(0, 1, -1, 0));
  engine.transfer(0, 1, 90, 0);
  CHECK_THROWS(model::InvalidGraph, "an event is pending at 0", engine.idle_until(1));
  CHECK_EQUAL(engine.run(), 100);
  engine.idle_until(1000);
  CHECK_EQUAL(engine.now(), 1000);
  CHECK_THROWS(model::InvalidGraph, "clock is at 1000", engine.transfer(0, 1, 5, 999));
  CHECK_THROWS(model::InvalidGraph, "not known", engine.times(0));
  CHECK_THROWS(model::InvalidGraph, "cannot be cancelled", engine.cancel(0));
}

// A cancelled graph gives its streams to the next one at once, and its place to a later one.
void cancelling_graphs() {
  for (const NetworkKind kind : kNetworks) {
    const auto topology =
        model::Topology::single(model::TopologyKind::kRing, 2, 1'000'000'000'000, 10);
    Engine engine(topology, {kind, 0});
    GraphBuilder builder(2);
    const std::uint64_t first = builder.compute(0, 1000, {});
    builder.transfer(0, 1, 5000, {&first, 1});
    builder.collective(0,
                       builder.add_plan({model::CollectiveKind::kAllReduce, model::Algorithm::kRing,
                                         builder.add_group(std::vector<DeviceId>{0, 1}), nullptr}),
                       0, 5000, {});
    builder.collective(1, 0, 0, 5000, {});
    const auto graph = builder.build();
    const GraphId doomed = engine.submit(graph, 0);
    const GraphId next = engine.submit(graph, 0);
    const GraphId later = engine.submit(graph, 50'000);
    CHECK(!engine.advance_until(1500));
    engine.cancel(doomed);
    engine.cancel(later);
    CHECK_EQUAL(engine.num_in_flight(), 1U);
    CHECK_THROWS(model::InvalidGraph, "cannot be cancelled", engine.cancel(doomed));
    CHECK_THROWS(model::InvalidGraph, "not known", engine.times(doomed));
    const auto completion = engine.advance();
    CHECK(completion && completion->graph == next);
    CHECK_EQUAL(engine.times(next).start_ps[0],
                1000);  // its compute ran on while the doomed one sent
    CHECK_EQUAL(engine.times(next).end_ps[0], 2000);
    CHECK(!engine.advance());
    CHECK_THROWS(model::InvalidGraph, "cannot be cancelled", engine.cancel(next));
    engine.release(next);
    const GraphId again = engine.submit(graph, 100'000);
    CHECK(engine.advance()->graph == again);
  }
}

// Half a compute node counts half; the other flow of a shared link gets all of it from then on.
void cancelled_work_counts_as_far_as_it_got() {
  const auto topology =
      model::Topology::single(model::TopologyKind::kSwitched, 3, 1'000'000'000'000, 0);
  Engine engine(topology, {NetworkKind::kFairShare, 0});
  GraphBuilder builder(3);
  builder.compute(2, 10'000, {});
  const GraphId work = engine.submit(builder.build(), 0);
  const GraphId stays = engine.transfer(0, 1, 10'000, 0);
  const GraphId goes = engine.transfer(0, 2, 10'000, 0);
  CHECK(!engine.advance_until(2000));
  engine.idle_until(4000);  // both have moved 2000 bytes
  engine.cancel(goes);
  engine.cancel(work);
  const auto done = engine.advance();
  CHECK(done && done->graph == stays && done->end_ps == 12'000);
  CHECK(!engine.advance());
  const auto links = engine.link_counters();
  const auto bytes_into = [&](DeviceId device) {
    Bytes total = 0;
    for (std::size_t l = 0; l < links.size(); ++l)
      total += topology->links()[l].to == device ? links[l].bytes : 0;
    return total;
  };
  CHECK_EQUAL(bytes_into(1), 10'000);
  CHECK_EQUAL(bytes_into(2), 2000);
  CHECK_EQUAL(engine.device_counters()[2].busy_ps[0], 4000);
  CHECK_EQUAL(engine.fair_share_counters().flows, 0U);
}

// Random submissions and cancellations: what was not cancelled completes once, and nothing is left
// behind. On links of its own a graph is not disturbed by the cancelled ones.
void random_cancels() {
  test::Random random(42);
  for (int i = 0; i < 300; ++i) {
    const Chain chain = test::random_chain(random, 6);
    const auto graph = expand(chain, std::vector<Ps>(chain.sites[0].group.size(), 3));
    EngineOptions options = chain.sites[0].options;
    options.network = kNetworks[random.between(0, 2)];
    Engine engine(chain.sites[0].topology, options);
    const std::uint32_t devices = chain.sites[0].topology->num_devices();
    std::map<GraphId, int> open;
    std::vector<GraphId> cancelled;
    for (int round = 0; round < 30; ++round) {
      const Ps at = engine.now() + random.between(0, 2) * 1'000'000;
      open[engine.submit(graph, at)] = 0;
      if (devices > 1) open[engine.transfer(0, devices - 1, random.between(0, 1 << 20), at)] = 0;
      for (std::int64_t n = random.between(0, 4); n > 0; --n) {
        if (const auto done = engine.advance_until(engine.now() + random.between(0, 5'000'000))) {
          CHECK_EQUAL(open.count(done->graph), 1U);
          open.erase(done->graph);
        }
      }
      if (open.empty() || random.between(0, 1) == 0) continue;
      const auto victim =
          std::next(open.begin(), random.between(0, static_cast<std::int64_t>(open.size()) - 1));
      try {
        engine.cancel(victim->first);
      } catch (const model::InvalidGraph&) {  // finished, and to be reported next
        continue;
      }
      cancelled.push_back(victim->first);
      open.erase(victim);
    }
    while (const auto done = engine.advance()) {
      CHECK_EQUAL(open.count(done->graph), 1U);
      open.erase(done->graph);
    }
    CHECK(open.empty());
    CHECK_EQUAL(engine.num_in_flight(), 0U);
    CHECK_EQUAL(engine.fair_share_counters().flows, 0U);
    CHECK(!engine.next_event_ps());
    for (const GraphId id : cancelled)
      CHECK_THROWS(model::InvalidGraph, "not known", engine.times(id));
  }
}

// 2 W for 3 us of class 1, 5 mW idle for 10 us on 3 devices, 10 pJ per byte of one link: by hand.
void energy() {
  Engine engine(Topology::single(TopologyKind::kSwitched, 3, 1'000'000'000'000, 0), {});
  GraphBuilder builder(3);
  builder.compute(0, 3'000'000, {}, model::Stream::kCompute, 1);
  engine.submit(builder.build(), 0);
  engine.transfer(0, 1, 1'000'000, 0);
  engine.run();
  engine.idle_until(10'000'000);
  model::EnergyRates rates;
  rates.class_mw[1] = 2000;
  rates.idle_mw = 5;
  rates.link_fj_per_byte.assign(engine.link_counters().size(), 0);
  rates.link_fj_per_byte[0] = 10'000;
  const model::Energy got = engine.energy(rates);
  CHECK_EQUAL(got.class_nj[1], 6'000);
  CHECK_EQUAL(got.idle_nj, 150);
  CHECK_EQUAL(got.link_nj[0], 10'000);
  CHECK_EQUAL(got.total_nj, 16'150);
  rates.link_fj_per_byte.pop_back();
  CHECK_THROWS(model::InvalidGraph, "given for 5 links, but the engine has 6",
               engine.energy(rates));
  rates.link_fj_per_byte.clear();
  rates.class_mw[3] = -1;
  CHECK_THROWS(model::InvalidGraph, "class 3 is -1", engine.energy(rates));
}

}  // namespace

int main() {
  energy();
  transfers_equal_nodes();
  refused_transfers();
  cancelling_graphs();
  cancelled_work_counts_as_far_as_it_got();
  random_cancels();
  return test::finish("runtime_test");
}
