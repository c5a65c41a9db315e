// Tables that are made when a run has ended, from what the simulation keeps in other forms.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/columns.h"
#include "loop/simulation.h"

namespace llmsim {

// What the requests' table has beside RequestProgress.
struct RequestStates {
  std::vector<std::uint8_t> status;
  std::vector<Ps> arrival_ps;

  static constexpr auto columns() {
    return std::tuple{
        Column{"status", &RequestStates::status},
        Column{"arrival_ps", &RequestStates::arrival_ps},
    };
  }
};

struct KvTransferTable {
  std::vector<std::int16_t> prefill_group;
  std::vector<Ps> prefill_end_ps, kv_reserved_ps, kv_landed_ps, decode_scheduled_ps;
  std::vector<std::int32_t> decode_cached_tokens;
  std::vector<std::int64_t> kv_transfer_bytes, kv_due_bytes;

  static constexpr auto columns() {
    using T = KvTransferTable;
    return std::tuple{
        Column{"prefill_group", &T::prefill_group},
        Column{"prefill_end_ps", &T::prefill_end_ps},
        Column{"kv_reserved_ps", &T::kv_reserved_ps},
        Column{"kv_landed_ps", &T::kv_landed_ps},
        Column{"decode_scheduled_ps", &T::decode_scheduled_ps},
        Column{"decode_cached_tokens", &T::decode_cached_tokens},
        Column{"kv_transfer_bytes", &T::kv_transfer_bytes},
        Column{"kv_due_bytes", &T::kv_due_bytes},
    };
  }
};

// One row per link of the shared network.
struct LinkTable {
  std::vector<std::int64_t> bytes_per_s, bytes, transfers;
  std::vector<Ps> busy_ps;

  static constexpr auto columns() {
    return std::tuple{
        Column{"bytes_per_s", &LinkTable::bytes_per_s},
        Column{"bytes", &LinkTable::bytes},
        Column{"transfers", &LinkTable::transfers},
        Column{"busy_ps", &LinkTable::busy_ps},
    };
  }
};

// What clients see of every request, whichever groups served it.
RequestProgress request_progress(const Simulation& simulation);
// The same of some requests, with the engine's times where an API server takes time as well.
RequestProgress engine_progress(const Simulation& simulation, std::span<const RequestId> requests);
RequestStates request_states(const Simulation& simulation);
// Requires that groups have roles.
KvTransferTable kv_transfer_table(const Simulation& simulation);
// The steps of all groups, group by group.
StepRecorder step_table(const Simulation& simulation);
NodeSpanTable node_span_table(const Simulation& simulation);
LinkTable link_table(const Simulation& simulation);

}  // namespace llmsim
