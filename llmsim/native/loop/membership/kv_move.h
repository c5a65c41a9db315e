// What it takes to move the KV of requests from the groups of one layout to those of another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "loop/membership/layout_spec.h"
#include "network/shared_network.h"

namespace llmsim {

// KV of one request that a group of the old layout holds and one of the new layout takes; groups
// are numbered from the first of their layout.
struct MovedKv {
  std::int32_t from = 0, to = 0, tokens = 0;
  std::int64_t sent_bytes = 0;  // from device to device; the rest is where it is needed already
};

// Ranks get what their layout stores from ranks that have it, over the routes of the network, all
// at once: the busiest link says how long that takes, plus the longest latency. What a device has
// already stays where it is.
class KvMove {
 public:
  // `tables` and `table_of`: what goes from a kind of group to another one.
  KvMove(NetworkConfig network, std::vector<KvTable> tables,
         std::vector<std::vector<std::int32_t>> table_of)
      : network_(std::move(network)),
        tables_(std::move(tables)),
        table_of_(std::move(table_of)),
        carried_(network_.num_links()) {}

  // Notes what each of them sends.
  Ps time_of(const LayoutSpec& from, const LayoutSpec& to, std::vector<MovedKv>& moved);

 private:
  // Returns what goes between the two.
  std::int64_t load(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes);

  SharedNetwork network_;  // nothing moves on it: it knows the routes
  std::vector<KvTable> tables_;
  std::vector<std::vector<std::int32_t>> table_of_;
  std::vector<std::int64_t> carried_;  // scratch: bytes by link
  Ps latency_ = 0;                     // scratch
};

}  // namespace llmsim
