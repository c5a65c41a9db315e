#include "step/streams.h"

#include <algorithm>

#include "engine/loop/engine.h"
#include "model/graph/graph_builder.h"

namespace llmsim {

namespace model = astra_sim::model;

namespace {

// The ends of the members' steps, which keep the streams of their last nodes busy.
void end_members(const StreamGraph& graph, std::span<const Ps> end, StreamCarry& carry,
                 std::span<Ps> starts, std::span<Ps> ends) {
  for (std::size_t m = 0; m < graph.members.size(); ++m) {
    const StreamGraph::Member& member = graph.members[m];
    starts[m] = end[at(member.begin)];
    ends[m] = std::max(end[at(member.end)], starts[m] + 1);
    carry.free[at(graph.nodes[at(member.end)].stream)] = ends[m];
  }
  for (const auto& [node, place] : graph.carries) carry.places[at(place)] = end[at(node)];
}

}  // namespace

void FoldedStreams::run(const StreamGraph& graph, std::span<const Ps> prices, Ps now,
                        StreamCarry& carry, std::span<Ps> starts, std::span<Ps> ends) {
  end_.resize(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const StreamNode& node = graph.nodes[i];
    Ps& free = carry.free[at(node.stream)];
    Ps begin = node.begins ? std::max(free, now) : free;
    for (const std::int32_t before : graph.after_of(node))
      begin = std::max(begin,
                       before >= kCarried ? carry.places[at(before - kCarried)] : end_[at(before)]);
    free = end_[i] = begin + prices[at(node.price)];
  }
  end_members(graph, end_, carry, starts, ends);
}

namespace {

// A unit is two devices of the engine: what it sends to the next stage has a link of its own.
constexpr std::array<std::pair<std::uint32_t, model::Stream>, kNumDeviceStreams> kEngineStream{
    {{0, model::Stream::kCompute},
     {0, model::Stream::kComm},
     {0, model::Stream::kCopyIn},
     {0, model::Stream::kCopyOut},
     {0, model::Stream::kPim},
     {0, model::Stream::kHost},
     {1, model::Stream::kCompute}}};

}  // namespace

void ExpandedStreams::run(const StreamGraph& graph, std::span<const Ps> prices, Ps now,
                          StreamCarry& carry, std::span<Ps> starts, std::span<Ps> ends) {
  // Behind the units' devices stand others with one node each, which lasts until something that the
  // step before left is done.
  const auto working = static_cast<std::size_t>(2 * graph.units);
  const std::size_t holds = carry.free.size() + carry.places.size() + 1;
  const auto devices = static_cast<std::uint32_t>(working + holds);
  model::GraphBuilder scheduler(devices);
  const auto hold = [&](std::size_t number, Ps until) {
    scheduler.compute(static_cast<model::DeviceId>(working + number), until, {});
  };
  for (std::size_t i = 0; i < carry.free.size(); ++i) hold(i, carry.free[i]);
  for (std::size_t i = 0; i < carry.places.size(); ++i)
    hold(carry.free.size() + i, carry.places[i]);
  hold(holds - 1, now);
  std::vector<std::uint64_t> after;
  for (const StreamNode& node : graph.nodes) {
    const auto& [second, stream] = kEngineStream[at(node.stream % kNumDeviceStreams)];
    after.assign(1, at(node.stream));
    if (node.begins) after.push_back(holds - 1);
    for (const std::int32_t before : graph.after_of(node))
      after.push_back(before >= kCarried ? carry.free.size() + at(before - kCarried)
                                         : holds + at(before));
    const auto device =
        static_cast<model::DeviceId>(2 * (node.stream / kNumDeviceStreams)) + second;
    scheduler.compute(device, prices[at(node.price)], after, stream);
  }
  const auto topology =
      model::Topology::single(model::TopologyKind::kFullyConnected, devices, 1, 0);
  astra_sim::engine::Engine engine(topology, {});
  const auto id = engine.submit(scheduler.build(), 0);
  engine.run();
  const auto times = engine.times(id).end_ps;
  const std::vector<Ps> end(times.begin() + static_cast<std::ptrdiff_t>(holds), times.end());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    carry.free[at(graph.nodes[i].stream)] = end[i];
  end_members(graph, end, carry, starts, ends);
}

}  // namespace llmsim
