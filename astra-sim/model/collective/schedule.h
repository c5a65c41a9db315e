// Schedule: the messages of a collective and what each of them waits for, for any group and size.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/base/types.h"
#include "model/collective/collective.h"

namespace astra_sim::model {

// One message between endpoints: ranks 0 .. n - 1, then switches. Its size is `units` of the
// schedule's `denominator` parts of the call's bytes, beginning with part `first`; past the end of
// its `lap` (they divide the vector) it goes on at the lap's beginning.
struct Message {
  std::uint32_t from;
  std::uint32_t to;
  std::uint32_t phase;
  std::uint32_t next;  // the next message of its channel, or kNone
  LinkId link;         // crosses only this link, or kNone
  std::int64_t first;
  std::int64_t units;
  std::int64_t lap;
};

// One message of a custom schedule, between ranks; `after` names earlier or later messages of the
// list, which have to arrive at `from` before it leaves.
struct CustomMessage {
  std::uint32_t from;
  std::uint32_t to;
  std::int64_t first;
  std::int64_t units;
  std::vector<std::uint32_t> after;
};

// Items are the messages, and behind them gates: what opens when several messages have arrived. An
// item is released when all that it waits for has happened: arrivals, gates, the departure of the
// message before it on its channel, and the start of its rank.
//
// Messages of one channel leave in order: a channel is an ordered pair of endpoints, and a phase
// when the vector passes in pieces (else pieces would wait for later phases of earlier ones).
// Immutable.
class Schedule {
 public:
  // `group`: the devices, in rank order (for in_switch). Throws InvalidTopology when the plan
  // cannot be made.
  static std::shared_ptr<const Schedule> make(const CollectivePlan& plan,
                                              std::span<const DeviceId> group);
  // Messages given one by one, in the order in which they leave on their channels. Throws
  // InvalidTopology naming the message: ends, sizes, waiting for what arrives elsewhere, or for
  // each other in a circle.
  static std::shared_ptr<const Schedule> custom(std::uint32_t num_ranks, std::int64_t denominator,
                                                std::span<const CustomMessage> messages);
  // The plan's own, or one made for it.
  static std::shared_ptr<const Schedule> of(const CollectivePlan& plan,
                                            std::span<const DeviceId> group) {
    return plan.schedule != nullptr ? plan.schedule : make(plan, group);
  }
  // Only the checks of `make`, and that a given schedule fits.
  static void check(const CollectivePlan& plan, std::size_t num_ranks);

  std::uint32_t num_messages() const { return number_ * pieces_; }
  Message message(std::uint32_t index) const {
    if (pieces_ == 1) return messages_[index];
    const std::uint32_t piece = index / number_, before = piece * number_, place = index - before;
    Message message = messages_[place];
    message.first += piece * piece_parts_;
    // The last of a channel names the first in its place: of the next piece.
    const bool last = message.next <= place;
    message.next =
        last && piece + 1 == pieces_ ? kNone : message.next + before + (last ? number_ : 0);
    return message;
  }
  std::vector<Message> messages() const;  // a copy
  std::span<const std::uint32_t> waits() const {
    return waits_;
  }  // by item: how many things it waits for
  std::span<const std::uint32_t> after(
      std::uint32_t item) const {  // items that wait for its arrival, or opening
    return {after_.data() + after_begin_[item], after_.data() + after_begin_[item + 1]};
  }
  std::span<const std::uint32_t> of_rank(std::uint32_t rank) const {
    return {sent_.data() + sent_begin_[rank], sent_.data() + sent_begin_[rank + 1]};
  }
  std::uint32_t num_received(std::uint32_t rank) const { return received_[rank]; }
  std::uint32_t num_ranks() const { return static_cast<std::uint32_t>(received_.size()); }
  VertexId vertex(std::uint32_t endpoint) const {
    return switches_[endpoint - num_ranks()];
  }  // of a switch
  bool in_pieces() const { return pieces_ > 1; }
  // Bytes that the rank that sends most sends, rounded up.
  Bytes most_sent(Bytes bytes) const;

  Bytes timing_bytes(const Message& message,
                     Bytes bytes) const;  // ceil(bytes * units / denominator)
  Bytes exact_bytes(const Message& message, Bytes bytes) const;

