#include "kv_transfer/outside_transfers.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

OutsideTransfers::OutsideTransfers(KvTransferConfig config, std::shared_ptr<OutsideNetwork> network)
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
  const std::int32_t first = std::min(cached, tokens - 1);
  const Ps posts = config_.push ? 0 : config_.tables[at(known->table)].posts(first, tokens);
  Moving& moving = moving_[request] = {*known, tokens, first, first};
  moving.posted = now + posts;
  send_message(request, route, Kind::kTold, now);
  network_->settle(now);
  return posts;
}

void OutsideTransfers::sends(RequestId request, std::int32_t tokens, Ps now) {
  const auto moving = moving_.find(request);
  if (moving == moving_.end() || !moving->second.told || moving->second.sent >= tokens)
    throw std::invalid_argument("no blocks are reserved for a prompt that is sent");
  send_up_to(request, moving->second, tokens, now);
  network_->settle(now);
}

void OutsideTransfers::withdrawn(RequestId request, const KvRoute& route, Ps now) {
  Moving& moving = moving_[request];  // it may be there already
  moving.withdraws = true;
  moving.route.prefill_group = route.prefill_group;
  moving.route.decode_group = route.decode_group;
  send_message(request, route, Kind::kWithdrawn, now);
  network_->settle(now);
}

std::vector<RequestId> OutsideTransfers::advance(Ps now) {
  network_->advance(now);
  std::vector<RequestId> complete;
  const auto later = posted_.upper_bound(now);
  for (auto one = posted_.begin(); one != later; one = posted_.erase(one))
    complete.push_back(one->second);
  return complete;
}

void OutsideTransfers::dropped(RequestId request, const KvRoute& route, Ps now) {
  const auto moving = moving_.find(request);
  if (moving != moving_.end()) {
    moving->second.dropped = !moving->second.told;
    return;
  }
  send_message(request, route, Kind::kForget, now);
  network_->settle(now);
}

void OutsideTransfers::send_message(RequestId request, const KvRoute& route, Kind kind, Ps now) {
  NetworkNodeId from = config_.places[at(route.decode_group)][0];
  NetworkNodeId to = config_.places[at(route.prefill_group)][0];
  if (kind == Kind::kDrained) std::swap(from, to);
  start(from, to, 0, request, kind, now);
}

void OutsideTransfers::start(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes,
                             RequestId request, Kind kind, Ps now) {
  const auto token = (static_cast<std::uint64_t>(kind) << 32) | static_cast<std::uint32_t>(request);
  SharedNetwork& network = network_->shared();
  network.transfer_at(from, to, bytes, now + network.way_out(from, to), now, *this, token,
                      Purpose::kKvHandover);
}

void OutsideTransfers::landed(TransferId, std::uint64_t token, Ps now) {
  const auto request = static_cast<RequestId>(token & 0xffffffffU);
  const auto kind = static_cast<Kind>(token >> 32);
  if (kind == Kind::kForget) {
    forgotten_.push_back(request);
    return;
  }
  if (kind == Kind::kDrained) {
    drained_.push_back(request);
    moving_.erase(request);
    return;
  }
  Moving& moving = moving_.at(request);
  if (kind == Kind::kTold) return hear_told(request, moving, now);
  if (kind == Kind::kKv) return land(request, moving, now);
  moving.refused = true;
  refused_.push_back(request);
  if (moving.in_flight == 0) send_message(request, moving.route, Kind::kDrained, now);
}

void OutsideTransfers::hear_told(RequestId request, Moving& moving, Ps now) {
  moving.told = true;
  if (moving.dropped) {
    posted_.emplace(std::max(moving.posted, now), request);
    moving_.erase(request);
    return;
  }
  if (config_.push) {
    told_.push_back(request);
  } else {
    send_up_to(request, moving, moving.tokens, now);
  }
}

void OutsideTransfers::land(RequestId request, Moving& moving, Ps now) {
  if (--moving.in_flight > 0) return;
  if (moving.refused) return send_message(request, moving.route, Kind::kDrained, now);
  if (!moving.has_landed()) return;
  posted_.emplace(std::max(moving.posted, now), request);
  if (!moving.withdraws) moving_.erase(request);
}

void OutsideTransfers::send_up_to(RequestId request, Moving& moving, std::int32_t tokens, Ps now) {
  const KvTable& table = config_.tables[at(moving.route.table)];
  const auto& from = config_.places[at(moving.route.prefill_group)];
  const auto& to = config_.places[at(moving.route.decode_group)];
  const KvTable::Piece piece{moving.first, moving.sent, tokens, moving.tokens};
  moving.in_flight += table.shares.size();
  moving.sent = tokens;
  for (const KvShare& share : table.shares)
    start(from[at(share.from_rank)], to[at(share.to_rank)], table.bytes_of_chunk(share, piece),
          request, Kind::kKv, now);
}

}  // namespace llmsim
