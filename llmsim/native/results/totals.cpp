#include "results/totals.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace llmsim {

namespace {

// Requests whose cancelling both groups of a hand-over count, less those that neither counts: the
// client had gone when the prefill ended. A matter of the prefill group.
std::int64_t twice_cancelled(const Simulation& s, const Group& g) {
  if (s.kv_transfers() == nullptr || g.config().role != Role::kPrefill) return 0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < s.sequences().size(); ++i) {
    const KvTransfer& kv_transfer = s.kv_transfers()->of(static_cast<RequestId>(i));
    if (kv_transfer.prefill_group != g.config().index) continue;
    const bool prefilled = kv_transfer.prefilled != kNever;
    const bool left_prefill = kv_transfer.prefill_dropped && kv_transfer.at_prefill && !prefilled;
    count += left_prefill && kv_transfer.decode_dropped;
    count -= kv_transfer.gave_up && prefilled && kv_transfer.decode_group < 0;
  }
  return count;
}

// Adds what the requests of one side (of groups that compute prompts for others, or of all others)
// have computed and have not finished, by group; of prompts that are computed for others, what
// finished, too.
void add_open_tokens(const SequenceTable& sequences, const RequestLog& log, bool prompts,
                     std::vector<std::int64_t>& tokens) {
  for (RequestId request = 0; request < static_cast<RequestId>(sequences.size()); ++request) {
    const Sequence& one = sequences[request];
    const auto status = static_cast<Status>(one.status);
    std::int64_t computed = one.num_computed;
    if (status == Status::kCancelled || status == Status::kFailed)
      computed = std::max(one.lost_to, one.num_computed);
    if (status == Status::kFinished) computed = prompts ? one.num_tokens - 1 : 0;
    if (log.group[request] >= 0) tokens[static_cast<std::size_t>(log.group[request])] += computed;
  }
}

// By group: tokens that its requests have computed, but for those of finished requests, which the
// request columns say.
std::vector<std::int64_t> open_tokens(const Simulation& s) {
  std::vector<std::int64_t> tokens(s.groups().size(), 0);
  add_open_tokens(s.sequences(), s.log(), false, tokens);
  if (s.prompt_log() != nullptr)
    add_open_tokens(*s.prompt_sequences(), *s.prompt_log(), true, tokens);
  return tokens;
}

// A group at the end of the run, with the parts that several totals read.
struct Totals {
  const Group& group;
  std::int64_t open_tokens, twice_cancelled;
  const Scheduler& scheduler = group.scheduler();
  const SchedulerCounters& counters = scheduler.counters();
  const Program::Usage& usage = group.costs().usage();

  std::int64_t steps(GraphMode mode) const {
    return usage.steps_by_mode[static_cast<std::size_t>(mode)];
  }
  bool computes_prompts() const { return group.config().role == Role::kPrefill; }
};

template <typename Row>
struct Total {
  const char* name;
  std::int64_t (*of)(const Row&);
};

