#include "loop/membership/kv_move.h"

#include <algorithm>

namespace llmsim {

std::int64_t KvMove::load(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes) {
  if (from == to || bytes == 0) return 0;
  Ps latency = network_.way_out(from, to);
  for (const NetworkLinkId link : network_.route(from, to)) {
    carried_[link] += bytes;
    latency += network_.config().links[link].latency;
  }
  latency_ = std::max(latency_, latency);
  return bytes;
}

Ps KvMove::time_of(const LayoutSpec& from, const LayoutSpec& to, std::vector<MovedKv>& moved) {
  std::ranges::fill(carried_, 0);
  latency_ = 0;
  const auto &sources = from.kv_transfer.places, &targets = to.kv_transfer.places;
  for (MovedKv& one : moved) {
    const std::int32_t number = table_of_[at(from.kinds[at(one.from)])][at(to.kinds[at(one.to)])];
    const KvTable& table = tables_[at(number)];
    for (const KvShare& share : table.shares)
      one.sent_bytes +=
          load(sources[at(one.from)][at(share.from_rank)], targets[at(one.to)][at(share.to_rank)],
               table.bytes_of(share, {0, 0, one.tokens, one.tokens}));
  }
  Ps longest = 0;
  for (std::size_t link = 0; link < carried_.size(); ++link) {
    const std::int64_t rate = network_.config().links[link].bytes_per_s;
    if (carried_[link] > 0) longest = std::max(longest, transfer_time(carried_[link], rate));
  }
  return longest + latency_;
}

}  // namespace llmsim
