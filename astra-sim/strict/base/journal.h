// What a run under strict rules did, in the order in which it did it: upstream's output follows it.
#pragma once

#include <cstdint>
#include <vector>

#include "strict/base/events.h"

namespace astra_sim::strict {

enum class Happening : std::uint8_t {
  kIssued,    // index: the node
  kEnded,     // the node; only those that end at once, or every one where the log asks for them
  kFinished,  // the NPU
  kRing,      // in Journal::rings: an NPU's first collective of a kind in a smaller group
};

struct JournalEntry {
  Ns tick;
  std::uint32_t index;
  Happening what;
};

struct GroupRing {
  std::uint32_t npu, size, place;
};

struct Journal {
  std::vector<JournalEntry> entries;
  std::vector<GroupRing> rings;
};

}  // namespace astra_sim::strict
