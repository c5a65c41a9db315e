// The engine's loop: submissions, the clock, and what happens when a node starts and ends.
#include "engine/loop/engine.h"

#include <algorithm>
#include <string>
#include <utility>

namespace astra_sim::engine {

using model::InvalidGraph;
using model::kNumStreams;
using model::NodeIndex;
using model::NodeKind;
using model::Stream;

std::unique_ptr<Network> Engine::network_of(const EngineOptions& options) {
  const auto more = tiers_ == nullptr ? std::span<const model::Link>{} : tiers_->links();
  std::unique_ptr<Network> network =
      options.times != nullptr
          ? make_timed(options.times, queue_, options.endpoint_delay_ps,
                       topology_->links().size() + more.size())
          : make_network(options.network, topology_, queue_, options.endpoint_delay_ps,
                         options.quantum, more, routes_, options.incast);
  return options.sent == nullptr ? std::move(network)
                                 : make_recording(std::move(network), *options.sent);
}

Engine::Engine(std::shared_ptr<const Topology> topology, EngineOptions options)
    : topology_(std::move(topology)),
      tiers_(std::move(options.memory)),
      network_(network_of(options)),
      memory_(tiers_.get(), options.network, *network_, queue_, routes_),
      collectives_(*network_, queue_, runs_),
      settles_(options.network == NetworkKind::kFairShare),
      streams_(static_cast<std::size_t>(topology_->num_devices()) * kNumStreams),
      devices_(topology_->num_devices()) {
  poll_ = std::move(options.poll);
  if (options.endpoint_delay_ps < 0 || options.endpoint_delay_ps > model::kMaxSpan) {
    throw model::InvalidTopology("the endpoint delay is " +
                                 std::to_string(options.endpoint_delay_ps) +
                                 " ps: it has to be between 0 and 2^60");
  }
  if (options.quantum.rate_ppm < 0 || options.quantum.rate_ppm > 1'000'000) {
    throw model::InvalidTopology("the rate quantum is " + std::to_string(options.quantum.rate_ppm) +
                                 " millionths: it has to be between 0 (exact) and 1,000,000");
  }
  if (tiers_ != nullptr && &tiers_->topology() != topology_.get()) {
    throw model::InvalidTopology(
        "the memory tiers were made for another topology than the engine's");
  }
  network_->tell(this);
}

Engine::~Engine() = default;

GraphId Engine::submit(std::shared_ptr<const ExecutionGraph> graph, Ps at_ps,
                       std::span<const std::int64_t> amounts) {
  check_submission(*graph, at_ps, amounts);
  if (free_runs_.empty()) {
    free_runs_.push_back(static_cast<std::uint32_t>(runs_.size()));
    runs_.push_back(std::make_unique<Run>());
  }
  const std::uint32_t index = free_runs_.back();
  free_runs_.pop_back();
  Run& run = *runs_[index];
  run.index = index;
  run.id = next_id_++;
  run.reset(std::move(graph), amounts);
  run_index_.emplace(run.id, index);
  ++in_flight_;
  queue_.push(at_ps, EventKind::kSubmission, run.id, Token{Owner::kNode, index, 0}.pack());
  return run.id;
}

GraphId Engine::transfer(DeviceId from, DeviceId to, Bytes bytes, Ps at_ps) {
  check_transfer(from, to, bytes, at_ps);
  return add_transfer({0, from, to, bytes, model::kNone, false}, at_ps);
}

GraphId Engine::access(model::TierId tier, DeviceId device, Bytes bytes, bool store, Ps at_ps) {
  check_access(tier, device, bytes, at_ps);
  return add_transfer({0, device, device, bytes, tier, store}, at_ps);
}

GraphId Engine::add_transfer(const Transfer& item, Ps at_ps) {
  if (free_transfers_.empty()) {
    free_transfers_.push_back(static_cast<std::uint32_t>(transfers_.size()));
    transfers_.emplace_back();
  }
  const std::uint32_t index = free_transfers_.back();
  free_transfers_.pop_back();
  transfers_[index] = item;
  transfers_[index].id = next_id_++;
  transfer_index_.emplace(transfers_[index].id, index);
  ++in_flight_;
  queue_.push(at_ps, EventKind::kSubmission, transfers_[index].id,
              Token{Owner::kTransfer, kNoRun, index}.pack());
  return transfers_[index].id;
}

void Engine::begin_transfer(std::uint32_t index) {
  const Transfer& item = transfers_[index];
  const std::uint64_t token = Token{Owner::kTransfer, kNoRun, index}.pack();
  if (item.tier != model::kNone) {
    memory_.start({item.tier, item.from, item.bytes, item.store, token}, now_);
  } else {
    network_->send(now_, {item.from, item.to, item.bytes, item.bytes, token});
  }
}

void Engine::left(std::uint64_t sender, Ps now) {
  const Token token = Token::unpack(sender);
  if (token.owner == Owner::kChannel) return memory_.left(token.index, now);
  collectives_.left(sender, now);
}

void Engine::end_transfer(std::uint32_t index) {
  completed_.push_back({transfers_[index].id, now_});
  drop_transfer(index);
}

void Engine::drop_transfer(std::uint32_t index) {
  transfer_index_.erase(transfers_[index].id);
  free_transfers_.push_back(index);
  --in_flight_;
}

std::optional<Completion> Engine::advance() {
  while (next_completed_ == completed_.size()) {
    if (step()) continue;
    if (in_flight_ > 0) report_stall();
    return std::nullopt;
  }
  return completed_[next_completed_++];
}

std::optional<Completion> Engine::advance_until(Ps limit_ps) {
  while (next_completed_ == completed_.size()) {
    if (queue_.empty() || queue_.next_time() > limit_ps) return std::nullopt;
    step();
  }
  return completed_[next_completed_++];
}

Ps Engine::run() {
  Ps last = now_;
  while (const auto completion = advance()) last = std::max(last, completion->end_ps);
  return last;
}

std::optional<Ps> Engine::next_event_ps() const {
  if (next_completed_ < completed_.size()) return completed_[next_completed_].end_ps;
  if (queue_.empty()) return std::nullopt;
  return queue_.next_time();
}

// One delta cycle of one time; false when nothing is pending.
bool Engine::step() {
  if (queue_.empty()) return false;
  if (poll_ && (++steps_ & 15U) == 0) poll_();
  completed_.clear();
  next_completed_ = 0;
  now_ = queue_.next_time();
  const std::vector<Event>& batch = queue_.pop();
  num_events_ += batch.size();
  for (const Event& event : batch) dispatch(event);
  if (settles_ && (queue_.empty() || queue_.next_time() > now_)) network_->settle(now_);
  std::sort(completed_.begin(), completed_.end(),
            [](const Completion& a, const Completion& b) { return a.graph < b.graph; });
  return true;
}

void Engine::dispatch(const Event& event) {
  if (kind_of(event) == EventKind::kHop) return network_->pass_on(now_, event.token);
  const Token token = Token::unpack(event.token);
  if (token.owner == Owner::kTransfer) {
    return kind_of(event) == EventKind::kSubmission ? begin_transfer(token.index)
                                                    : end_transfer(token.index);
  }
  if (token.owner == Owner::kChannel) return memory_.left(token.index, now_);
  Run& run = *runs_[token.run];
  if (kind_of(event) == EventKind::kSubmission) return activate(run);
  switch (token.owner) {
    case Owner::kRankFirstPhase:
    case Owner::kRankSecondPhase: {
      const int phase = token.owner == Owner::kRankSecondPhase ? 1 : 0;
      if (collectives_.receive(run, token.index, phase, now_))
        finish(run, run.graph->rank_slots[token.index].node);
      return;
    }
    case Owner::kMessage:
      return message_arrived(run, token.index);
    case Owner::kScheduled: {
      std::uint32_t slot = 0;
      if (collectives_.receive_scheduled(run, token.index, now_, slot))
        finish(run, run.graph->rank_slots[slot].node);
      return;
    }
    case Owner::kPhase: {
      std::uint32_t slot = 0;
      if (collectives_.receive_phase(run, token.index, now_, slot))
        finish(run, run.graph->rank_slots[slot].node);
      return;
    }
    case Owner::kNode:
      return finish(run, token.index);
    case Owner::kTransfer:
    case Owner::kChannel:
      return;  // above
  }
}

void Engine::activate(Run& run) {
  const ExecutionGraph& graph = *run.graph;
  if (run.nodes_left == 0) return complete(run);
  for (std::uint32_t lane = 0; lane < graph.lanes.size(); ++lane) {
    auto& queue = streams_[static_cast<std::size_t>(graph.lanes[lane].device) * kNumStreams +
                           static_cast<std::size_t>(graph.lanes[lane].stream)];
    queue.push_back({run.index, lane});
    if (queue.size() == 1) serve_head(queue);
  }
  for (const NodeIndex node : graph.free_roots) start(run, node);
}

void Engine::serve_head(const StreamQueue& queue) {
  Run& run = *runs_[queue.front().run];
  run.lanes[queue.front().lane].at_head = true;
  start_if_ready(run, queue.front().lane);
}

void Engine::start_if_ready(Run& run, std::uint32_t index) {
  LaneState& lane = run.lanes[index];
  if (!lane.at_head || lane.busy) return;
  const model::Lane& place = run.graph->lanes[index];
  if (lane.cursor == place.count) return;
  const NodeIndex node = run.take(index);
  if (node == model::kNone) return;
  lane.busy = true;
  start(run, node);
}

// Never ends a node in place: that takes an event, at the earliest in the next delta.
void Engine::start(Run& run, NodeIndex node) {
  const ExecutionGraph& graph = *run.graph;
  run.start_ps[node] = now_;
  const std::uint64_t entity = (static_cast<std::uint64_t>(graph.device[node]) << 8) |
                               static_cast<std::uint64_t>(graph.stream[node]);
  switch (graph.kind[node]) {
    case NodeKind::kCompute:
      queue_.push(now_ + run.amount[node], EventKind::kNodeEnd, entity,
                  Token{Owner::kNode, run.index, node}.pack());
      return;
    case NodeKind::kCollective:
      return collectives_.start(run, graph.slot[node], now_);
    case NodeKind::kTransfer:
    case NodeKind::kSend:
      network_->send(now_, {graph.device[node], graph.peer[node], run.amount[node],
                            run.amount[node], Token{Owner::kMessage, run.index, node}.pack()});
      return;
    case NodeKind::kRecv:
      if (run.arrived[node] != 0) {
        queue_.push(now_, EventKind::kNodeEnd, entity, Token{Owner::kNode, run.index, node}.pack());
      }
      return;
    case NodeKind::kMemoryLoad:
    case NodeKind::kMemoryStore:
      return memory_.start({graph.peer[node], graph.device[node], run.amount[node],
                            graph.kind[node] == NodeKind::kMemoryStore,
                            Token{Owner::kMessage, run.index, node}.pack()},
                           now_);
  }
}

void Engine::message_arrived(Run& run, NodeIndex send) {
  if (run.graph->kind[send] == NodeKind::kSend) {
    const NodeIndex recv = run.graph->slot[send];
    run.arrived[recv] = 1;
    if (run.start_ps[recv] >= 0) finish(run, recv);
  }
  finish(run, send);
}

void Engine::finish(Run& run, NodeIndex node) {
  run.end_ps[node] = now_;
  account(run, node);
  for (const NodeIndex child : run.graph->children(node)) {
    if (--run.open_parents[child] != 0) continue;
    if (run.graph->lane[child] == model::kNone) {
      start(run, child);
    } else {
      if (run.graph->by_readiness) run.make_ready(child);
      start_if_ready(run, run.graph->lane[child]);
    }
  }
  if (run.graph->lane[node] != model::kNone) advance_lane(run, run.graph->lane[node]);
  if (--run.nodes_left == 0) complete(run);
}

void Engine::advance_lane(Run& run, std::uint32_t index) {
  LaneState& lane = run.lanes[index];
  lane.busy = false;
  const model::Lane& place = run.graph->lanes[index];
  if (++lane.cursor < place.count) return start_if_ready(run, index);
  auto& queue = streams_[static_cast<std::size_t>(place.device) * kNumStreams +
                         static_cast<std::size_t>(place.stream)];
  queue.pop_front();
  if (!queue.empty()) serve_head(queue);
}

void Engine::account(const Run& run, NodeIndex node) {
  model::DeviceCounters& device = devices_[run.graph->device[node]];
  const Ps span = now_ - run.start_ps[node];
  model::add_up_to_end(device.busy_ps[static_cast<std::size_t>(run.graph->stream[node])], span);
  model::add_up_to_end(device.class_ps[run.graph->power_class[node]], span);
}

void Engine::complete(Run& run) {
  run.finished = true;
  --in_flight_;
  completed_.push_back({run.id, now_});
}

}  // namespace astra_sim::engine
