#include "streams.h"

#include <algorithm>

#include "engine/engine.h"
#include "model/graph_builder.h"

namespace llmsim {

namespace model = astra_sim::model;

Ps FoldedStreams::run(const StreamGraph& graph, std::span<const Ps> prices, Ps start, StreamCarry& carry) {
  end_.resize(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const StreamNode& node = graph.nodes[i];
    Ps& free = carry.free[static_cast<std::size_t>(node.stream)];
    Ps at = node.after_start ? std::max(free, start) : free;
    for (const std::int32_t before : node.after) {
      if (before < 0) continue;
      at = std::max(at, before >= kCarried ? carry.places[static_cast<std::size_t>(before - kCarried)]
                                           : end_[static_cast<std::size_t>(before)]);
    }
    free = end_[i] = at + prices[static_cast<std::size_t>(node.price)];
  }
  for (const auto& [node, place] : graph.carries)
    carry.places[static_cast<std::size_t>(place)] = end_[static_cast<std::size_t>(node)];
  return end_[static_cast<std::size_t>(graph.last)];
}

namespace {

constexpr std::array<model::Stream, kNumDeviceStreams> kEngineStream{
    model::Stream::compute, model::Stream::comm, model::Stream::copy_in, model::Stream::copy_out, model::Stream::pim};

}  // namespace

Ps ExpandedStreams::run(const StreamGraph& graph, std::span<const Ps> prices, Ps start, StreamCarry& carry) {
  // Device 0 works. The others have one node each, which lasts until something that the step before left is done.
  const std::size_t holds = kNumDeviceStreams + carry.places.size() + 1;
  const auto devices = static_cast<std::uint32_t>(1 + holds);
  model::GraphBuilder builder(devices);
  const auto hold = [&](std::size_t number, Ps until) {
    builder.compute(static_cast<model::DeviceId>(1 + number), until, {});
  };
  for (std::size_t i = 0; i < kNumDeviceStreams; ++i) hold(i, carry.free[i]);
  for (std::size_t i = 0; i < carry.places.size(); ++i) hold(kNumDeviceStreams + i, carry.places[i]);
  hold(holds - 1, start);
  std::vector<std::uint64_t> after;
  for (const StreamNode& node : graph.nodes) {
    const auto stream = static_cast<std::size_t>(node.stream);
    after.assign(1, stream);
    if (node.after_start) after.push_back(holds - 1);
    for (const std::int32_t before : node.after) {
      if (before < 0) continue;
      after.push_back(before >= kCarried ? kNumDeviceStreams + static_cast<std::size_t>(before - kCarried)
                                         : holds + static_cast<std::size_t>(before));
    }
    builder.compute(0, prices[static_cast<std::size_t>(node.price)], after, kEngineStream[stream]);
  }
  const auto topology = model::Topology::single(model::TopologyKind::fully_connected, devices, 1, 0);
  astra_sim::engine::Engine engine(topology, {});
  const auto id = engine.submit(builder.build(), 0);
  engine.run();
  const auto ends = engine.times(id).end_ps;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    carry.free[static_cast<std::size_t>(graph.nodes[i].stream)] = ends[holds + i];
  for (const auto& [node, place] : graph.carries)
    carry.places[static_cast<std::size_t>(place)] = ends[holds + static_cast<std::size_t>(node)];
  return ends[holds + static_cast<std::size_t>(graph.last)];
}

}  // namespace llmsim
