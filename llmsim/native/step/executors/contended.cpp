#include "step/executors/contended.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

namespace {

// Routes from the sources of weights, then those of OffloadRoute.
std::vector<Route> routes_of(const StepPricer& pricer, std::size_t stages) {
  const OffloadConfig& config = *pricer.offload();
  const std::size_t units = pricer.num_members() * stages;
  std::vector<Route> routes;
  for (std::size_t source = 0; source < config.weights.sources.size(); ++source) {
    const Ps before = config.weights.sources[source].before;
    Route& route = routes.emplace_back(Route{false, before, {}, Purpose::kWeights});
    for (std::size_t unit = 0; unit < units; ++unit)
      route.other.push_back({pricer.offload_of(unit / stages).weights.sources[source].place});
  }
  for (const OffloadRoute which : {OffloadRoute::kToMemory, OffloadRoute::kFromMemory,
                                   OffloadRoute::kToHost, OffloadRoute::kFromHost}) {
    const bool memory = which == OffloadRoute::kToMemory || which == OffloadRoute::kFromMemory;
    const bool out = which == OffloadRoute::kToMemory || which == OffloadRoute::kToHost;
    const Ps before = memory || out ? 0 : config.host.before;
    Route& route = routes.emplace_back(Route{out, before, {}, Purpose::kOther});
    for (std::size_t unit = 0; unit < units; ++unit) {
      const OffloadConfig& mine = pricer.offload_of(unit / stages);
      std::vector<NetworkNodeId> places{mine.host.place};
      if (memory && mine.has_pim) {
        const std::size_t tp = mine.ranks.at(unit % stages).size();
        const auto first =
            mine.pim.places.begin() + static_cast<std::ptrdiff_t>(unit % stages * tp);
        places.assign(first, first + static_cast<std::ptrdiff_t>(tp));
      }
      route.other.push_back(std::move(places));
    }
  }
  return routes;
}

// Collectives on shared links, and with `layers` attention, are nodes of their own; other operators
// in a row are one.
StepGraphs graphs_over(const StepPricer& pricer, const ContendedLinks& links, bool layers) {
  const Program& program = pricer.program();
  const auto members = static_cast<std::int32_t>(pricer.num_members());
  std::vector<bool> apart(program.operators().size(), false);
  if (layers) apart = caching_operators(program);
  for (const CollectiveSpec& spec : links.collectives) apart.at(at(spec.op)) = true;
  const bool drafts = pricer.member(0).drafter() != nullptr;
  return {unrolled(folded(program, program_graph(program, members, drafts), apart)), {}};
}

}  // namespace

ContendedExecutor::ContendedExecutor(StepPricer pricer)
    : pricer_(std::move(pricer)),
      timer_(full_graphs(pricer_), std::make_unique<FoldedTiming>()),
      open_(pricer_.num_members()) {
  lay_out();
}

ContendedExecutor::ContendedExecutor(StepPricer pricer, ContendedLinks links)
    : pricer_(std::move(pricer)),
      timer_(graphs_over(pricer_, links, false), std::make_unique<FoldedTiming>()),
      links_(std::move(links)),
      open_(pricer_.num_members()) {
  lay_out();
}

bool ContendedExecutor::report_layers() {
  if (reports_layers_) return true;
  reports_layers_ = true;
  if (pricer_.offload() == nullptr)
    timer_ = StepTimer(graphs_over(pricer_, links_, true), std::make_unique<FoldedTiming>());
  lay_out();
  return true;
}

