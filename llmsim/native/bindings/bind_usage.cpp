// What groups counted and what their devices did, as columns for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace llmsim {

namespace {

// Requests whose cancelling both groups of a hand-over count, less those that neither counts: the
// client had gone when the prefill ended. A matter of the prefill group.
std::int64_t twice_cancelled(const Simulation& s, const Group& g) {
  if (s.kv_transfers() == nullptr || g.config().role != Role::kPrefill) return 0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < s.sequences().size(); ++i) {
    const KvTransfer& kv_transfer = s.kv_transfers()->of(static_cast<RequestId>(i));
    if (kv_transfer.prefill_group != g.config().index || !kv_transfer.gave_up) continue;
    count += kv_transfer.prefill_dropped && kv_transfer.decode_dropped;
    count -= kv_transfer.prefilled != kNever && kv_transfer.decode_group < 0;
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
    if (status == Status::kCancelled) computed = std::max(one.lost_to, one.num_computed);
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

}  // namespace

// One value per group and counter.
nb::dict counter_columns(const Simulation& s) {
  nb::dict d;
  const auto column = [&](const char* name, auto&& value) {
    std::vector<std::int64_t> values;
    for (const auto& group : s.groups()) values.push_back(value(*group));
    d[name] = to_array(values);
  };
  column("steps",
         [](const Group& g) { return static_cast<std::int64_t>(g.costs().usage().steps); });
  column("steps_below_lower_bound",
         [](const Group& g) { return g.costs().usage().steps_below_lower_bound; });
  const auto graphs = [](GraphMode mode) {
    return [mode](const Group& g) {
      return g.costs().usage().steps_by_mode[static_cast<std::size_t>(mode)];
    };
  };
  column("steps_full_graph", graphs(GraphMode::kFull));
  column("steps_piecewise_graph", graphs(GraphMode::kPiecewise));
  column("steps_without_graph", graphs(GraphMode::kNone));
  column("launching_ps", [](const Group& g) { return g.costs().usage().launching; });
  column("scheduled_sequences", [](const Group& g) { return g.costs().usage().sequences; });
  column("attended_tokens",
         [](const Group& g) { return g.costs().usage().attended_tokens_x2 / 2; });
  column("kv_read_tokens", [](const Group& g) { return g.costs().usage().kv_read_tokens; });
  column("scheduled_tokens", [](const Group& g) { return g.scheduled_tokens(); });
  column("unlaunched_tokens", [](const Group& g) { return g.unlaunched_tokens(); });
  column("open_tokens",
         [open = open_tokens(s)](const Group& g) { return open[at(g.config().index)]; });
  column("started_with_tokens",
         [](const Group& g) { return g.scheduler().counters().started_with_tokens; });
  column("discarded_tokens",
         [](const Group& g) { return g.scheduler().counters().discarded_tokens; });
  column("max_model_len",
         [](const Group& g) { return std::int64_t{g.scheduler().limits().max_model_len}; });
  column("prompt_tokens", [](const Group& g) { return g.scheduler().counters().prompt_tokens; });
  column("generation_tokens",
         [](const Group& g) { return g.scheduler().counters().generation_tokens; });
  column("preemptions", [](const Group& g) { return g.scheduler().counters().preemptions; });
  column("recomputed_tokens",
         [](const Group& g) { return g.scheduler().counters().recomputed_tokens; });
  column("prefix_queried_tokens",
         [](const Group& g) { return g.scheduler().counters().prefix_queried_tokens; });
  column("prefix_hit_tokens",
         [](const Group& g) { return g.scheduler().counters().prefix_hit_tokens; });
  column("busy_ps", [](const Group& g) { return g.busy(); });
  column("peak_blocks_used",
         [](const Group& g) { return std::int64_t{g.scheduler().counters().peak_blocks_used}; });
  column("total_blocks", [](const Group& g) { return std::int64_t{g.scheduler().pool().total}; });
  column("free_blocks", [](const Group& g) { return std::int64_t{g.scheduler().pool().free}; });
  column("pool_consistent",
         [](const Group& g) { return std::int64_t{g.scheduler().pool_consistent()}; });
  column("running", [](const Group& g) { return std::int64_t{g.num_running()}; });
  const auto parked = [](const Group& g) { return std::int64_t{g.scheduler().gauges().parked}; };
  column("waiting", [&](const Group& g) { return g.num_waiting() - parked(g); });
  column("parked", parked);
  column("idle_with_work", [](const Group& g) { return g.idle_with_work(); });
  const auto ended = [](const Group& g, bool here) {
    return (g.config().role != Role::kPrefill) == here ? g.scheduler().counters().finished : 0;
  };
  column("finished", [&](const Group& g) { return ended(g, true); });
  column("handed_over", [&](const Group& g) { return ended(g, false); });
  column("cancelled", [&s](const Group& g) {
    return g.scheduler().counters().cancelled - twice_cancelled(s, g);
  });
  column("verifications",
         [](const Group& g) { return g.scheduler().counters().speculation.verifications; });
  column("drafted_tokens",
         [](const Group& g) { return g.scheduler().counters().speculation.drafts; });
  column("accepted_tokens",
         [](const Group& g) { return g.scheduler().counters().speculation.accepted; });
  column("verified_tokens",
         [](const Group& g) { return g.scheduler().counters().speculation.emitted; });
  column("rejected", [](const Group& g) { return static_cast<std::int64_t>(g.rejected().size()); });
  return d;
}

// Per group: how many drafts of each position held.
nb::list accepted_at(const Simulation& s) {
  nb::list groups;
  for (const auto& group : s.groups())
    groups.append(to_array(group->scheduler().counters().speculation.accepted_at));
  return groups;
}

// How often each row of each feature's table was read, in the order of Feature.
nb::tuple rows_of(const Program::Usage& usage) {
  nb::list rows;
  for (const auto& counts : usage.rows) rows.append(to_array(counts));
  return nb::tuple(rows);
}

nb::list table_rows(const Simulation& s) {
  nb::list groups;
  for (const auto& group : s.groups()) {
    const Program::Usage& usage = group->costs().usage();
    groups.append(rows_of(usage));
  }
  return groups;
}

// When a group's devices worked, on what, and for whom.
nb::dict group_activity(const Group& group) {
  const Program::Usage& usage = group.costs().usage();
  nb::dict d;
  std::vector<Ps> starts(group.output_times().size());
  for (std::size_t step = 0; step < starts.size(); ++step) starts[step] = group.output_start(step);
  d["start_ps"] = to_array(std::move(starts));
  d["end_ps"] = to_array(group.output_times());
  d["rows"] = rows_of(usage);
  d["kv_read_tokens"] = usage.kv_read_tokens;
  d["sequences"] = usage.sequences;
  d["scheduled_tokens"] = group.scheduled_tokens();
  d["offload"] = offload_counters(group.costs());
  nb::list passes;  // of a drafter: the first ones, then the others
  if (group.costs().drafter() != nullptr) {
    const Drafter::Usage& drafts = group.costs().drafter_usage();
    for (const Program::Usage* pass : {&drafts.first, &drafts.next}) {
      nb::dict p;
      p["rows"] = rows_of(*pass);
      p["kv_read_tokens"] = pass->kv_read_tokens;
      p["sequences"] = pass->sequences;
      passes.append(p);
    }
  }
  d["draft_passes"] = passes;
  nb::list tiers;
  if (group.tiers() != nullptr)
    for (const auto& [pool, bytes] : group.tiers()->moved())
      tiers.append(nb::make_tuple(pool, bytes));
  d["tier_bytes"] = tiers;
  d["share_request"] = to_array(group.shares ? group.shares->request : std::vector<RequestId>{});
  d["share_ps"] = to_array(group.shares ? group.shares->ps : std::vector<Ps>{});
  return d;
}

nb::list attention_reach(const Simulation& s) {
  nb::list rows;
  for (const auto& group : s.groups()) {
    const Program& program = group->costs().program();
    for (const OperatorTime& time : program.busy_time(group->costs().usage())) {
      if (time.beyond_permille > 1000)
        rows.append(nb::make_tuple(group->config().index, time.op, time.beyond_permille));
    }
  }
  return rows;
}

namespace {

// The drafter's operators come behind the program's: those of its first pass, then those of the
// others.
void append_drafter_time(const Group& group, nb::list& rows) {
  const Drafter* drafter = group.costs().drafter();
  if (drafter == nullptr) return;
  auto first = static_cast<std::int32_t>(group.costs().program().operators().size()) + 1;
  const auto append = [&](const Program& program, const Program::Usage& usage) {
    for (const OperatorTime& time : program.busy_time(usage)) {
      nb::list ps;
      for (const int128 value : time.ps) ps.append(to_int(value));
      rows.append(nb::make_tuple(group.config().index, first + time.op, nb::tuple(ps)));
    }
    first += static_cast<std::int32_t>(program.operators().size()) + 1;
  };
  append(drafter->first(), group.costs().drafter_usage().first);
  append(drafter->next(), group.costs().drafter_usage().next);
}

}  // namespace

nb::list busy_time(const Simulation& s) {
  nb::list rows;
  for (const auto& group : s.groups()) {
    const Program& program = group->costs().program();
    for (const OperatorTime& time : program.busy_time(group->costs().usage())) {
      nb::list ps;
      for (const int128 value : time.ps) ps.append(to_int(value));
      rows.append(nb::make_tuple(group->config().index, time.op, nb::tuple(ps)));
    }
    append_drafter_time(*group, rows);
  }
  return rows;
}

}  // namespace llmsim
