// Collectives under upstream's rules: chunks pass through queues and phases, and in each phase an
// endpoint automaton on every member sends and receives. Nothing here knows of graphs: the end of a
// collective is reported to a sink.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "strict/base/clock.h"
#include "strict/collectives/double_tree.h"
#include "strict/collectives/plan.h"
#include "strict/network/network.h"

namespace astra_sim::strict {

// Told when something that a node waits for has ended.
struct NodeSink {
  virtual void node_done(std::uint32_t node) = 0;

 protected:
  ~NodeSink() = default;
};

// Members of one collective disagree on what it is; upstream would wait for ever or mix them up.
struct CollectiveMismatch {
  std::uint32_t first_node, second_node;
  std::int64_t first_bytes, second_bytes;  // per chunk and phase
  const char* first_kind;
  const char* second_kind;
};

struct EndpointCosts {
  Ns delay_ns = 10;
  double memory_bytes_per_s = 0;  // 0: reductions are free
  bool rendezvous = false;
};

class Collectives {
 public:
  Collectives(Clock& clock, Network& network, Plans& plans, NodeSink& sink,
              const config::SystemConfig& system, const EndpointCosts& costs, std::uint32_t npus,
              std::uint32_t queues);

  // What one NPU does for one collective node: chunks of `chunk_bytes` that go through the plan.
  struct Request {
    std::uint32_t npu;
    std::uint32_t node;
    std::uint32_t group;
    std::uint32_t chunks;
    std::int64_t chunk_bytes;
    const Plan* plan;
  };
  // Throws CollectiveMismatch.
  void start(const Request& request);
  // A collective of the NPU that takes a number of the NPU's streams and is carried out elsewhere.
  void count_stream(std::uint32_t npu) { ++begun_[npu]; }
  // Of collectives of all NPUs that have not ended: their nodes, and the numbers of their first
  // streams. Members with different numbers wait for ever.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> waiting_streams() const;

  void arrival(std::uint32_t member, std::uint32_t channel) {
    if (channels_[channel]-- > 0) received(member);
  }
  void receive_posted(std::uint32_t member) { received(member); }
  void control(std::uint32_t member, std::uint32_t channel);
  void control_ready(std::uint32_t channel);
  void credit(std::uint32_t member, std::uint32_t count);
  void reduce(std::uint32_t member, std::uint32_t packet);
  void tree(std::uint32_t member, TreeStep step);
  void tree_reduce(std::uint32_t member, TreeStep step);

 private:
  // One phase of one chunk on its ring: what the members share.
  struct Instance {
    std::uint64_t key;
    config::Collective operation;
    config::AlgorithmChoice algorithm;
    bool smaller_tree;  // the double tree's choice: root is the first rank
    bool pauses;        // between the halves of a direct all-reduce
    std::int64_t chunk_bytes;
    std::int64_t message_bytes;  // ring and direct
    Ns delay_ns;
    Ns reduction_ns;  // ring and direct
    std::uint32_t ring;
    std::uint32_t size;
    std::uint32_t levels;  // log2(size) for halving-doubling
    std::int32_t parallel;
    std::int32_t repeat;
    std::uint32_t first_member;
    std::uint32_t first_channel;
    std::uint32_t finished;
    std::uint32_t first_node;  // who made it, for messages
  };
  struct Member {
    std::uint32_t instance;
    std::uint32_t npu;
    std::uint32_t stream;
    std::uint32_t position;
    std::int32_t sends_left;
    std::int32_t credits;
    std::int32_t packets;     // inserted, not sent
    std::int32_t received;    // messages
    std::int32_t first_run;   // of the cycle of insertions: those that only pay the delay ...
    std::int32_t second_run;  // ... and those that may also pay the reduction
    std::uint32_t inserted;   // index of the next packet to be inserted
    std::uint32_t sent;       // index of the next packet to be sent
    std::uint32_t to;         // position of the next receiver and sender (ring, direct)
    std::uint32_t from;
    bool toggle;
    bool backwards;  // against the order of the ring
  };
  struct Stream {
    std::uint32_t collective;
    std::uint32_t phase;
    std::uint64_t tag;
    std::int64_t bytes;
    std::uint32_t next;  // in the waiting list of its queue
    std::uint32_t choices;
  };
  struct Choice {
    std::uint32_t queue;
    bool backwards;
    bool smaller_tree;
  };
  struct Running {
    Request request;
    std::uint32_t left;
    std::uint64_t first_tag;
  };
  struct Queue {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
    std::uint32_t running = 0;
  };
  struct RoundRobin {
    std::uint32_t next[3] = {0, 0, 0};
    std::uint32_t trees = 0;
  };
  struct Live {
    std::uint64_t key;
    std::uint32_t instance;
  };
  struct PendingSend {
    std::uint32_t from, to;
    std::int64_t bytes;
  };
  struct Handshake {
    std::uint32_t arrived = 0;         // control messages that found nobody waiting
    std::deque<PendingSend> waiting;   // for a control message
    std::deque<PendingSend> released;  // on their way, their events are pending
  };