void ContendedExecutor::lay_out() {
  const StepGraph& usual = timer_.graphs().whole;
  devices_.clear();
  orders_.clear();
  cursors_.clear();
  streams_.clear();
  steps_.clear();
  slots_.assign(at(usual.slots), 0);
  if (pricer_.offload() != nullptr) {
    for (std::size_t m = 0; m < pricer_.num_members(); ++m) {
      const auto& ranks = pricer_.offload_of(m).ranks;
      devices_.insert(devices_.end(), ranks.begin(), ranks.end());
    }
    if (devices_.size() != at(usual.units))
      throw std::invalid_argument("the devices of each unit are needed");
    routes_ = routes_of(pricer_, at(usual.stages));
  }
  const auto num_streams = at(usual.units * kNumDeviceStreams);
  for (std::size_t stream = 0; stream < num_streams; ++stream) {
    const std::size_t unit = stream / static_cast<std::size_t>(kNumDeviceStreams);
    StepNode any;
    any.stream = static_cast<std::int32_t>(stream);
    const bool by_rank = runs_beside_steps(any) && !devices_.empty();
    cursors_.emplace_back(by_rank ? devices_[unit].size() : 1);
  }
  const Order& order = order_of(usual);
  for (std::size_t stream = 0; stream < num_streams; ++stream)
    if (!order.by_stream[stream].empty()) streams_.push_back(stream);
  meetings_.resize(at(usual.stages));
  ahead_ = pricer_.ahead(usual);
  expect_step();
  for (auto& cursors : cursors_)
    for (Cursor& cursor : cursors) cursor.step = &steps_.front();
}

void ContendedExecutor::start(SharedNetwork* network, Ps now) {
  if (network == nullptr)
    throw std::invalid_argument("steps that meet other transfers need the network");
  network_ = network;
  if (!links_.collectives.empty()) {
    const auto members = static_cast<std::int32_t>(pricer_.num_members());
    flows_ = std::make_unique<CollectiveFlows>(
        pricer_.program(), members, links_, *network,
        [this](const StepNode& node, CollectiveFlows::Took took, Ps at, Ps now) {
          exchanged(node, took, at, now);
          advance(now);
        });
  }
  advance(now);
}

const ContendedExecutor::Order& ContendedExecutor::order_of(const StepGraph& graph) {
  for (const Order& order : orders_)
    if (order.graph == &graph) return order;
  Order& order = orders_.emplace_back();
  order.graph = &graph;
  order.by_stream.resize(cursors_.size());
  order.kept_by.assign(slots_.size(), -1);
  order.member_of.assign(graph.nodes.size(), -1);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].stream != kNoStream)
      order.by_stream[at(graph.nodes[i].stream)].push_back(static_cast<std::int32_t>(i));
  for (const auto& [node, slot] : graph.kept) order.kept_by[at(slot)] = node;
  for (std::size_t m = 0; m < graph.members.size(); ++m)
    order.member_of[at(graph.members[m].end)] = static_cast<std::int32_t>(m);
  order.layer_of.assign(graph.nodes.size(), -1);
  if (!reports_layers_) return order;
  order.layers = caching_nodes(pricer_.program(), graph);
  for (const auto& layers : order.layers)
    for (const auto& [layer, nodes] : layers)
      for (const std::int32_t node : nodes) order.layer_of[at(node)] = layer;
  return order;
}

void ContendedExecutor::expect_step() {
  Step& step = steps_.emplace_back();
  step.prices = ahead_;
  follow(step, orders_.front());
}

// What was copied ahead for the usual order counts in this one too: both have as many nodes that
// run ahead on each stream, in the same order.
void ContendedExecutor::follow(Step& step, const Order& order) const {
  Step old = std::move(step);
  step = Step{&order, old.begun, old.start, old.after, 0, std::move(old.prices), {}, {}, {}, 0};
  const auto& nodes = order.graph->nodes;
  step.end.assign(nodes.size(), kNever);
  step.reached.assign(nodes.size(), 0);
  for (const StepNode& node : nodes) {
    const bool streams = node.stream != kNoStream;
    step.left.push_back(streams ? static_cast<std::int32_t>(cursors_[at(node.stream)].size()) : 0);
    step.open += streams;
  }
  if (old.order == nullptr) return;
  for (const std::size_t stream : streams_) {
    const auto &before = old.order->by_stream[stream], &after = order.by_stream[stream];
    for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
      step.end[at(after[i])] = old.end[at(before[i])];
      step.reached[at(after[i])] = old.reached[at(before[i])];
      step.left[at(after[i])] = old.left[at(before[i])];
      step.open -= old.end[at(before[i])] != kNever;
    }
  }
}

