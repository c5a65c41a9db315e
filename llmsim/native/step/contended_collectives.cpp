// How many bytes the flows of a collective on shared links carry, so that alone they take what its
// table says.
#include <algorithm>

#include "step/contended.h"

namespace llmsim {

// From when all of them start until the last byte is there, nobody else moving.
Ps ContendedRound::alone(std::span<const Flow> flows, std::int64_t bytes) {
  if (!probe_) probe_ = std::make_unique<SharedNetwork>(network_.config());
  Alone owner;
  const Ps begin = probed_;
  for (const Flow& flow : flows)
    probe_->transfer(flow.from, flow.to, bytes, begin, owner, 0, Purpose::kOther);
  probe_->settle(begin);
  while (probe_->num_in_flight() > 0) {
    probed_ = probe_->next_event();
    probe_->advance(probed_);
    probe_->settle(probed_);
  }
  return owner.last - begin;
}

// The most bytes, up to `bytes`, that every flow can carry so that all end within `ps`.
const ContendedRound::Fit& ContendedRound::fit(const Exchange& exchange, const Part& part, Ps ps) {
  const std::int64_t bytes = part.bytes;
  const std::vector<Flow>& flows = part.flows;
  const auto [found, is_new] =
      fits_.try_emplace({exchange.stage, exchange.member, exchange.inside, part.shape, bytes, ps});
  Fit& fit = found->second;
  if (!is_new) return fit;
  crossed_.clear();
  std::int64_t most = bytes;
  for (const Flow& flow : flows) {
    const auto route = network_.route(flow.from, flow.to);
    crossed_.insert(crossed_.end(), route.begin(), route.end());
    most = std::min(most, network_.most_within(flow.from, flow.to, bytes, ps));
  }
  fit = {-1, 0};
  if (most < 0) return fit;
  std::sort(crossed_.begin(), crossed_.end());
  if (std::adjacent_find(crossed_.begin(), crossed_.end()) == crossed_.end()) {
    Ps longest = 0;
    for (const Flow& flow : flows)
      longest = std::max(longest, network_.alone(flow.from, flow.to, most));
    return fit = {most, ps - longest};
  }
  // Its own flows share links: what fits is found by halving.
  std::int64_t least = -1;
  if (alone(flows, most) > ps) {
    while (most - least > 1) {
      const std::int64_t middle = least + (most - least) / 2;
      (alone(flows, middle) <= ps ? least : most) = middle;
    }
    most = least;
  }
  return fit = most < 0 ? Fit{-1, 0} : Fit{most, ps - alone(flows, most)};
}

ContendedRound::Part& ContendedRound::only_part(Shape shape, std::int64_t bytes) {
  num_parts_ = 1;
  parts_[0].shape = shape;
  parts_[0].bytes = bytes;
  parts_[0].flows.clear();
  return parts_[0];
}

bool ContendedRound::exchange(Exchange exchange, Ps ps, Ps at, Ps now) {
  std::array<std::int64_t, 2> bytes{-1, -1};
  for (std::size_t i = 0; i < num_parts_; ++i) {
    const Fit& fitted = fit(exchange, parts_[i], ps);
    bytes[i] = fitted.bytes;
    exchange.extra[i] = fitted.extra;
    if (fitted.bytes >= 0) exchange.left += static_cast<std::int32_t>(parts_[i].flows.size());
  }
  if (exchange.left == 0) return false;
  std::size_t id = exchanges_.size();
  if (free_exchanges_.empty()) {
    exchanges_.push_back(exchange);
  } else {
    id = free_exchanges_.back();
    free_exchanges_.pop_back();
    exchanges_[id] = exchange;
  }
  for (std::size_t i = 0; i < num_parts_; ++i)
    for (const Flow& flow : parts_[i].flows)
      if (bytes[i] >= 0)
        network_.transfer_at(flow.from, flow.to, bytes[i], at, now, *this, 2 * id + i,
                             Purpose::kCollective);
  return true;
}

}  // namespace llmsim
