// Scheduled collectives: every message leaves when what it waits for has happened
// (model/collective/schedule.h).
#include "engine/collectives/collectives.h"
#include "model/collective/schedule.h"

namespace astra_sim::engine {

using model::Message;
using model::Schedule;

void Collectives::start_scheduled(Run& run, std::uint32_t slot, CallState& call, Ps now) {
  const std::uint32_t position = run.graph->rank_slots[slot].rank;
  for (const std::uint32_t message : call.schedule->of_rank(position))
    release(run, call.first_message + message, now);
  if (scheduled_end_or_wait(run, slot, call, now)) post_end(run, slot, now);
}

bool Collectives::receive_scheduled(Run& run, std::uint32_t message, Ps now,
                                    std::uint32_t& ended_slot) {
  const CallState& call = run.calls[run.call_of[message]];
  const Schedule& schedule = *call.schedule;
  const std::uint32_t index = message - call.first_message;
  const std::uint32_t to = schedule.message(index).to;
  if (to < call.num_ranks) ++run.ranks[call.first + to].received[0];
  for (const std::uint32_t later : schedule.after(index))
    release(run, call.first_message + later, now);
  if (to >= call.num_ranks) return false;
  ended_slot = call.first + to;
  return scheduled_end_or_wait(run, ended_slot, call, now);
}

// One of the things that the item waits for has happened. Sending a message may release the next of
// its channel: a list instead of recursion, for a channel may hold thousands.
void Collectives::release(Run& run, std::uint32_t item, Ps now) {
  if (--run.waits[item] != 0) return;
  ready_.push_back(item);
  if (sending_) return;
  sending_ = true;
  for (std::size_t at = 0; at < ready_.size(); ++at) {
    const CallState& call = run.calls[run.call_of[ready_[at]]];
    const std::uint32_t index = ready_[at] - call.first_message;
    if (index < call.schedule->num_messages()) {
      send_scheduled(run, ready_[at], now);
    } else {  // a gate opens
      for (const std::uint32_t later : call.schedule->after(index))
        release(run, call.first_message + later, now);
    }
  }
  ready_.clear();
  sending_ = false;
}

void Collectives::send_scheduled(Run& run, std::uint32_t message, Ps now) {
  const CallState& call = run.calls[run.call_of[message]];
  const Schedule& schedule = *call.schedule;
  const std::uint32_t index = message - call.first_message;
  const Message item = schedule.message(index);
  const auto vertex = [&](std::uint32_t end) {
    return end < call.num_ranks ? run.graph->rank_slots[call.first + end].device
                                : schedule.vertex(end);
  };
  const std::uint64_t token = Token{Owner::kScheduled, run.index, message}.pack();
  const Ps left = network_.send(
      now, {vertex(item.from), vertex(item.to), schedule.timing_bytes(item, call.timing_bytes),
            schedule.exact_bytes(item, call.timing_bytes), token, token, item.link});
  if (item.from < call.num_ranks) {
    RankState& rank = run.ranks[call.first + item.from];
    ++rank.sent;
    if (left == kOnItsWay) {
      ++rank.leaving;
    } else if (left > rank.left_at) {
      rank.left_at = left;
    }
  }
  if (left != kOnItsWay && item.next != model::kNone)
    release(run, call.first_message + item.next, now);
}

void Collectives::scheduled_left(Run& run, std::uint32_t message, Ps now) {
  const CallState& call = run.calls[run.call_of[message]];
  const Message item = call.schedule->message(message - call.first_message);
  if (item.next != model::kNone) release(run, call.first_message + item.next, now);
  if (item.from >= call.num_ranks) return;
  const std::uint32_t slot = call.first + item.from;
  --run.ranks[slot].leaving;
  if (scheduled_end_or_wait(run, slot, call, now)) post_end(run, slot, now);
}

bool Collectives::scheduled_end_or_wait(Run& run, std::uint32_t slot, const CallState& call,
                                        Ps now) {
  const std::uint32_t position = slot - call.first;
  return end_after(run, slot, static_cast<std::int64_t>(call.schedule->of_rank(position).size()),
                   call.schedule->num_received(position), now);
}

// True: the rank ends now. Posts its end when only its own port is still busy.
bool Collectives::end_after(Run& run, std::uint32_t slot, std::int64_t messages_sent,
                            std::int64_t messages_received, Ps now) {
  RankState& rank = run.ranks[slot];
  if (!rank.started || rank.ended || rank.leaving > 0) return false;
  if (rank.sent < messages_sent || rank.received[0] < messages_received) return false;
  rank.ended = true;
  if (rank.left_at <= now) return true;
  post_end(run, slot, rank.left_at);
  return false;
}

}  // namespace astra_sim::engine
