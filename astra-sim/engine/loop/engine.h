// Engine: owns the clock and the links; takes graphs at any time and says when their nodes ran.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/collectives/collectives.h"
#include "engine/loop/stream_queue.h"
#include "engine/memory/memory.h"
#include "engine/network/handover.h"
#include "engine/network/network.h"
#include "engine/run/run.h"
#include "model/base/errors.h"
#include "model/graph/graph.h"
#include "model/graph/results.h"
#include "model/memory/energy.h"
#include "model/topology/topology.h"

namespace astra_sim::engine {

using model::Completion;
using model::ExecutionGraph;
using model::GraphId;

struct EngineOptions {
  NetworkKind network = NetworkKind::kCongestionAware;
  Ps endpoint_delay_ps = 0;                             // added to every message at its receiver
  RateQuantum quantum{};                                // of the fair-share network
  std::shared_ptr<const model::MemorySystem> memory{};  // of this topology; null: no tiers
  // Called between events every so often, so that a long run can be ended by an exception; none:
  // never.
  std::function<void()> poll{};
  Incast incast{};  // of the fair-share network
  // Another simulator's times of all messages, instead of the network's; null: none.
  std::shared_ptr<const MessageTimes> times{};
  std::vector<SentMessage>* sent = nullptr;  // gets every message between devices; null: nobody
};

// How a caller with a clock of its own (a serving loop) uses it: submit graphs and transfers for
// times not before now(); next_event_ps() says until when it may go on by itself; advance_until(t)
// returns the completions up to t one by one, then nothing; what it submits next may be at any time
// from the last event on.
//
// One engine is used by one thread at a time; engines share nothing that changes. After an
// exception out of an advance function the engine's state is undefined but destructible, except
// after Stalled: then it can still be read.
class Engine final : private Departures {
 public:
  // Throws InvalidTopology when the delay is out of range.
  Engine(std::shared_ptr<const Topology> topology, EngineOptions options);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Hands over a graph that starts at `at_ps` (not before the clock). Graphs may be in flight
  // together; a graph object may be submitted many times, also at once. `amounts`, if given,
  // replace the graph's durations and bytes (one per node, copied). Throws InvalidGraph: too many
  // devices, a past time, amounts that do not fit, memory nodes.
  GraphId submit(std::shared_ptr<const ExecutionGraph> graph, Ps at_ps,
                 std::span<const std::int64_t> amounts = {});

  // Sends one message at `at_ps` without a graph: cheap, and reported by the advance functions like
  // a graph, under the number returned. It contends with everything else on its route, takes no
  // stream, and needs no release
  // (`times` does not know it). Throws InvalidGraph (ends, a past time), OutOfRange (bytes).
  GraphId transfer(DeviceId from, DeviceId to, Bytes bytes, Ps at_ps);

  // The same for a load from a memory tier, or a store to it.
  GraphId access(model::TierId tier, DeviceId device, Bytes bytes, bool store, Ps at_ps);
  // Space in the instance of a tier that a device uses: a ledger, accesses do not change it. Throws
  // OutOfMemory, InvalidGraph.
  void reserve(model::TierId tier, DeviceId device, Bytes bytes) {
    memory_.reserve(tier, device, bytes);
  }
  void free(model::TierId tier, DeviceId device, Bytes bytes) { memory_.free(tier, device, bytes); }

  // Runs to the next completion; nothing when no graph is in flight. Throws Stalled when none can
  // complete.
  std::optional<Completion> advance();
  // As advance, but leaves events after `limit_ps` pending (then: nothing, and never Stalled).
  std::optional<Completion> advance_until(Ps limit_ps);
  // Runs all graphs to their ends; returns the last end, or the clock when there was none.
  Ps run();

  // Times of a finished graph; valid until `release`, which lets later graphs reuse its memory.
  // Both throw InvalidGraph for a graph that is unknown or not finished.
  model::NodeTimes times(GraphId graph) const;
  void release(GraphId graph);

  // Drops a graph or a transfer in flight: no further node of it starts, its streams go on to the
  // next graphs now, and it will not be reported. What was running counts as busy until now. Its
  // messages leave a fair-share network at once, and bytes count as far as they got; elsewhere a
  // message that a link has taken is sent to the end of that link. Visits all pending events.
  // Throws InvalidGraph for what is unknown or finished.
  void cancel(GraphId graph);

