// What a graph refuses, each with the node's name; and what its columns hold.
#include "model/base/errors.h"
#include "model/graph/graph_builder.h"
#include "tests/check.h"

using namespace astra_sim;
using namespace astra_sim::model;

namespace {

using Parents = std::vector<std::uint64_t>;

void columns() {
  GraphBuilder builder(2);
  const PlanId plan = builder.add_plan({CollectiveKind::kAllReduce, Algorithm::kRing,
                                        builder.add_group(std::vector<DeviceId>{1, 0}), nullptr});
  builder.compute(0, 5, Parents{});
  builder.compute(1, 6, Parents{});
  builder.collective(0, plan, 7, 100, Parents{0, 0});  // duplicates collapse
  builder.collective(1, plan, 7, 100, Parents{1});
  builder.compute(0, 1, Parents{2}, Stream::kNone, 3);
  const auto graph = builder.build();
  CHECK_EQUAL(graph->num_nodes(), 5U);
  CHECK_EQUAL(graph->num_parents[2], 1U);
  CHECK_EQUAL(graph->children(0)[0], 2U);
  CHECK_EQUAL(graph->lanes.size(), 4U);
  CHECK_EQUAL(graph->lane[4], kNone);
  CHECK_EQUAL(graph->calls.size(), 1U);
  CHECK_EQUAL(graph->rank_slots[0].node, 3U);  // group order: device 1 first
  CHECK_EQUAL(graph->rank_slots[0].next_device, 0U);
  CHECK_EQUAL(graph->slot[2], 1U);
  CHECK(graph->describe(4) == "node 4 (compute on device 0)");
  builder.clear();
  builder.compute(0, 1, Parents{});
  CHECK_EQUAL(builder.build()->num_nodes(), 1U);
  CHECK_EQUAL(graph->num_nodes(), 5U);
}

template <class Fill>
void refused(const char* part, Fill fill) {
  GraphBuilder builder(3);
  builder.add_group(std::vector<DeviceId>{0, 1});
  builder.add_plan({CollectiveKind::kAllReduce, Algorithm::kRing, 0, nullptr});
  fill(builder);
  CHECK_THROWS(InvalidGraph, part, builder.build());
}

void dependencies() {
  refused("node 0 (compute on device 0) depends on node 9, which is not in the graph",
          [](GraphBuilder& b) { b.compute(0, 1, Parents{9}); });
  refused("node 30 (compute on device 0) depends on node 1, which is not in the graph",
          [](GraphBuilder& b) {
            b.compute(0, 1, Parents{1});
            b.with_ids(Parents{30});
          });
  refused("node 30 appears twice", [](GraphBuilder& b) {
    b.compute(0, 1, Parents{});
    b.compute(0, 1, Parents{});
    b.with_ids(Parents{30, 30});
  });
  refused("needs one", [](GraphBuilder& b) {
    b.compute(0, 1, Parents{});
    b.with_ids(Parents{1, 2});
  });
  refused("cycle: node 0 (compute on device 0) waits for node 0",
          [](GraphBuilder& b) { b.compute(0, 1, Parents{0}); });
  refused("waits for node 2 (compute on device 2) waits for node 1", [](GraphBuilder& b) {
    b.compute(0, 1, Parents{2});
    b.compute(1, 1, Parents{0});
    b.compute(2, 1, Parents{1});
  });
  refused("nodes of one stream of a device run in order",
          [](GraphBuilder& b) {  // 0 waits for 1, behind it
            b.compute(0, 1, Parents{1});
            b.compute(0, 1, Parents{});
          });
}

void places() {
  refused("node 0 (compute on device 3) is on a device that does not exist",
          [](GraphBuilder& b) { b.compute(3, 1, Parents{}); });
  refused("has amount -1", [](GraphBuilder& b) { b.compute(0, -1, Parents{}); });
  refused("has amount 1152921504606846977",
          [](GraphBuilder& b) { b.compute(0, kMaxSpan + 1, Parents{}); });
  refused("names device 0 as the other end",
          [](GraphBuilder& b) { b.transfer(0, 0, 1, Parents{}); });
  refused("names device 7 as the other end",
          [](GraphBuilder& b) { b.transfer(0, 7, 1, Parents{}); });
  refused("kind number 99",
          [](GraphBuilder& b) { b.add(NodeKind{99}, Stream::kComm, 0, 1, 0, 0, Parents{}); });
  refused("stream number 9", [](GraphBuilder& b) { b.compute(0, 1, Parents{}, Stream{9}); });
  refused("power class 16",
          [](GraphBuilder& b) { b.compute(0, 1, Parents{}, Stream::kCompute, 16); });
  refused("refers to plan 5", [](GraphBuilder& b) { b.collective(0, 5, 0, 1, Parents{}); });
  refused("group 1 contains device 3",
          [](GraphBuilder& b) { b.add_group(std::vector<DeviceId>{3}); });
  refused("group 1 contains device 2 twice",
          [](GraphBuilder& b) { b.add_group(std::vector<DeviceId>{2, 1, 2}); });
  refused("group 1 has no devices", [](GraphBuilder& b) { b.add_group(std::vector<DeviceId>{}); });
  refused("plan 1 refers to group 4", [](GraphBuilder& b) {
    b.add_plan({CollectiveKind::kAllReduce, Algorithm::kRing, 4, nullptr});
  });
  refused("plan 1 is measured", [](GraphBuilder& b) {
    b.add_plan({CollectiveKind::kAllReduce, Algorithm::kMeasured, 0, nullptr});
  });
}

void joins() {
  refused("collective call 4 (node 0 (collective on device 0)) lacks its rank on device 1",
          [](GraphBuilder& b) { b.collective(0, 0, 4, 8, Parents{}); });
  refused("node 1 (collective on device 1) disagrees with node 0", [](GraphBuilder& b) {
    b.collective(0, 0, 4, 8, Parents{});
    b.collective(1, 0, 4, 9, Parents{});
  });
  refused("node 1 (collective on device 0) takes part in collective call 4 twice",
          [](GraphBuilder& b) {
            b.collective(0, 0, 4, 8, Parents{});
            b.collective(0, 0, 4, 8, Parents{});
          });
  refused(
      "node 2 (collective on device 2) takes part in collective call 4, but its device is not in "
      "group 0",
      [](GraphBuilder& b) {
        for (DeviceId device = 0; device < 3; ++device) b.collective(device, 0, 4, 8, Parents{});
      });
  refused("node 0 (send on device 0) has no partner",
          [](GraphBuilder& b) { b.add(NodeKind::kSend, Stream::kComm, 0, 8, 1, 0, Parents{}); });
  refused("node 0 (send on device 0) has no partner", [](GraphBuilder& b) {
    b.add(NodeKind::kSend, Stream::kComm, 0, 8, 1, 0, Parents{});
    b.add(NodeKind::kRecv, Stream::kComm, 1, 9, 0, 0, Parents{});
  });
  refused("node 0 (recv on device 0) has no partner",
          [](GraphBuilder& b) { b.add(NodeKind::kRecv, Stream::kComm, 0, 8, 1, 0, Parents{}); });
}

void tables() {
  const MeasuredTable table({10, 20, 40}, {100, 205, 205});
  CHECK_EQUAL(table.at(0), 100);
  CHECK_EQUAL(table.at(10), 100);
  CHECK_EQUAL(table.at(13), 132);  // 131.5 rounds up
  CHECK_EQUAL(table.at(20), 205);
  CHECK_EQUAL(table.at(1000), 205);
  CHECK_EQUAL(MeasuredTable({10, 20}, {100, 205}).at(40), 415);
  CHECK_EQUAL(MeasuredTable({10, 20}, {100, 50}).at(13), 85);
  CHECK_EQUAL(MeasuredTable({10, 20}, {100, 50}).at(1000), 0);
  CHECK_EQUAL(MeasuredTable({10}, {100}).at(50), 100);
  CHECK_THROWS(InvalidTopology, "row 1", MeasuredTable({10, 10}, {1, 2}));
  CHECK_THROWS(InvalidTopology, "1 sizes and 0", MeasuredTable({10}, {}));
  CHECK_THROWS(OutOfRange, "limit", MeasuredTable({0, 1}, {0, 1'000'000}).at(kMaxBytes));
}

}  // namespace

int main() {
  columns();
  dependencies();
  places();
  joins();
  tables();
  return test::finish("graph_test");
}
