// Events of the engine, their documented order, and the queue that holds them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/events/time_buckets.h"
#include "model/base/types.h"

namespace astra_sim::engine {

using model::Ps;

// Inside one delta cycle of one time, events run in this order: what ended, what arrived, what
// passes on, what begins.
enum class EventKind : std::uint8_t { kNodeEnd, kArrival, kHop, kSubmission };

// `order` sorts a batch: (kind, entity); events of one entity keep the order in which it made them,
// which is what a counter of its own would say. No global sequence number: that would depend on how
// a step is evaluated.
struct Event {
  std::uint64_t order;
  std::uint64_t token;  // what it is about: see Token for arrivals and ends, a parcel for hops, a
                        // run for submissions
};

constexpr std::uint64_t order_of(EventKind kind, std::uint64_t entity) {
  return (static_cast<std::uint64_t>(kind) << 56) | entity;
}
constexpr EventKind kind_of(const Event& event) {
  return static_cast<EventKind>(event.order >> 56);
}

// Stable; nearly sorted batches, which lock-step traffic makes, take linear time.
void sort_batch(std::vector<Event>& batch);

class EventQueue {
 public:
  // Throws OutOfRange beyond the horizon.
  void push(Ps time, EventKind kind, std::uint64_t entity, std::uint64_t token) {
    if (time > model::kHorizon) beyond_horizon(time);
    buckets_.push(time, {order_of(kind, entity), token});
  }
  bool empty() const { return buckets_.empty(); }
  Ps next_time() const { return buckets_.next_time(); }
  std::vector<Event>& pop() {
    std::vector<Event>& batch = buckets_.pop();
    if (batch.size() > 1) sort_batch(batch);
    return batch;
  }

  template <class Test>
  void remove_if(const Test& unwanted) {
    buckets_.remove_if(unwanted);
  }

 private:
  [[noreturn]] static void beyond_horizon(Ps time);
  TimeBuckets<Event> buckets_;
};

// Who a message or an end belongs to: a run (a graph in flight), and a node or a rank slot of it;
// or a transfer without a graph, or a channel of a memory tier (then `run` is kNoRun).
enum class Owner : std::uint8_t {
  kRankFirstPhase,
  kRankSecondPhase,
  kMessage,
  kNode,
  kScheduled,
  kTransfer,
  kChannel,
  kPhase
};
inline constexpr std::uint32_t kNoRun = 0x0fffffffU;

struct Token {
  Owner owner;
  std::uint32_t run;
  std::uint32_t index;

  constexpr std::uint64_t pack() const {
    return (static_cast<std::uint64_t>(owner) << 60) | (static_cast<std::uint64_t>(run) << 32) |
           index;
  }
  static constexpr Token unpack(std::uint64_t packed) {
    return {static_cast<Owner>(packed >> 60),
            static_cast<std::uint32_t>(packed >> 32) & 0x0fffffffU,
            static_cast<std::uint32_t>(packed)};
  }
};

// The tokens of one run, or of one transfer.
struct TokenSet {
  std::uint64_t mask;
  std::uint64_t value;

  static constexpr TokenSet of_run(std::uint32_t run) {
    return {static_cast<std::uint64_t>(kNoRun) << 32, static_cast<std::uint64_t>(run) << 32};
  }
  static constexpr TokenSet of_transfer(std::uint32_t index) {
    return {~std::uint64_t{0}, Token{Owner::kTransfer, kNoRun, index}.pack()};
  }
  constexpr bool contains(std::uint64_t token) const { return (token & mask) == value; }
};

}  // namespace astra_sim::engine
