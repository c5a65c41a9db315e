#include "kv_transfer/outside_transfers.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

OutsideTransfers::OutsideTransfers(KvTransferConfig config, NetworkConfig network)
    : config_(std::move(config)), network_(std::move(network)) {
  if (config_.layerwise)
    throw std::invalid_argument("layer by layer, KV is moved by the groups alone");
}

Ps OutsideTransfers::reserved(RequestId request, const KvRoute& route, std::int32_t tokens,
                              std::int32_t cached, Ps now) {
  const auto known = std::ranges::find_if(config_.routes, [&route](const KvRoute& one) {
    return one.prefill_group == route.prefill_group && one.decode_group == route.decode_group;
  });
  if (known == config_.routes.end())
    throw std::invalid_argument("no KV route leads between these groups");
  const std::int32_t sent = std::min(cached, tokens - 1);
  const Ps posts = config_.push ? 0 : config_.tables[at(known->table)].posts(sent, tokens);
  moving_[request] = {*known, tokens, sent};
  moving_[request].posted = now + posts;
  start(config_.places[at(route.decode_group)][0], config_.places[at(route.prefill_group)][0], 0,
        request, now);
  network_.settle(now);
  return posts;
}

void OutsideTransfers::prefilled(RequestId request, Ps now) {
  const auto moving = moving_.find(request);
  if (moving == moving_.end() || !moving->second.told || moving->second.sends)
    throw std::invalid_argument("no blocks are reserved for a prompt that is sent");
  send_all(request, moving->second, now);
  network_.settle(now);
}

std::vector<RequestId> OutsideTransfers::advance(Ps now) {
  while (network_.next_event() <= now) {
    const Ps time = network_.next_event();
    network_.advance(time);
    network_.settle(time);
  }
  std::vector<RequestId> complete;
  const auto later = posted_.upper_bound(now);
  for (auto one = posted_.begin(); one != later; one = posted_.erase(one))
    complete.push_back(one->second);
  return complete;
}

void OutsideTransfers::start(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes,
                             RequestId request, Ps now) {
  network_.transfer_at(from, to, bytes, now + network_.way_out(from, to), now, *this,
                       static_cast<std::uint64_t>(request), Purpose::kKvHandover);
}

void OutsideTransfers::landed(TransferId, std::uint64_t token, Ps now) {
  const auto request = static_cast<RequestId>(token);
  Moving& moving = moving_.at(request);
  if (--moving.in_flight > 0) return;
  if (!moving.told) {
    moving.told = true;
    if (!config_.push) return send_all(request, moving, now);
    told_.push_back(request);
    return;
  }
  posted_.emplace(std::max(moving.posted, now), request);
  moving_.erase(request);
}

void OutsideTransfers::send_all(RequestId request, Moving& moving, Ps now) {
  moving.sends = true;
  const KvTable& table = config_.tables[at(moving.route.table)];
  const auto& from = config_.places[at(moving.route.prefill_group)];
  const auto& to = config_.places[at(moving.route.decode_group)];
  moving.in_flight = table.shares.size();
  for (const KvShare& share : table.shares) {
    std::int64_t bytes = 0;
    for (const KvPart& part : share.parts)
      bytes += moved_bytes(table, part, moving.tokens, moving.sent, moving.tokens) *
               static_cast<std::int64_t>(part.layers.size());
    start(from[at(share.from_rank)], to[at(share.to_rank)], bytes, request, now);
  }
}

}  // namespace llmsim
