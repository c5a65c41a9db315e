// The endpoint automaton of ring, direct and halving-doubling: packets, credits and their delays.
#include <bit>

#include "strict/collectives/collectives.h"

namespace astra_sim::strict {

using config::Algorithm;
using config::Collective;

// One write and two reads of the local memory.
Ns Collectives::reduction_ns(std::int64_t bytes) const {
  if (costs_.memory_bytes_per_s == 0) return 0;
  return 3 * whole_ns(static_cast<double>(bytes) / costs_.memory_bytes_per_s * 1e9, "a reduction");
}

// Halving-doubling: sizes are halved, the remainder dropped, as often as there are steps in the
// first half, the last time only to be doubled again; on the way back each is twice the one before.
std::int64_t Collectives::packet_bytes(const Instance& instance, std::uint32_t packet) const {
  if (instance.algorithm.algorithm != Algorithm::kHalvingDoubling) return instance.message_bytes;
  const std::uint32_t levels = instance.levels;
  if (instance.operation == Collective::kAllGather) return instance.chunk_bytes << packet;
  if (packet < levels) return instance.chunk_bytes >> (packet + 1);
  return (instance.chunk_bytes >> (levels + 1)) << (packet - levels + 1);
}

// Halving-doubling: as a power of two.
std::uint32_t Collectives::packet_distance(const Instance& instance, std::uint32_t packet) const {
  const std::uint32_t levels = instance.levels;
  if (instance.operation == Collective::kAllGather) return levels - 1 - packet;
  return packet < levels ? packet : 2 * levels - 1 - packet;
}

void Collectives::begin_automaton(std::uint32_t at) {
  Member& member = members_[at];
  const Instance& instance = instances_[member.instance];
  const auto n = static_cast<std::int32_t>(instance.size);
  const bool twice = instance.operation == Collective::kAllReduce;
  if (instance.algorithm.algorithm == Algorithm::kHalvingDoubling) {
    member.sends_left = static_cast<std::int32_t>(instance.levels) * (twice ? 2 : 1);
  } else if (instance.algorithm.algorithm == Algorithm::kRing &&
             instance.operation == Collective::kAllToAll) {
    member.sends_left = n * (n - 1) / 2;
  } else {
    member.sends_left = (n - 1) * (twice ? 2 : 1);
  }
  const std::uint32_t next = member.position + 1 == instance.size ? 0 : member.position + 1;
  const std::uint32_t previous = member.position == 0 ? instance.size - 1 : member.position - 1;
  member.to = member.backwards ? previous : next;
  member.from = member.backwards ? next : previous;
  // The first `parallel` insertions follow each other at once and only pay the delay: one event
  // stands for them.
  for (std::int32_t i = 0; i < instance.parallel; ++i) insert(member, instance);
  clock_.local(member.npu, instance.delay_ns,
               {EventKind::kCredit, at, static_cast<std::uint32_t>(instance.parallel)});
}

// Adds a packet; true where it also pays a reduction.
inline bool Collectives::insert(Member& member, const Instance& instance) {
  if (member.first_run == 0 && member.second_run == 0) {
    member.first_run = instance.parallel;
    member.second_run = instance.repeat;
    member.toggle = !member.toggle;
  }
  ++member.packets;
  ++member.inserted;
  if (member.first_run > 0) {
    --member.first_run;
    return false;
  }
  --member.second_run;
  return instance.operation == Collective::kReduceScatter ||
         (instance.operation == Collective::kAllReduce && member.toggle);
}

void Collectives::insert_and_wait(std::uint32_t at) {
  Member& member = members_[at];
  const Instance& instance = instances_[member.instance];
  const std::uint32_t packet = member.inserted;
  if (insert(member, instance)) {
    clock_.local(member.npu, instance.delay_ns, {EventKind::kReduce, at, packet});
  } else {
    clock_.local(member.npu, instance.delay_ns, {EventKind::kCredit, at, 1});
  }
}

void Collectives::received(std::uint32_t at) {
  if (instances_[members_[at].instance].algorithm.algorithm == Algorithm::kDoubleBinaryTree) {
    tree_arrival(at, 0);
    return;
  }
  ++members_[at].received;
  insert_and_wait(at);
}

void Collectives::reduce(std::uint32_t at, std::uint32_t packet) {
  const Member& member = members_[at];
  const Instance& instance = instances_[member.instance];
  const bool varies = instance.algorithm.algorithm == Algorithm::kHalvingDoubling;
  const Ns span = varies ? reduction_ns(packet_bytes(instance, packet)) : instance.reduction_ns;
  clock_.local(member.npu, span, {EventKind::kCredit, at, 1});
}

void Collectives::credit(std::uint32_t at, std::uint32_t count) {
  Member& member = members_[at];
  const Instance& instance = instances_[member.instance];
  for (; count > 0; --count) {
    ++member.credits;
    if (instance.pauses && member.sends_left < static_cast<std::int32_t>(instance.size)) {
      send_second_half(at, member, instance);
    } else if (may_send(member)) {
      send_next(at, member, instance);
    }
    if (member.sends_left == 0 && member.credits == instance.parallel) {
      finish_phase(at);
      return;
    }
  }
}

// Between the halves of a direct all-reduce nothing is sent until everything of the first half has
// come.
void Collectives::send_second_half(std::uint32_t at, Member& member, const Instance& instance) {
  if (member.received < static_cast<std::int32_t>(instance.size) - 1) return;
  for (std::int32_t i = 0; i < instance.parallel && may_send(member); ++i) {
    send_next(at, member, instance);
  }
}

inline void Collectives::send_next(std::uint32_t at, Member& member, const Instance& instance) {
  --member.packets;
  --member.credits;
  --member.sends_left;
  const std::uint32_t packet = member.sent++;
  switch (instance.algorithm.algorithm) {
    case Algorithm::kRing:
      return send_along_ring(at, member, instance);
    case Algorithm::kDirect:
      return send_direct(at, member, instance);
    default:
      return exchange(at, member, instance, packet);
  }
}

// Two channels a member, for messages along the ring and against it: members may disagree on the
// direction (each has its own round robin of queues), and then they wait for ever, but for two of
// them it is the same.
inline void Collectives::send_along_ring(std::uint32_t at, const Member& member,
                                         const Instance& instance) {
  const std::uint32_t against = member.backwards && instance.size > 2 ? 1 : 0;
  const std::uint32_t first = instance.first_member, base = instance.first_channel + against;
  send(at, first + member.to, base + 2 * member.to, instance.message_bytes);
  post(at, first + member.from, base + 2 * member.position);
}

void Collectives::send_direct(std::uint32_t at, Member& member, const Instance& instance) {
  const std::uint32_t n = instance.size;
  const std::uint32_t first = instance.first_member, base = instance.first_channel;
  const std::uint32_t to = member.to;
  const std::uint32_t from = member.from;
  const auto step = [&](std::uint32_t position, bool up) {
    const std::uint32_t next =
        up ? (position + 1 == n ? 0 : position + 1) : (position == 0 ? n - 1 : position - 1);
    return next;
  };
  const bool up = !member.backwards;
  member.to = step(to, up);
  if (member.to == member.position) member.to = step(member.to, up);
  member.from = step(from, !up);
  if (member.from == member.position) member.from = step(member.from, !up);
  send(at, first + to, base + to * n + member.position, instance.message_bytes);
  post(at, first + from, base + member.position * n + from);
}

// Halving-doubling. The second exchange with a peer has a channel of its own where halving left
// another size.
void Collectives::exchange(std::uint32_t at, const Member& member, const Instance& instance,
                           std::uint32_t packet) {
  const std::uint32_t first = instance.first_member;
  const std::uint32_t level = packet_distance(instance, packet);
  const std::uint32_t peer = member.position ^ (1u << level);
  const std::int64_t bytes = packet_bytes(instance, packet);
  const bool again = packet >= instance.levels && bytes != packet_bytes(instance, level);
  const std::uint32_t channel = instance.first_channel + level + (again ? instance.levels : 0);
  send(at, first + peer, channel + peer * 2 * instance.levels, bytes);
  post(at, first + peer, channel + member.position * 2 * instance.levels);
}

}  // namespace astra_sim::strict
