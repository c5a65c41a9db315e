// What a run gave, whatever its rules: the times of every node, and why some never ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/network/handover.h"
#include "formats/chakra/node.h"
#include "strict/base/journal.h"

namespace astra_sim::cli {

struct NodeRecord {
  std::uint64_t id = 0;
  chakra::NodeType type = chakra::NodeType::kInvalid;
  bool on_cpu = false;
  std::int64_t bytes = 0;
  std::int64_t operations = 0;
  std::int64_t issued = -1;  // ticks
  std::int64_t done = -1;    // ticks; -1: never
};

// Bytes and times of one direction of a link (default rules only).
struct LinkRecord {
  std::uint32_t from;
  std::uint32_t to;
  std::int64_t bytes;
  std::int64_t messages;
  std::int64_t busy_ps;
  std::int64_t queue_ps;
  std::int64_t peak_queue_ps;
  std::int64_t peak_messages;  // at once (fair share)
};

// What an instance of a memory tier served (default rules only).
struct TierRecord {
  std::string name;
  std::uint32_t instance;
  std::int64_t loads;
  std::int64_t stores;
  std::int64_t bytes;
  std::int64_t busy_ps;
  std::int64_t waiting_ps;
  std::int64_t peak_waiting;
};

struct Report {
  std::string rules;
  std::int64_t ticks_per_ns = 1;  // 1: times are ns, 1000: ps
  std::vector<NodeRecord> nodes;  // of NPU i: [first[i], first[i + 1])
  std::vector<std::uint32_t> first{0};
  std::vector<std::int64_t> finish;  // ticks by NPU; -1: never
  std::vector<std::string> unfinished;
  std::uint64_t unfinished_nodes = 0;
  std::uint64_t events = 0;
  std::string rate_quantum;  // fair share: which, and how often it put rates off, as a JSON object
  std::vector<LinkRecord> links;
  std::vector<engine::SentMessage> messages;  // default rules with --flows
  std::vector<TierRecord> tiers;
  std::vector<std::int64_t> peak_bytes{};  // of tensors, by NPU; empty: not tracked
  strict::Journal journal;                 // strict rules only

  // Whole nanoseconds; what is not whole is rounded up.
  std::int64_t as_ns(std::int64_t ticks) const { return (ticks + ticks_per_ns - 1) / ticks_per_ns; }
  // For trace events: microseconds, without rounding.
  std::string as_micros(std::int64_t ticks) const;
  const char* unit() const { return ticks_per_ns == 1 ? "ns" : "ps"; }
};

}  // namespace astra_sim::cli
