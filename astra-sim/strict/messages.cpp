#include "strict/messages.h"

namespace astra_sim::strict {

namespace {

constexpr std::int64_t kControlBytes = 8192;

std::uint32_t take_front(std::deque<std::uint32_t>& queue) {
    const std::uint32_t front = queue.front();
    queue.pop_front();
    return front;
}

}  // namespace

std::size_t Messages::Hash::operator()(const Key& key) const {
    std::uint64_t mixed = (static_cast<std::uint64_t>(key.from) << 32) | key.to;
    for (const std::uint64_t part : {static_cast<std::uint64_t>(key.tag), static_cast<std::uint64_t>(key.bytes)}) {
        mixed = (mixed ^ (mixed >> 31) ^ part) * 0x9e3779b97f4a7c15ULL;
    }
    return static_cast<std::size_t>(mixed ^ (mixed >> 29));
}

std::uint32_t Messages::pair(const Key& key) {
    const auto [found, added] = index_.try_emplace(key, static_cast<std::uint32_t>(pairs_.size()));
    if (added) pairs_.push_back({key, {}, {}, 0, 0});
    return found->second;
}

void Messages::transmit(std::uint32_t at, std::uint32_t sender) {
    const Key& key = pairs_[at].key;
    network_.send(key.from, key.to, key.bytes, {EventKind::plain_arrival, at, sender});
}

void Messages::send(const Key& key, std::uint32_t node) {
    const std::uint32_t at = pair(key);
    if (!rendezvous_) {
        transmit(at, node);
        return;
    }
    pairs_[at].senders.push_back(node);
    if (pairs_[at].controls == 0) return;
    --pairs_[at].controls;
    clock_.global(0, {EventKind::plain_ready, at});
}

void Messages::receive(const Key& key, std::uint32_t node) {
    const std::uint32_t at = pair(key);
    if (rendezvous_) {
        network_.send(key.to, key.from, kControlBytes, {EventKind::plain_control, at, node});
    } else {
        post(at, node);
    }
}

void Messages::post(std::uint32_t at, std::uint32_t receiver) {
    Pair& between = pairs_[at];
    if (between.unclaimed > 0) {
        --between.unclaimed;
        clock_.global(0, {EventKind::plain_posted, receiver});
    } else {
        between.receivers.push_back(receiver);
    }
}

void Messages::control(std::uint32_t at, std::uint32_t receiver) {
    post(at, receiver);
    if (pairs_[at].senders.empty()) {
        ++pairs_[at].controls;
    } else {
        control_ready(at);
    }
}

void Messages::control_ready(std::uint32_t at) { transmit(at, take_front(pairs_[at].senders)); }

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