  // streams.cpp: queues and phases
  Choice choose(std::uint32_t npu, const Phase& phase);
  Queue& queue(std::uint32_t npu, std::uint32_t at) { return queues_[npu * queues_per_npu_ + at]; }
  void join_queue(std::uint32_t stream);
  void serve_queue(std::uint32_t npu, std::uint32_t at);
  void leave(std::uint32_t stream);
  void begin_phase(std::uint32_t stream);
  std::uint32_t join_instance(std::uint32_t stream);
  std::uint32_t make_instance(const Instance& wanted);
  Instance describe(std::uint32_t stream) const;
  void check_same(const Instance& made, const Instance& wanted, std::uint32_t node) const;
  void finish_phase(std::uint32_t member);

  // automaton.cpp
  void begin_automaton(std::uint32_t member);
  bool insert(Member& member, const Instance& instance);
  void insert_and_wait(std::uint32_t member);
  static bool may_send(const Member& member) {
    return member.packets > 0 && member.credits > 0 && member.sends_left > 0;
  }
  // Needs may_send().
  void send_next(std::uint32_t at, Member& member, const Instance& instance);
  void send_along_ring(std::uint32_t at, const Member& member, const Instance& instance);
  void send_direct(std::uint32_t at, Member& member, const Instance& instance);
  void exchange(std::uint32_t at, const Member& member, const Instance& instance,
                std::uint32_t packet);
  void send_second_half(std::uint32_t at, Member& member, const Instance& instance);
  void received(std::uint32_t member);
  std::int64_t packet_bytes(const Instance& instance, std::uint32_t packet) const;
  std::uint32_t packet_distance(const Instance& instance, std::uint32_t packet) const;
  Ns reduction_ns(std::int64_t bytes) const;

  // double_tree.cpp
  void begin_tree(std::uint32_t member);
  void tree_arrival(std::uint32_t member, std::uint32_t channel);
  TreeNode tree_node(const Member& member) const;
  void tree_send(std::uint32_t member, std::uint32_t position, TreePort port);
  void tree_post(std::uint32_t member, std::uint32_t position, TreePort port);

  // Messages. Needs the receiver's member `to`, and its channel for this sender.
  void send(std::uint32_t from, std::uint32_t to, std::uint32_t channel, std::int64_t bytes) {
    if (costs_.rendezvous) {
      send_after_control(from, to, channel, bytes);
    } else {
      network_.send(members_[from].npu, members_[to].npu, bytes,
                    {EventKind::kArrival, to, channel});
    }
  }
  void post(std::uint32_t member, std::uint32_t from, std::uint32_t channel) {
    if (costs_.rendezvous) {
      send_control(member, from, channel);
    } else {
      post_now(member, channel);
    }
  }
  void post_now(std::uint32_t member, std::uint32_t channel) {
    if (channels_[channel]++ < 0) clock_.global(0, {EventKind::kReceivePosted, member, channel});
  }
  // rendezvous.cpp
  void send_after_control(std::uint32_t from, std::uint32_t to, std::uint32_t channel,
                          std::int64_t bytes);
  void send_control(std::uint32_t member, std::uint32_t from, std::uint32_t channel);
  void transmit(std::uint32_t channel, std::deque<PendingSend>& queue);

  Clock& clock_;
  Network& network_;
  Plans& plans_;
  NodeSink& sink_;
  EndpointCosts costs_;
  std::uint32_t queues_per_dimension_;
  std::uint32_t queues_per_npu_;
  std::uint32_t dimensions_;
  std::uint32_t streams_per_queue_;
  std::uint32_t max_phases_;

  std::vector<Instance> instances_;
  std::vector<Member> members_;
  std::vector<std::int32_t>
      channels_;  // posted receives without a message; below 0: messages without a receive
  std::vector<std::vector<std::uint32_t>>
      free_instances_;  // by size of the ring and number of channels
  std::unordered_map<std::uint64_t, std::uint32_t> free_class_;
  std::vector<std::vector<Live>> live_;  // per ring
  std::vector<Stream> streams_;
  std::vector<std::uint32_t> free_streams_;
  std::vector<Choice> choices_;  // per stream: one per phase
  std::vector<Running> running_;
  std::vector<std::uint32_t> free_running_;
  std::vector<Queue> queues_;
  std::vector<RoundRobin> round_robin_;  // per NPU and dimension
  std::vector<std::unordered_map<std::uint32_t, std::uint32_t>>
      issued_;                        // per NPU: group -> its streams so far
  std::vector<std::uint64_t> begun_;  // per NPU: streams so far, those of groups among them
  std::unordered_map<std::uint32_t, Handshake> handshakes_;  // per channel, rendezvous only
};

}  // namespace astra_sim::strict
