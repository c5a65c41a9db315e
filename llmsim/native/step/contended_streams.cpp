#include "step/contended_streams.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

namespace {

bool moves_bytes(std::size_t stream) {
  const auto kind = static_cast<DeviceStream>(stream % static_cast<std::size_t>(kNumDeviceStreams));
  return kind == DeviceStream::kCopyIn || kind == DeviceStream::kCopyOut ||
         kind == DeviceStream::kPull || kind == DeviceStream::kPim;
}

}  // namespace

ContendedStreams::ContendedStreams(SharedNetwork& network,
                                   std::vector<std::vector<NetworkNodeId>> ranks,
                                   std::vector<Way> ways, StreamCarry carry,
                                   const StreamGraph& usual, Amounts amounts, Timed timed)
    : network_(network),
      devices_(std::move(ranks)),
      ways_(std::move(ways)),
      timed_(std::move(timed)),
      amounts_(std::move(amounts)),
      places_(std::move(carry.places)) {
  if (devices_.size() != at(usual.units))
    throw std::invalid_argument("the devices of each unit are needed");
  for (std::size_t stream = 0; stream < carry.free.size(); ++stream) {
    const std::size_t unit = stream / static_cast<std::size_t>(kNumDeviceStreams);
    lanes_.emplace_back(moves_bytes(stream) ? devices_[unit].size() : 1, Lane{carry.free[stream]});
  }
  order_of(usual);
  expect_step();
}

const ContendedStreams::Order& ContendedStreams::order_of(const StreamGraph& graph) {
  for (const Order& order : orders_)
    if (order.graph == &graph) return order;
  Order& order = orders_.emplace_back();
  order.graph = &graph;
  order.by_stream.resize(lanes_.size());
  order.left_by.assign(places_.size(), -1);
  order.member_of.assign(graph.nodes.size(), -1);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    order.by_stream[at(graph.nodes[i].stream)].push_back(static_cast<std::int32_t>(i));
  for (const auto& [node, place] : graph.carries) order.left_by[at(place)] = node;
  for (std::size_t m = 0; m < graph.members.size(); ++m)
    order.member_of[at(graph.members[m].end)] = static_cast<std::int32_t>(m);
  return order;
}

void ContendedStreams::expect_step() {
  Step& step = steps_.emplace_back();
  step.ps = amounts_.ps;
  step.bytes = amounts_.bytes;
  follow(step, orders_.front());
}

// What was copied ahead for the usual order counts in this one too.
void ContendedStreams::follow(Step& step, const Order& order) const {
  Step old = std::move(step);
  step = Step{&order, old.given, old.now, std::move(old.ps), std::move(old.bytes), {}, {}, {}, 0};
  const auto& nodes = order.graph->nodes;
  step.end.assign(nodes.size(), kNever);
  step.reached.assign(nodes.size(), 0);
  step.open = nodes.size();
  for (const StreamNode& node : nodes)
    step.left.push_back(static_cast<std::int32_t>(ranks_on(at(node.stream))));
  if (old.order == nullptr) return;
  for (std::size_t stream = 0; stream < lanes_.size(); ++stream) {
    const auto &before = old.order->by_stream[stream], &after = order.by_stream[stream];
    for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
      step.end[at(after[i])] = old.end[at(before[i])];
      step.reached[at(after[i])] = old.reached[at(before[i])];
      step.left[at(after[i])] = old.left[at(before[i])];
      step.open -= old.end[at(before[i])] != kNever;
    }
  }
}

void ContendedStreams::give(const StreamGraph& graph, std::span<const Ps> ps,
                            std::span<const std::int64_t> bytes, Ps now) {
  Step& step = steps_.back();
  if (step.order->graph != &graph) follow(step, order_of(graph));
  step.given = true;
  step.now = now;
  step.ps.assign(ps.begin(), ps.end());
  step.bytes.assign(bytes.begin(), bytes.end());
  expect_step();
  advance(now);
}

