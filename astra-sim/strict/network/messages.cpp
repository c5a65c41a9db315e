#include "strict/network/messages.h"

namespace astra_sim::strict {

namespace {

template <class Item>
Item take_front(std::deque<Item>& queue) {
  const Item front = queue.front();
  queue.pop_front();
  return front;
}

}  // namespace

std::size_t Messages::Hash::operator()(const Key& key) const {
  std::uint64_t mixed = (static_cast<std::uint64_t>(key.from) << 32) | key.to;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(key.tag), static_cast<std::uint64_t>(key.bytes)}) {
    mixed = (mixed ^ (mixed >> 31) ^ part) * 0x9e3779b97f4a7c15ULL;
  }
  return static_cast<std::size_t>(mixed ^ (mixed >> 29));
}

std::uint32_t Messages::pair(const Key& key) {
  const auto [found, added] = index_.try_emplace(key, static_cast<std::uint32_t>(pairs_.size()));
  if (added) pairs_.push_back({key, rendezvous_ ? lane(key) : kNone, {}, 0});
  return found->second;
}

std::uint32_t Messages::lane(Key key) {
  key.bytes = kControlBytes;
  const auto [found, added] =
      lane_index_.try_emplace(key, static_cast<std::uint32_t>(lanes_.size()));
  if (added) lanes_.emplace_back();
  return found->second;
}

void Messages::transmit(std::uint32_t at, std::uint32_t sender) {
  const Key& key = pairs_[at].key;
  network_.send(key.from, key.to, key.bytes, {EventKind::kPlainArrival, at, sender});
}

void Messages::send(const Key& key, std::uint32_t node) {
  const std::uint32_t at = pair(key);
  if (!rendezvous_) {
    transmit(at, node);
    return;
  }
  Lane& lane = lanes_[pairs_[at].lane];
  if (lane.controls == 0) {
    lane.senders.push_back({at, node});
  } else {
    --lane.controls;
    clock_.global(0, {EventKind::kPlainReady, at, node});
  }
}

void Messages::receive(const Key& key, std::uint32_t node) {
  const std::uint32_t at = pair(key);
  if (rendezvous_) {
    network_.send(key.to, key.from, kControlBytes, {EventKind::kPlainControl, at, node});
  } else {
    post(at, node);
  }
}

void Messages::post(std::uint32_t at, std::uint32_t receiver) {
  Pair& between = pairs_[at];
  if (between.unclaimed > 0) {
    --between.unclaimed;
    clock_.global(0, {EventKind::kPlainPosted, receiver});
  } else {
    between.receivers.push_back(receiver);
  }
}

void Messages::control(std::uint32_t at, std::uint32_t receiver) {
  post(at, receiver);
  Lane& lane = lanes_[pairs_[at].lane];
  if (lane.senders.empty()) {
    ++lane.controls;
  } else {
    const Sender sender = take_front(lane.senders);
    transmit(sender.pair, sender.node);
  }
}

void Messages::arrival(std::uint32_t at, std::uint32_t sender) {
  sink_.message_done(sender);
  Pair& between = pairs_[at];  // after the sender's end, which may have added pairs
  if (between.receivers.empty()) {
    ++between.unclaimed;
  } else {
    sink_.message_done(take_front(between.receivers));
  }
}

}  // namespace astra_sim::strict
