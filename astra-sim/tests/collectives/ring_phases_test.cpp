// Rings by rule (RingPhases) against the table of the same messages (Schedule): the same times of
// all ranks and the same bytes on all links, in any number of dimensions and pieces, with ranks
// that start at different times.
#include "model/collective/ring_phases.h"

#include <vector>

#include "engine/loop/engine.h"
#include "model/collective/schedule.h"
#include "model/graph/graph_builder.h"
#include "tests/check.h"

using namespace astra_sim;
using namespace astra_sim::model;

namespace {

struct Case {
  std::shared_ptr<const Topology> topology;
  CollectivePlan plan;
  std::vector<DeviceId> group;
  std::vector<Ps> starts;  // by rank
  Bytes bytes;
  engine::NetworkKind network;
};

struct Result {
  std::vector<Ps> ends;
  std::vector<LinkCounters> links;
};

// Twice: messages of the first call may be on their way when a rank begins the second.
Result run(const Case& c, bool by_table) {
  GraphBuilder builder(c.topology->num_devices());
  CollectivePlan plan = c.plan;
  plan.group = builder.add_group(c.group);
  if (by_table) plan.schedule = Schedule::make(plan, c.group);
  const PlanId id = builder.add_plan(plan);
  for (std::size_t rank = 0; rank < c.group.size(); ++rank) {
    const std::uint64_t work = builder.compute(c.group[rank], c.starts[rank], {});
    const std::uint64_t first = builder.collective(c.group[rank], id, 0, c.bytes, {&work, 1});
    builder.collective(c.group[rank], id, 1, c.bytes, {&first, 1});
  }
  engine::Engine engine(c.topology, {.network = c.network});
  const GraphId graph = engine.submit(builder.build(), 0);
  engine.run();
  const auto ends = engine.times(graph).end_ps;
  return {{ends.begin(), ends.end()}, engine.link_counters()};
}

Case random_case(test::Random& random) {
  using enum CollectiveKind;
  constexpr CollectiveKind kinds[] = {kAllReduce, kAllGather, kReduceScatter};
  Case c{};
  std::vector<Dimension> dims;
  std::uint32_t devices = 1;
  for (std::int64_t i = random.between(1, 3); i > 0; --i) {
    const auto size = static_cast<std::uint32_t>(random.between(1, 5));
    dims.push_back({static_cast<TopologyKind>(random.between(0, 2)), size,
                    random.between(1, 4) * 10'000'000'000, random.between(0, 2) * 300'000});
    c.plan.shape.dims.push_back(size);
    devices *= size;
  }
  c.topology = Topology::grid(dims);
  c.plan.kind = kinds[random.between(0, 2)];
  c.plan.algorithm = Algorithm::kRing;
  c.plan.shape.pieces = static_cast<std::uint32_t>(random.between(0, 1) * random.between(1, 4) + 1);
  const bool skewed = random.between(0, 1) != 0;
  for (DeviceId device = 0; device < devices; ++device) {
    c.group.push_back(device);
    c.starts.push_back(skewed ? random.between(0, 3) * random.between(0, 20'000'000) : 0);
  }
  const Bytes top[] = {0, 3, 1'000, 1'048'579, 300'000'000};
  c.bytes = random.between(0, top[random.between(0, 4)]);
  c.network = static_cast<engine::NetworkKind>(random.between(0, 2));
  return c;
}

void same_times_and_bytes() {
  test::Random random(17);
  for (int round = 0; round < 400; ++round) {
    const Case c = random_case(random);
    CHECK(RingPhases::covers(c.plan));
    const Result rule = run(c, false), table = run(c, true);
    CHECK(rule.ends == table.ends);
    for (std::size_t link = 0; link < rule.links.size(); ++link) {
      CHECK_EQUAL(rule.links[link].bytes, table.links[link].bytes);
      CHECK_EQUAL(rule.links[link].messages, table.links[link].messages);
      CHECK_EQUAL(rule.links[link].busy_ps, table.links[link].busy_ps);
    }
  }
}

void what_needs_a_table() {
  CollectivePlan plan{CollectiveKind::kAllReduce, Algorithm::kRing, 0, nullptr};
  plan.shape.dims = {4, 2};
  CHECK(RingPhases::covers(plan));
  plan.shape.algorithms = {Algorithm::kRing, Algorithm::kDirect};
  CHECK(!RingPhases::covers(plan));
  plan.shape.algorithms.clear();
  plan.kind = CollectiveKind::kAllToAll;
  CHECK(!RingPhases::covers(plan));
}

}  // namespace

int main() {
  same_times_and_bytes();
  what_needs_a_table();
  return test::finish("ring_phases_test");
}