// When everything that the node waits for is done; kNever: not known yet.
Ps ContendedStreams::ready(const Step& step, std::int64_t number, const StreamNode& node) const {
  Ps ready = 0;
  for (const std::int32_t before : step.order->graph->after_of(node)) {
    Ps end;
    if (before < kCarried) {
      end = step.end[at(before)];
    } else if (number == first_) {
      end = places_[at(before - kCarried)];
    } else {
      const Step& last = steps_[static_cast<std::size_t>(number - 1 - first_)];
      end = last.given ? last.end[at(last.order->left_by[at(before - kCarried)])] : kNever;
    }
    if (end == kNever) return kNever;
    ready = std::max(ready, end);
  }
  return ready;
}

bool ContendedStreams::try_next(std::size_t stream, std::size_t rank, Ps now) {
  Lane& lane = lanes_[stream][rank];
  if (lane.moving) return false;
  while (lane.next >= step_at(lane.step).order->by_stream[stream].size()) {
    if (!step_at(lane.step).given) return false;
    ++lane.step;
    lane.next = 0;
  }
  Step& step = step_at(lane.step);
  const std::int32_t index = step.order->by_stream[stream][lane.next];
  const StreamNode& node = step.order->graph->nodes[at(index)];
  if (!step.given && (node.begins || !amounts_.fixed[at(node.price)])) return false;
  Ps begin = ready(step, lane.step, node);
  if (begin == kNever) return false;
  begin = std::max(begin, lane.free);
  if (node.begins) begin = std::max(begin, step.now);
  if (amounts_.way[at(node.price)] >= 0 && step.bytes[at(node.price)] > 0) {
    lane.moving = true;
    move(node, step, rank, begin, now);
  } else {
    pass(stream, rank, begin + step.ps[at(node.price)], now);
  }
  return true;
}

void ContendedStreams::move(const StreamNode& node, const Step& step, std::size_t rank, Ps begin,
                            Ps now) {
  const std::size_t unit = at(node.stream / kNumDeviceStreams);
  const Way& way = ways_[static_cast<std::size_t>(amounts_.way[at(node.price)])];
  const auto& others = way.other[unit];
  const NetworkNodeId device = devices_[unit][rank], other = others[others.size() == 1 ? 0 : rank];
  const std::uint64_t token = (static_cast<std::uint64_t>(node.stream) << 32) | rank;
  network_.transfer_at(way.out ? device : other, way.out ? other : device,
                       step.bytes[at(node.price)], std::max(begin + way.before, now), now, *this,
                       token, way.purpose);
}

void ContendedStreams::landed(TransferId, std::uint64_t token, Ps now) {
  const auto stream = static_cast<std::size_t>(token >> 32),
             rank = static_cast<std::size_t>(token & 0xffffffffU);
  lanes_[stream][rank].moving = false;
  pass(stream, rank, now, now);
  advance(now);
}

// The rank is through with its present node.
void ContendedStreams::pass(std::size_t stream, std::size_t rank, Ps end, Ps now) {
  Lane& lane = lanes_[stream][rank];
  Step& step = step_at(lane.step);
  const std::size_t node = at(step.order->by_stream[stream][lane.next]);
  lane.free = end;
  ++lane.next;
  step.reached[node] = std::max(step.reached[node], end);
  if (--step.left[node] > 0) return;
  step.end[node] = step.reached[node];
  --step.open;
  const std::int32_t member = step.order->member_of[node];
  if (member < 0) return;
  const Ps start = step.end[at(step.order->graph->members[at(member)].begin)];
  lane.free = std::max(end, start + 1);
  timed_(at(member), start, lane.free, now);
}

void ContendedStreams::advance(Ps now) {
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stream = 0; stream < lanes_.size(); ++stream)
      for (std::size_t rank = 0; rank < lanes_[stream].size(); ++rank)
        while (try_next(stream, rank, now)) moved = true;
  }
  forget();
}

void ContendedStreams::forget() {
  while (steps_.size() > 1 && steps_.front().open == 0) {
    const Step& step = steps_.front();
    for (std::size_t place = 0; place < places_.size(); ++place)
      if (const std::int32_t node = step.order->left_by[place]; node >= 0)
        places_[place] = step.end[at(node)];
    for (auto& lanes : lanes_) {
      for (Lane& lane : lanes) {
        if (lane.step > first_) continue;
        lane.step = first_ + 1;
        lane.next = 0;
      }
    }
    steps_.pop_front();
    ++first_;
  }
}

}  // namespace llmsim