// As if everything were free: who else moves is not known before the step has run.
const StepGraph& ContendedExecutor::choose(bool may_split) {
  if (!may_split) return timer_.graphs().whole;
  StepCarry free(timer_.graphs().whole);
  return timer_.run(pricer_, true, {}, free).graph;
}

bool ContendedExecutor::reports_progress() const {
  return pricer_.offload() == nullptr && timer_.graphs().whole.units == 1;
}

void ContendedExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                              StepSink& sink) {
  sink_ = &sink;
  const StepGraph& graph = choose(pricer_.begin(batches, start.at));
  Step& step = steps_.back();
  if (step.order->graph != &graph) follow(step, order_of(graph));
  step.begun = true;
  step.start = start;
  const std::int64_t number = first_ + static_cast<std::int64_t>(steps_.size()) - 1;
  if (start.after > 0) step.after = number - start.after;
  pricer_.fill(graph, step.prices);
  for (std::size_t m = 0; m < batches.size(); ++m) {
    open_[m].push_back(pricer_.open(m, graph, step.prices));
    open_[m].back().number = number;
  }
  expect_step();
  advance(start.now);
}

// When a node has ended; kNever: not known yet. One on no stream is as late as what it waits for.
Ps ContendedExecutor::end_of(const Step& step, std::int64_t number, std::int32_t node) const {
  const StepNode& one = step.order->graph->nodes[at(node)];
  if (one.stream != kNoStream) return step.end[at(node)];
  const Ps begin = ready(step, number, one);
  return begin == kNever ? kNever : begin + step.prices.of(*step.order->graph, one, 0);
}

// When everything that the node waits for is done; kNever: not known yet.
Ps ContendedExecutor::ready(const Step& step, std::int64_t number, const StepNode& node) const {
  Ps ready = 0;
  for (const Wait& wait : step.order->graph->waits_of(node)) {
    Ps end;
    if (wait.from == WaitFor::kNode) {
      end = end_of(step, number, wait.index);
    } else if (number == first_) {
      end = slots_[at(wait.index)];
    } else {
      const Step& last = steps_[static_cast<std::size_t>(number - 1 - first_)];
      end = last.begun ? last.end[at(last.order->kept_by[at(wait.index)])] : kNever;
    }
    if (end == kNever) return kNever;
    ready = std::max(ready, end);
  }
  return ready;
}

bool ContendedExecutor::try_next(std::size_t stream, std::size_t rank, Ps now) {
  Cursor& cursor = cursors_[stream][rank];
  if (cursor.moving) return false;
  while (cursor.next >= cursor.step->order->by_stream[stream].size()) {
    if (!cursor.step->begun) return false;
    cursor.step = &step_at(++cursor.number);
    cursor.next = 0;
  }
  Step& step = *cursor.step;
  const StepGraph& graph = *step.order->graph;
  const StepNode& node = graph.nodes[at(step.order->by_stream[stream][cursor.next])];
  if (!step.begun && !node.ahead) return false;
  if (node.role == NodeRole::kBegin && step.after >= 0) return false;
  Ps begin = ready(step, cursor.number, node);
  if (begin == kNever) return false;
  begin = std::max({begin, cursor.free, given_at(node, step.start)});
  const Ps alone = step.prices.of(graph, node, 0);
  if (reports_progress()) report(step, node, alone, cursor.free, now);
  cursor.began = begin;
  if (node.route >= 0 && step.prices.bytes[at(node.price)] > 0) {
    cursor.moving = true;
    copy(node, step, rank, begin, now);
  } else if (flows_ && node.op >= 0 && flows_->carries(node.op)) {
    cursor.moving = true;
    exchange(node, step, alone, begin, now);
  } else {
    pass(stream, rank, begin + alone, now);
  }
  return true;
}

