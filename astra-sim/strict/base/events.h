// What can happen under strict rules.
#pragma once

#include <cstdint>
#include <vector>

namespace astra_sim::strict {

using Ns = std::int64_t;
inline constexpr std::uint32_t kNone = 0xffffffff;

enum class EventKind : std::uint8_t {
  kArrival,        // a: member, b: channel: a message of a collective is there
  kReceivePosted,  // a: member, b: channel: it was there before its receive was posted
  kControl,        // a: member, b: channel: a rendezvous message reached the sender
  kControlReady,   // a: channel: it was there before the sender wanted to send
  kHop,            // a: message: it came to the end of a link that is not its last
  kLinkFree,       // a: link
  kPlainArrival,   // a: pair, b: sending node
  kPlainPosted,    // a: receiving node: its message was there before
  kPlainControl,   // a: pair, b: receiving node: a rendezvous message reached the sender
  kPlainReady,     // a: pair, b: sending node: it was there before the sender wanted to send
  // From here on what an NPU schedules for itself.
  kCredit,      // a: member, b: how many
  kReduce,      // a: member, b: packet: the endpoint delay is over, the reduction begins
  kTree,        // a: member, b: TreeStep
  kTreeReduce,  // a: member, b: TreeStep after the reduction
  kNodeDone,    // a: node
  kCustomDone,  // a: node of a custom collective
  kMemoryFree,  // a: memory server
};

// Kind, NPU and `a` are one word: as fields of their own they would be written one by one and then
// copied together, for which a processor waits.
struct [[gnu::packed, gnu::aligned(4)]] Event {
  Event() = default;
  Event(EventKind what, std::uint32_t first, std::uint32_t second = 0)
      : head(static_cast<std::uint64_t>(first) << 32 | static_cast<std::uint64_t>(what)),
        b(second) {}

  EventKind kind() const { return static_cast<EventKind>(head & 0xff); }
  std::uint32_t npu() const {
    return static_cast<std::uint32_t>(head) >> 8;
  }  // of_one_npu(): whose
  std::uint32_t a() const { return static_cast<std::uint32_t>(head >> 32); }
  bool of_one_npu() const { return kind() >= EventKind::kCredit; }
  // Once; needs an NPU below 2^24.
  void set_npu(std::uint32_t npu) { head |= static_cast<std::uint64_t>(npu) << 8; }

  std::uint64_t head;
  std::uint32_t b;
};
static_assert(sizeof(Event) == 12);

// First and last event of a list in the pool.
struct EventList {
  std::uint32_t head = kNone;
  std::uint32_t tail = kNone;
};

// Events in lists. The freed come back first, so that few places of the pool are in use.
class EventPool {
 public:
  void append(EventList& list, Event event) {
    if (free_ == kNone) grow();
    const std::uint32_t at = free_;
    Link* const links = links_.data();
    free_ = links[at].next;
    links[at] = {event, kNone};
    if (list.head == kNone) {
      list.head = at;
    } else {
      links[list.tail].next = at;
    }
    list.tail = at;
  }

  // Needs a list that is not empty.
  Event take(EventList& list) {
    Link& link = links_[list.head];
    const std::uint32_t at = list.head;
    list.head = link.next;
    link.next = free_;
    free_ = at;
    return link.event;
  }

 private:
  struct Link {
    Event event;
    std::uint32_t next;
  };
  // Apart, so that the common path of append() stays short.
  [[gnu::noinline]] void grow() {
    const auto first = static_cast<std::uint32_t>(links_.size());
    const std::uint32_t more = first == 0 ? 256 : first / 2;
    links_.resize(first + more);
    for (std::uint32_t at = first + more; at-- > first;) {
      links_[at].next = free_;
      free_ = at;
    }
  }

  std::vector<Link> links_;
  std::uint32_t free_ = kNone;
};

}  // namespace astra_sim::strict
