#include "kv/offloading/copies.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

void GroupCopies::load(JobId job, RequestId request, std::int64_t tokens) {
  queues_[kLoads].asked.push_back({job, request, tokens});
}

void GroupCopies::store(JobId job, RequestId request, std::int64_t tokens) {
  queues_[kStores].asked.push_back({job, request, tokens});
}

void GroupCopies::load_in_step(JobId job, RequestId request, std::int64_t tokens) {
  queues_[kLoadsInStep].asked.push_back(
      {.job = job, .request = request, .tokens = tokens, .gate = true});
  ++gates_;
}

void GroupCopies::flush(JobId job) {
  const auto same = [job](const Copy& copy) { return copy.job == job; };
  Queue& stores = queues_[kStores];
  const auto wait_for = [this](Copy& copy) {
    gates_ += !copy.gate;
    copy.gate = true;
  };
  const auto asked = std::ranges::find_if(stores.asked, same);
  if (asked != stores.asked.end()) return wait_for(*asked);
  const auto submitted = std::ranges::find_if(stores.submitted, same);
  if (submitted != stores.submitted.end()) wait_for(*submitted);
}

void GroupCopies::formed(Ps now, std::int32_t in_flight, bool runs) {
  const bool loads_first = !queues_[kLoadsInStep].asked.empty();
  for (std::size_t i = 0; i < kQueues; ++i) {
    Queue& queue = queues_[i];
    std::ranges::stable_partition(queue.asked, [](const Copy& copy) { return copy.gate; });
    for (Copy& copy : queue.asked) {
      const bool in_front = copy.gate || (loads_first && i == kLoads);
      copy.after = ended_ + in_flight + (runs && !in_front);
      queue.submitted.push_back(copy);
    }
    queue.asked.clear();
  }
  for (std::size_t queue = 0; queue < kQueues; ++queue) begin(queue, now);
}

void GroupCopies::step_ended(Ps now) {
  ++ended_;
  for (std::size_t queue = 0; queue < kQueues; ++queue) begin(queue, now);
}

void GroupCopies::begin(std::size_t index, Ps now) {
  Queue& queue = queues_[index];
  if (queue.transfers > 0 || queue.submitted.empty() || queue.submitted.front().after > ended_)
    return;
  const bool loads = index != kStores;
  const std::int64_t tokens = queue.submitted.front().tokens;
  const std::uint64_t token = static_cast<std::uint64_t>(group_) * kQueues + index;
  queue.transfers = static_cast<std::int32_t>(config_.ranks.size());
  for (std::size_t rank = 0; rank < config_.ranks.size(); ++rank) {
    const NetworkNodeId device = config_.ranks[rank], host = config_.hosts[rank];
    const NetworkNodeId from = loads ? host : device, to = loads ? device : host;
    const auto& per_token = loads ? config_.bytes_per_token : config_.bytes_stored_per_token;
    SharedNetwork& network = copies_.network_;
    moved_.front().second += tokens * per_token[rank];
    network.transfer_at(from, to, tokens * per_token[rank], now + network.way_out(from, to), now,
                        copies_, token, Purpose::kKvTier);
  }
}

void GroupCopies::landed(std::size_t index, Ps now) {
  Queue& queue = queues_[index];
  if (--queue.transfers > 0) return;
  const Copy copy = queue.submitted.front();
  queue.submitted.pop_front();
  copies_.callbacks_.ended(group_, copy.request, index == kLoads);
  if (copy.gate && --gates_ == 0) copies_.callbacks_.opened(group_);
  begin(index, now);
}

bool GroupCopies::consistent() const {
  std::int64_t gates = 0;
  for (const Queue& queue : queues_)
    gates += std::ranges::count_if(queue.submitted, &Copy::gate) +
             std::ranges::count_if(queue.asked, &Copy::gate);
  return gates == gates_;
}

void OffloadingCopies::add_group(const GroupCopiesConfig& config) {
  const std::size_t ranks = config.ranks.size();
  if (config.hosts.size() != ranks || config.bytes_per_token.size() != ranks ||
      config.bytes_stored_per_token.size() != ranks)
    throw std::invalid_argument(
        "a group that offloads KV needs the host and the bytes of a token of each rank");
  const auto no_bytes = [](std::int64_t bytes) { return bytes < 1; };
  if (std::ranges::any_of(config.bytes_per_token, no_bytes))
    throw std::invalid_argument("a rank that offloads KV needs at least a byte of each token");
  const auto index = static_cast<std::int32_t>(groups_.size());
  groups_.push_back(ranks == 0 ? nullptr : std::make_unique<GroupCopies>(*this, index, config));
}

void OffloadingCopies::landed(TransferId, std::uint64_t token, Ps now) {
  groups_[token / GroupCopies::kQueues]->landed(token % GroupCopies::kQueues, now);
}

}  // namespace llmsim