void ContendedExecutor::copy(const StepNode& node, const Step& step, std::size_t rank, Ps begin,
                             Ps now) {
  const std::size_t unit = at(node.stream / kNumDeviceStreams);
  const Route& route = routes_[static_cast<std::size_t>(node.route)];
  const auto& others = route.other[unit];
  const NetworkNodeId device = devices_[unit][rank], other = others[others.size() == 1 ? 0 : rank];
  const std::uint64_t token = (static_cast<std::uint64_t>(node.stream) << 32) | rank;
  network_->transfer_at(route.out ? device : other, route.out ? other : device,
                        step.prices.bytes[at(node.price)], std::max(begin + route.before, now), now,
                        *this, token, route.purpose);
}

void ContendedExecutor::landed(TransferId, std::uint64_t token, Ps now) {
  const auto stream = static_cast<std::size_t>(token >> 32);
  const auto rank = static_cast<std::size_t>(token & 0xffffffffU);
  cursors_[stream][rank].moving = false;
  pass(stream, rank, now, now);
  advance(now);
}

// A member has come to a collective, or to sending its hidden states.
void ContendedExecutor::exchange(const StepNode& node, const Step& step, Ps alone, Ps begin,
                                 Ps now) {
  const Operator& op = pricer_.program().operators()[at(node.op)];
  if (op.feature == Feature::kGathered) {
    Meeting& meeting = meetings_[at(op.stage)];
    meeting.at = std::max(meeting.at, begin);
    if (++meeting.there < pricer_.num_members()) return;
    begin = meeting.at;
    meeting = {};
  }
  const std::int64_t units = step.prices.units[at(node.price)];
  if (!flows_->start(node, units, alone, begin, now))
    exchanged(node, {alone, alone}, begin + alone, now);
}

// All who took part go on.
void ContendedExecutor::exchanged(const StepNode& node, CollectiveFlows::Took took, Ps at, Ps now) {
  const Operator& op = pricer_.program().operators()[llmsim::at(node.op)];
  const bool together = op.feature == Feature::kGathered;
  const std::int32_t stages = timer_.graphs().whole.stages;
  const auto members = static_cast<std::int32_t>(pricer_.num_members());
  const std::int32_t first = together ? 0 : node.member;
  const std::int32_t last = together ? members : node.member + 1;
  const std::int32_t kind = node.stream % kNumDeviceStreams;
  for (std::int32_t m = first; m < last; ++m) {
    const auto stream = llmsim::at((m * stages + op.stage) * kNumDeviceStreams + kind);
    Cursor& cursor = cursors_[stream][0];
    cursor.moving = false;
    cursor.began = at - took.ps;
    slow_down(llmsim::at(m), cursor.number, took);
    pass(stream, 0, at, now);
  }
}

// Others on the links have made an exchange of the member's step longer.
void ContendedExecutor::slow_down(std::size_t member, std::int64_t step,
                                  CollectiveFlows::Took took) {
  const Ps lost = took.ps - took.alone;
  if (lost <= 0) return;
  ContentionCounters& counters = pricer_.member(member).contention;
  counters.slowed += took.ps;
  counters.lost += lost;
  for (OpenStep& open : open_[member])
    if (open.number == step) open.slow_down(lost);
}

// Where the operators before have ended; the node itself may begin later, as the last one does
// behind the host's launches.
void ContendedExecutor::report(Step& step, const StepNode& node, Ps alone, Ps at, Ps now) {
  if (node.role == NodeRole::kBegin || launches(node)) return;
  const bool last = node.role == NodeRole::kEnd;
  sink_->passed({step.passed, last ? kEndOfTime - step.passed : alone, at}, now);
  step.passed += alone;
}