constexpr Total<Totals> kGroupTotals[] = {
    {"steps", [](const Totals& t) -> std::int64_t { return t.usage.steps; }},
    {"steps_below_lower_bound",
     [](const Totals& t) -> std::int64_t { return t.usage.steps_below_lower_bound; }},
    {"steps_full_graph", [](const Totals& t) -> std::int64_t { return t.steps(GraphMode::kFull); }},
    {"steps_piecewise_graph",
     [](const Totals& t) -> std::int64_t { return t.steps(GraphMode::kPiecewise); }},
    {"steps_without_graph",
     [](const Totals& t) -> std::int64_t { return t.steps(GraphMode::kNone); }},
    {"launching_ps", [](const Totals& t) -> std::int64_t { return t.usage.launching; }},
    {"slowed_ps", [](const Totals& t) -> std::int64_t { return t.usage.slowed; }},
    {"scheduled_sequences", [](const Totals& t) -> std::int64_t { return t.usage.sequences; }},
    {"attended_tokens",
     [](const Totals& t) -> std::int64_t { return t.usage.attended_tokens_x2 / 2; }},
    {"kv_read_tokens", [](const Totals& t) -> std::int64_t { return t.usage.kv_read_tokens; }},
    {"scheduled_tokens",
     [](const Totals& t) -> std::int64_t { return t.group.scheduled_tokens(); }},
    {"unlaunched_tokens",
     [](const Totals& t) -> std::int64_t { return t.group.unlaunched_tokens(); }},
    {"open_tokens", [](const Totals& t) -> std::int64_t { return t.open_tokens; }},
    {"started_with_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.started_with_tokens; }},
    {"discarded_tokens",
     [](const Totals& t) -> std::int64_t {
       return t.counters.discarded_tokens + t.group.handed_back().computed_tokens;
     }},
    {"max_model_len",
     [](const Totals& t) -> std::int64_t { return t.scheduler.limits().max_model_len; }},
    {"prompt_tokens", [](const Totals& t) -> std::int64_t { return t.counters.prompt_tokens; }},
    {"generation_tokens",
     [](const Totals& t) -> std::int64_t {
       return t.counters.generation_tokens - t.group.handed_back().emitted_tokens;
     }},
    {"preemptions", [](const Totals& t) -> std::int64_t { return t.counters.preemptions; }},
    {"recomputed_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.recomputed_tokens; }},
    {"prefix_queried_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.prefix_queried_tokens; }},
    {"prefix_hit_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.prefix_hit_tokens; }},
    {"busy_ps", [](const Totals& t) -> std::int64_t { return t.group.busy(); }},
    {"dummy_ps", [](const Totals& t) -> std::int64_t { return t.group.busy_with_dummies(); }},
    {"communication_ps",
     [](const Totals& t) -> std::int64_t {
       const std::vector<Ps>& steps = t.group.completed().communication();
       return std::accumulate(steps.begin(), steps.end(), Ps{0});
     }},
    {"m2n_ps",
     [](const Totals& t) -> std::int64_t {
       const std::vector<Ps>& steps = t.group.completed().m2n();
       return std::accumulate(steps.begin(), steps.end(), Ps{0});
     }},
    {"m2n_bytes", [](const Totals& t) -> std::int64_t { return t.group.costs().m2n.sent_bytes; }},
    {"afd_ps", [](const Totals& t) -> std::int64_t { return t.group.costs().m2n.span; }},
    {"afd_computing_ps",
     [](const Totals& t) -> std::int64_t { return t.group.costs().m2n.computing; }},
    {"afd_dummy_ps",
     [](const Totals& t) -> std::int64_t { return t.group.costs().m2n.computing_dummies; }},
    {"communication_slowed_ps",
     [](const Totals& t) -> std::int64_t { return t.group.costs().contention.slowed; }},
    {"communication_lost_ps",
     [](const Totals& t) -> std::int64_t { return t.group.costs().contention.lost; }},
    {"peak_blocks_used",
     [](const Totals& t) -> std::int64_t { return t.counters.peak_blocks_used; }},
    {"total_blocks", [](const Totals& t) -> std::int64_t { return t.scheduler.pool().total; }},
    {"free_blocks",
     [](const Totals& t) -> std::int64_t {
       const Gauges held = t.scheduler.gauges();
       return std::int64_t{held.pool.free} + held.copied;
     }},
    {"pool_consistent",
     [](const Totals& t) -> std::int64_t { return t.scheduler.pool_consistent(); }},
    {"running", [](const Totals& t) -> std::int64_t { return t.group.num_running(); }},
    {"waiting",
     [](const Totals& t) -> std::int64_t {
       return t.group.num_waiting() - t.scheduler.gauges().parked;
     }},
    {"parked", [](const Totals& t) -> std::int64_t { return t.scheduler.gauges().parked; }},
    {"idle_with_work", [](const Totals& t) -> std::int64_t { return t.group.idle_with_work(); }},
    {"finished",
     [](const Totals& t) -> std::int64_t {
       return t.computes_prompts() ? 0 : t.counters.finished;
     }},
    {"handed_over",
     [](const Totals& t) -> std::int64_t {
       const std::int64_t prompts = t.counters.finished - t.group.handed_back().prompts;
       return t.computes_prompts() ? prompts : 0;
     }},
    {"cancelled",
     [](const Totals& t) -> std::int64_t {
       return t.counters.cancelled - t.twice_cancelled - t.group.handed_back().requests;
     }},
    {"failed", [](const Totals& t) -> std::int64_t { return t.counters.failed; }},
    {"failed_loads", [](const Totals& t) -> std::int64_t { return t.counters.failed_loads; }},
    {"lost_tokens", [](const Totals& t) -> std::int64_t { return t.counters.lost_tokens; }},
    {"crowded_lora_steps",
     [](const Totals& t) -> std::int64_t { return t.counters.crowded_lora_steps; }},
    {"verifications",
     [](const Totals& t) -> std::int64_t { return t.counters.speculation.verifications; }},
    {"drafted_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.speculation.drafts; }},
    {"accepted_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.speculation.accepted; }},
    {"verified_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.speculation.emitted; }},
    {"encoded_inputs", [](const Totals& t) -> std::int64_t { return t.counters.encoder.inputs; }},
    {"encoded_tokens", [](const Totals& t) -> std::int64_t { return t.counters.encoder.tokens; }},
    {"host_cache_written_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.host_cache.written; }},
    {"host_cache_loaded_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.host_cache.loaded; }},
    {"host_cache_dropped_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.host_cache.dropped; }},
    {"host_cache_evicted_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.host_cache.evicted; }},
    {"host_cache_stored_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.host_cache.stored; }},
    {"host_cache_prefetched_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.host_cache.prefetched; }},
    {"host_cache_erased_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.host_cache.erased; }},
    {"offloading_stored_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.offloading.stored_tokens; }},
    {"offloading_loaded_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.offloading.loaded_tokens; }},
    {"offloading_evicted_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.offloading.evicted_tokens; }},
    {"offloading_refused_tokens",
     [](const Totals& t) -> std::int64_t { return t.counters.offloading.refused_tokens; }},
    {"offloading_deferred_lookups",
     [](const Totals& t) -> std::int64_t { return t.counters.offloading.deferred_lookups; }},
    {"encoder_cache_hits", [](const Totals& t) -> std::int64_t { return t.counters.encoder.hits; }},
    {"rejected",
     [](const Totals& t) -> std::int64_t {
       return static_cast<std::int64_t>(t.group.rejected().size());
     }},
};

constexpr Total<TierPool> kKvTierTotals[] = {
    {"capacity_bytes",
     [](const TierPool& pool) -> std::int64_t { return pool.config().capacity_bytes; }},
    {"used_bytes", [](const TierPool& pool) -> std::int64_t { return pool.used_bytes(); }},
    {"peak_bytes", [](const TierPool& pool) -> std::int64_t { return pool.counters().peak_bytes; }},
    {"chunks", [](const TierPool& pool) -> std::int64_t { return pool.num_chunks(); }},
    {"hit_chunks", [](const TierPool& pool) -> std::int64_t { return pool.counters().hit_chunks; }},
    {"hit_tokens", [](const TierPool& pool) -> std::int64_t { return pool.counters().hit_tokens; }},
    {"missed_chunks",
     [](const TierPool& pool) -> std::int64_t { return pool.counters().missed_chunks; }},
    {"written_chunks",
     [](const TierPool& pool) -> std::int64_t { return pool.counters().written_chunks; }},
    {"unwritten_chunks",
     [](const TierPool& pool) -> std::int64_t { return pool.counters().unwritten_chunks; }},
    {"evicted_chunks",
     [](const TierPool& pool) -> std::int64_t { return pool.counters().evicted_chunks; }},
    {"thrashed_chunks",
     [](const TierPool& pool) -> std::int64_t { return pool.counters().thrashed_chunks; }},
    {"recalled_bytes",
     [](const TierPool& pool) -> std::int64_t { return pool.counters().recalled_bytes; }},
    {"written_bytes",
     [](const TierPool& pool) -> std::int64_t { return pool.counters().written_bytes; }},
    {"operations", [](const TierPool& pool) -> std::int64_t { return pool.counters().operations; }},
    {"queued_operations",
     [](const TierPool& pool) -> std::int64_t { return pool.counters().queued_operations; }},
    {"consistent", [](const TierPool& pool) -> std::int64_t { return pool.consistent(); }},
};

template <typename Row, std::size_t N>
std::vector<const char*> names_of(const Total<Row> (&totals)[N]) {
  std::vector<const char*> names;
  for (const Total<Row>& total : totals) names.push_back(total.name);
  return names;
}

template <typename Row, std::size_t N>
std::vector<TotalsColumn> columns_of(const Total<Row> (&totals)[N], std::span<const Row> rows) {
  std::vector<TotalsColumn> columns;
  for (const Total<Row>& total : totals) {
    columns.push_back({total.name, {}});
    for (const Row& row : rows) columns.back().values.push_back(total.of(row));
  }
  return columns;
}

}  // namespace

std::vector<TotalsColumn> group_totals(const Simulation& simulation) {
  const std::vector<std::int64_t> open = open_tokens(simulation);
  std::vector<Totals> rows;
  for (const auto& group : simulation.groups()) {
    rows.push_back({*group, open[at(group->config().index)], twice_cancelled(simulation, *group)});
  }
  return columns_of(kGroupTotals, std::span<const Totals>(rows));
}

std::vector<TotalsColumn> kv_tier_totals(const Simulation& simulation) {
  const KvTiers* tiers = simulation.kv_tiers();
  std::span<const TierPool> pools;
  if (tiers != nullptr) pools = tiers->pools();
  return columns_of(kKvTierTotals, pools);
}

std::vector<const char*> group_total_names() { return names_of(kGroupTotals); }
std::vector<const char*> kv_tier_total_names() { return names_of(kKvTierTotals); }

}  // namespace llmsim