 private:
  friend class ScheduleBuilder;
  Schedule() = default;
  void set_messages(std::vector<Message> messages, std::uint32_t pieces);
  void connect(std::uint32_t num_ranks,
               std::span<const std::pair<std::uint32_t, std::uint32_t>> edges);
  void check_acyclic() const;

  // Of the first piece; the others are like it, each `piece_parts_` further on in the vector.
  std::vector<Message> messages_;
  std::uint32_t number_ = 0;
  std::uint32_t pieces_ = 1;
  std::int64_t piece_parts_ = 0;
  std::vector<std::uint32_t> waits_;
  std::vector<std::uint32_t> after_begin_;
  std::vector<std::uint32_t> after_;
  std::vector<std::uint32_t> sent_begin_;
  std::vector<std::uint32_t> sent_;
  std::vector<std::uint32_t> received_;
  std::vector<VertexId> switches_;
  std::int64_t denominator_ = 1;
};

// The ranks of one dimension that differ in it only, at work: their numbers, the part of the vector
// that each of them works on, and their root's position.
struct Line {
  std::vector<std::uint32_t> ranks;
  std::vector<std::int64_t> first;  // by position
  std::int64_t units;               // reduce-scatter, all-to-all: before; all-gather: of one rank
  std::uint32_t root;
  std::uint32_t window;
  std::int64_t lap;
  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks.size()); }
};
using Ids = std::vector<std::uint32_t>;  // of messages, in the order in which they were added

constexpr bool is_rooted(CollectiveKind kind) {
  using enum CollectiveKind;
  return kind == kBroadcast || kind == kReduce || kind == kGather || kind == kScatter;
}

// Lays messages line by line, phase by phase, piece by piece, by the pattern of each algorithm.
// What a rank sends first in a phase waits for all that it received in the phases before.
class ScheduleBuilder {
 public:
  ScheduleBuilder(const CollectivePlan& plan, std::span<const DeviceId> group);
  std::shared_ptr<const Schedule> build();

  // For patterns. A message between two positions of a line (a switch stands behind them) that
  // leaves when those of `after` have arrived; without any, when all that its sender received in
  // the phases before has. `own`: it waits for both. Returns its number.
  std::uint32_t add(const Line& line, std::uint32_t from, std::uint32_t to, std::int64_t first,
                    std::int64_t units, std::span<const std::uint32_t> after, bool own = false,
                    LinkId link = kNone);
  const Topology& topology() const { return *plan_.shape.topology; }
  DeviceId device(const Line& line, std::uint32_t at) const { return group_[line.ranks[at]]; }
  // The position that stands for a switch in the messages of a line.
  std::uint32_t add_switch(const Line& line, VertexId vertex);

 private:
  void piece();
  void all_pairs();
  void phase(std::uint32_t dim, CollectiveKind kind);
  void end_phase();
  void lay(const Line& line, CollectiveKind kind, Algorithm algorithm);
  std::uint32_t gate(std::uint32_t rank);
  void check_number(std::size_t messages) const;
  void link_channels();
  void repeat(std::uint32_t pieces);
  void finish();
  std::uint32_t coordinate(std::uint32_t rank, std::uint32_t dim) const {
    return rank / stride_[dim] % dims_[dim];
  }

  const CollectivePlan& plan_;
  std::span<const DeviceId> group_;
  std::uint32_t num_ranks_;
  std::vector<std::uint32_t> dims_;
  std::vector<std::uint32_t> stride_;
  std::vector<Algorithm> algorithms_;
  std::vector<std::uint32_t> windows_;
  std::shared_ptr<Schedule> out_;
  std::vector<Message> messages_;
  std::vector<std::int64_t> first_;  // by rank: its part of the vector
  std::int64_t units_ = 0;
  std::uint32_t phase_ = 0;
  std::vector<Ids> ready_;     // by rank: arrivals of the phase before, and the gate before it
  std::vector<Ids> incoming_;  // by endpoint: of this phase
  std::vector<std::pair<std::uint32_t, std::uint32_t>>
      edges_;                    // (item that happens, item that waits for it)
  std::uint32_t num_gates_ = 0;  // numbered from kFirstGate until `finish`
  std::map<std::vector<std::uint32_t>, std::uint32_t> agents_;  // by line: its switch
  static constexpr std::uint32_t kFirstGate = 0x80000000U;
};

}  // namespace astra_sim::model