void ContendedExecutor::note_span(const StepNode& node, std::size_t rank, const Cursor& cursor,
                                  Ps end) {
  NodeSpans* spans = pricer_.member(at(node.member)).spans();
  if (spans == nullptr) return;
  const bool beside = runs_beside_steps(node);
  const bool sends = node.stream % kNumDeviceStreams == static_cast<int>(DeviceStream::kSend);
  const bool exchanges = flows_ && node.op >= 0 && flows_->carries(node.op);
  if (!beside && !follows_others(node) && !sends && !exchanges) return;
  const bool by_rank = beside && !devices_.empty();
  spans->add(cursor.number, timer_.graphs().whole, node,
             by_rank ? static_cast<std::int32_t>(rank) : kAllRanks, cursor.began, end);
}

void ContendedExecutor::note_layer(const Step& step, std::int64_t number, std::size_t node,
                                   Ps now) {
  const std::int32_t layer = step.order->layer_of[node];
  if (layer < 0) return;
  const std::size_t member = at(step.order->graph->nodes[node].member);
  Ps end = 0;
  for (const std::int32_t one : step.order->layers[member].at(layer)) {
    if (step.end[at(one)] == kNever) return;
    end = std::max(end, step.end[at(one)]);
  }
  const auto& open = open_[member];
  const auto is_step = [number](const OpenStep& one) { return one.number == number; };
  const auto behind = std::ranges::find_if(open, is_step) - open.begin();
  sink_->attended(member, static_cast<std::int32_t>(behind), layer, end, now);
}

void ContendedExecutor::release_after(std::int64_t number, Ps end) {
  for (Step& later : steps_) {
    if (later.after != number) continue;
    later.start.at = std::max(later.start.at, end);
    later.after = -1;
  }
}

// The rank is through with its present node.
void ContendedExecutor::pass(std::size_t stream, std::size_t rank, Ps end, Ps now) {
  Cursor& cursor = cursors_[stream][rank];
  Step& step = *cursor.step;
  const std::size_t node = at(step.order->by_stream[stream][cursor.next]);
  note_span(step.order->graph->nodes[node], rank, cursor, end);
  cursor.free = end;
  ++cursor.next;
  step.reached[node] = std::max(step.reached[node], end);
  if (--step.left[node] > 0) return;
  step.end[node] = step.reached[node];
  --step.open;
  note_layer(step, cursor.number, node, now);
  const std::int32_t member = step.order->member_of[node];
  if (member < 0) return;
  const StepGraph::Member& ended = step.order->graph->members[at(member)];
  const Ps start = step.end[at(ended.begin)];
  const Ps launched = ended.launched < 0 ? start : step.end[at(ended.launched)];
  cursor.free = std::max(end, start + 1);
  const StepTimes times =
      pricer_.close(at(member), open_[at(member)].front(), start, cursor.free, launched);
  open_[at(member)].pop_front();
  release_after(cursor.number, cursor.free);
  sink_->timed(at(member), times, now);
}

void ContendedExecutor::advance(Ps now) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const std::size_t stream : streams_)
      for (std::size_t rank = 0; rank < cursors_[stream].size(); ++rank)
        while (try_next(stream, rank, now)) moved = true;
  }
  forget();
}

void ContendedExecutor::forget() {
  while (steps_.size() > 1 && steps_.front().open == 0) {
    const Step& step = steps_.front();
    for (std::size_t slot = 0; slot < slots_.size(); ++slot)
      if (const std::int32_t node = step.order->kept_by[slot]; node >= 0)
        slots_[slot] = step.end[at(node)];
    for (auto& cursors : cursors_) {
      for (Cursor& cursor : cursors) {
        if (cursor.number > first_) continue;
        cursor.number = first_ + 1;
        cursor.step = &step_at(cursor.number);
        cursor.next = 0;
      }
    }
    steps_.pop_front();
    ++first_;
  }
}

}  // namespace llmsim