  Ps now() const { return now_; }
  // No completion comes before this time; nothing when nothing is pending. Costs no event.
  std::optional<Ps> next_event_ps() const;
  // Moves the clock to `at_ps` where nothing happens until then (counters are as of the clock).
  // Throws InvalidGraph for a past time, and when events are pending before `at_ps`.
  void idle_until(Ps at_ps);
  // Graphs and transfers that are not finished.
  std::size_t num_in_flight() const { return in_flight_; }
  std::uint64_t num_events() const { return num_events_; }
  const Topology& topology() const { return *topology_; }
  // Of the topology's links, then those of the memory tiers (MemorySystem::links).
  std::vector<LinkCounters> link_counters() const { return network_->counters(now_); }
  // Of all that has happened up to now().
  model::Energy energy(const model::EnergyRates& rates) const {
    return model::energy_of(devices_, link_counters(), now_, rates);
  }
  FairShareCounters fair_share_counters() const { return network_->fair_share(); }
  std::span<const model::DeviceCounters> device_counters() const { return devices_; }
  std::span<const model::TierCounters> tier_counters() const {
    return memory_.counters();
  }  // by place

 private:
  // A message or an access without a graph.
  struct Transfer {
    GraphId id;
    DeviceId from;
    DeviceId to;
    Bytes bytes;
    model::TierId tier;  // kNone: to a device
    bool store;
  };
  std::unique_ptr<Network> network_of(const EngineOptions& options);
  void left(std::uint64_t sender, Ps now) override;
  GraphId add_transfer(const Transfer& item, Ps at_ps);
  void begin_transfer(std::uint32_t index);
  Run& run_of(GraphId graph) const;
  void check_time(const char* what, Ps at_ps) const;
  void leave_streams(std::uint32_t run, const ExecutionGraph& graph);
  void forget(const TokenSet& which);
  void check_access(model::TierId tier, DeviceId device, Bytes bytes, Ps at_ps) const;
  void check_transfer(DeviceId from, DeviceId to, Bytes bytes, Ps at_ps) const;
  void end_transfer(std::uint32_t index);
  void drop_transfer(std::uint32_t index);
  void check_submission(const ExecutionGraph& graph, Ps at_ps,
                        std::span<const std::int64_t> amounts) const;
  bool step();
  void dispatch(const Event& event);
  void activate(Run& run);
  void serve_head(const StreamQueue& queue);
  void start_if_ready(Run& run, std::uint32_t lane);
  void start(Run& run, model::NodeIndex node);
  void finish(Run& run, model::NodeIndex node);
  void advance_lane(Run& run, std::uint32_t lane);
  void message_arrived(Run& run, model::NodeIndex send);
  void account(const Run& run, model::NodeIndex node);
  void complete(Run& run);
  [[noreturn]] void report_stall() const;

  std::shared_ptr<const Topology> topology_;
  std::shared_ptr<const model::MemorySystem> tiers_;
  EventQueue queue_;
  RouteTable routes_;
  std::unique_ptr<Network> network_;
  Memory memory_;
  Collectives collectives_;
  bool settles_;
  Ps now_ = 0;
  std::vector<std::unique_ptr<Run>> runs_;
  std::vector<std::uint32_t> free_runs_;
  std::unordered_map<GraphId, std::uint32_t> run_index_;  // only looked up, never walked
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> free_transfers_;
  std::unordered_map<GraphId, std::uint32_t> transfer_index_;  // only looked up
  std::vector<StreamQueue> streams_;                           // by device * kNumStreams + stream
  std::vector<model::DeviceCounters> devices_;
  std::vector<Completion>
      completed_;  // in this or an earlier delta, not yet handed out; ascending graph in a delta
  std::size_t next_completed_ = 0;
  std::size_t in_flight_ = 0;
  std::uint64_t num_events_ = 0;
  std::function<void()> poll_;
  std::uint32_t steps_ = 0;
  GraphId next_id_ = 0;
};

}  // namespace astra_sim::engine
