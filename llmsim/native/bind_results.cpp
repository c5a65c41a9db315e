// What a simulation produced, as columns for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "blame.h"

namespace llmsim {

nb::dict schedule_columns(const ScheduleRecorder& r) {
  nb::dict d;
  d["time_ps"] = to_array(r.time_ps);
  d["end_ps"] = to_array(r.end_ps);
  d["running"] = to_array(r.running);
  d["waiting"] = to_array(r.waiting);
  d["free_blocks"] = to_array(r.free_blocks);
  d["free_blocks_after"] = to_array(r.free_blocks_after);
  d["item_offsets"] = to_array(r.item_offsets);
  d["item_request"] = to_array(r.item_request);
  d["item_tokens"] = to_array(r.item_tokens);
  d["item_computed"] = to_array(r.item_computed);
  d["item_drafts"] = to_array(r.item_drafts);
  d["finished_step"] = to_array(r.finished_step);
  d["finished_request"] = to_array(r.finished_request);
  d["preempted_step"] = to_array(r.preempted_step);
  d["preempted_request"] = to_array(r.preempted_request);
  return d;
}

namespace {

template <typename T>
void append(std::vector<T>& all, const std::vector<T>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

}  // namespace

// Steps of all groups, group by group.
nb::dict step_columns(const Simulation& s) {
  StepRecorder all;
  for (const auto& group : s.groups()) {
    if (!group->steps) continue;
    const StepRecorder& r = *group->steps;
    append(all.group, r.group);
    append(all.schedule_ps, r.schedule_ps);
    append(all.start_ps, r.start_ps);
    append(all.end_ps, r.end_ps);
    append(all.tokens, r.tokens);
    append(all.padded_tokens, r.padded_tokens);
    append(all.prefill_tokens, r.prefill_tokens);
    append(all.sequences, r.sequences);
    append(all.decode_sequences, r.decode_sequences);
    append(all.running, r.running);
    append(all.waiting, r.waiting);
    append(all.free_blocks, r.free_blocks);
    append(all.preempted, r.preempted);
    all.start_ps.resize(all.group.size(), kNever);  // of steps in flight when the run was interrupted
    all.end_ps.resize(all.group.size(), kNever);
  }
  nb::dict d;
  d["group"] = to_array(all.group);
  d["schedule_ps"] = to_array(all.schedule_ps);
  d["start_ps"] = to_array(all.start_ps);
  d["end_ps"] = to_array(all.end_ps);
  d["tokens"] = to_array(all.tokens);
  d["padded_tokens"] = to_array(all.padded_tokens);
  d["prefill_tokens"] = to_array(all.prefill_tokens);
  d["sequences"] = to_array(all.sequences);
  d["decode_sequences"] = to_array(all.decode_sequences);
  d["running"] = to_array(all.running);
  d["waiting"] = to_array(all.waiting);
  d["free_blocks"] = to_array(all.free_blocks);
  d["preempted"] = to_array(all.preempted);
  return d;
}

// Rows from `first` on, so that heartbeats can be printed while the run goes on.
nb::dict series_columns(const Simulation& s, std::size_t first) {
  const Series& r = s.series();
  const auto tail = [first](const auto& column) {
    using Column = std::decay_t<decltype(column)>;
    return to_array(Column(column.begin() + static_cast<std::ptrdiff_t>(std::min(first, column.size())), column.end()));
  };
  nb::dict d;
  d["time_ps"] = tail(r.time_ps);
  d["group"] = tail(r.group);
  d["running"] = tail(r.running);
  d["waiting"] = tail(r.waiting);
  d["kv_blocks_used"] = tail(r.kv_blocks_used);
  d["kv_blocks_cached"] = tail(r.kv_blocks_cached);
  d["prompt_tokens"] = tail(r.prompt_tokens);
  d["generation_tokens"] = tail(r.generation_tokens);
  d["hit_tokens"] = tail(r.hit_tokens);
  d["queried_tokens"] = tail(r.queried_tokens);
  d["preemptions"] = tail(r.preemptions);
  return d;
}

namespace {

// What a client sees of a disaggregated request begins on the prefill side and ends on the decode side.
struct Progress {
  explicit Progress(const Simulation& s)
      : status(s.sequences().size()),
        queued(s.log().queued),
        scheduled(s.log().scheduled),
        cancelled(s.log().cancelled),
        cached(s.log().cached_tokens),
        preemptions(s.log().preemptions) {
    for (std::size_t i = 0; i < status.size(); ++i) status[i] = s.sequences()[static_cast<RequestId>(i)].status;
    if (s.handovers() == nullptr) return;
    const RequestLog& prompts = *s.prompt_log();
    for (std::size_t i = 0; i < status.size(); ++i) {
      const auto request = static_cast<RequestId>(i);
      if (s.handovers()->of(request).prefill_group < 0) continue;
      const std::uint8_t prompt = (*s.prompt_sequences())[request].status;
      const bool here = prompt == static_cast<std::uint8_t>(Status::kWaiting) ||
                        prompt == static_cast<std::uint8_t>(Status::kRunning) ||
                        prompt == static_cast<std::uint8_t>(Status::kParked);
      if (here) status[i] = prompt;
      cancelled[i] = s.handovers()->cancelled(request);
      if (queued[i] == kNever || (prompts.queued[i] != kNever && prompts.queued[i] < queued[i]))
        queued[i] = prompts.queued[i];
      scheduled[i] = prompts.scheduled[i];
      cached[i] = prompts.cached_tokens[i];
      preemptions[i] += prompts.preemptions[i];
    }
  }
  std::vector<std::uint8_t> status;
  std::vector<Ps> queued, scheduled, cancelled;
  std::vector<std::int32_t> cached, preemptions;
};

}  // namespace

nb::dict request_columns(const Simulation& s) {
  const RequestLog& log = s.log();
  const Progress progress(s);
  nb::dict d;
  d["group"] = to_array(log.group);
  d["status"] = to_array(progress.status);
  d["arrival_ps"] = to_array(s.arrivals().arrival_ps);
  d["queued_ps"] = to_array(progress.queued);
  d["scheduled_ps"] = to_array(progress.scheduled);
  d["first_token_ps"] = to_array(log.first_token);
  d["finish_ps"] = to_array(log.finish);
  d["cancelled_ps"] = to_array(progress.cancelled);
  d["emitted_tokens"] = to_array(log.emitted_tokens);
  d["cached_tokens"] = to_array(progress.cached);
  d["preemptions"] = to_array(progress.preemptions);
  return d;
}

nb::object handover_columns(const Simulation& s) {
  if (s.handovers() == nullptr) return nb::none();
  const std::size_t n = s.sequences().size();
  std::vector<std::int16_t> prefill_group(n);
  std::vector<Ps> prefill_end(n), reserved(n), landed(n);
  std::vector<std::int32_t> cached(n);
  std::vector<std::int64_t> bytes(n);
  for (std::size_t i = 0; i < n; ++i) {
    const Handover& handover = s.handovers()->of(static_cast<RequestId>(i));
    prefill_group[i] = static_cast<std::int16_t>(handover.prefill_group);
    prefill_end[i] = handover.prefilled;
    reserved[i] = handover.reserved;
    landed[i] = handover.landed;
    cached[i] = handover.cached;
    bytes[i] = handover.bytes;
  }
  nb::dict d;
  d["prefill_group"] = to_array(prefill_group);
  d["prefill_end_ps"] = to_array(prefill_end);
  d["kv_reserved_ps"] = to_array(reserved);
  d["kv_landed_ps"] = to_array(landed);
  d["decode_scheduled_ps"] = to_array(s.log().scheduled);
  d["decode_cached_tokens"] = to_array(cached);
  d["kv_transfer_bytes"] = to_array(bytes);
  return d;
}

nb::dict fabric_columns(const Simulation& s) {
  nb::dict d;
  const Fabric* fabric = s.fabric();
  std::vector<std::int64_t> bytes, transfers;
  std::vector<Ps> busy;
  for (std::size_t link = 0; fabric != nullptr && link < fabric->num_links(); ++link) {
    const FabricLinkCounters counters = fabric->link_counters(static_cast<FabricLinkId>(link), s.now());
    bytes.push_back(counters.bytes);
    transfers.push_back(counters.transfers);
    busy.push_back(counters.busy);
  }
  d["bytes"] = to_array(bytes);
  d["transfers"] = to_array(transfers);
  d["busy_ps"] = to_array(busy);
  return d;
}

// One value per group and counter.
namespace {

// Requests whose cancelling both groups of a hand-over count, less those that neither counts: the client had gone when
// the prefill ended. A matter of the prefill group.
std::int64_t twice_cancelled(const Simulation& s, const Group& g) {
  if (s.handovers() == nullptr || g.config().role != Role::kPrefill) return 0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < s.sequences().size(); ++i) {
    const Handover& handover = s.handovers()->of(static_cast<RequestId>(i));
    if (handover.prefill_group != g.config().index || !handover.gave_up) continue;
    count += handover.prefill_dropped && handover.decode_dropped;
    count -= handover.prefilled != kNever && handover.decode_group < 0;
  }
  return count;
}

}  // namespace

nb::dict counter_columns(const Simulation& s) {
  nb::dict d;
  const auto column = [&](const char* name, auto&& value) {
    std::vector<std::int64_t> values;
    for (const auto& group : s.groups()) values.push_back(value(*group));
    d[name] = to_array(values);
  };
  column("steps", [](const Group& g) { return static_cast<std::int64_t>(g.evaluator().usage().steps); });
  column("steps_below_light", [](const Group& g) { return g.evaluator().usage().steps_below_light; });
  const auto graphs = [](GraphMode mode) {
    return [mode](const Group& g) { return g.evaluator().usage().steps_by_mode[static_cast<std::size_t>(mode)]; };
  };
  column("steps_full_graph", graphs(GraphMode::kFull));
  column("steps_piecewise_graph", graphs(GraphMode::kPiecewise));
  column("steps_without_graph", graphs(GraphMode::kNone));
  column("launching_ps", [](const Group& g) { return g.evaluator().usage().launching; });
  column("scheduled_sequences", [](const Group& g) { return g.evaluator().usage().sequences; });
  column("attended_tokens", [](const Group& g) { return g.evaluator().usage().attended_tokens_x2 / 2; });
  column("kv_read_tokens", [](const Group& g) { return g.evaluator().usage().kv_read_tokens; });
  column("scheduled_tokens", [](const Group& g) { return g.scheduled_tokens(); });
  column("prompt_tokens", [](const Group& g) { return g.builder().counters().prompt_tokens; });
  column("generation_tokens", [](const Group& g) { return g.builder().counters().generation_tokens; });
  column("preemptions", [](const Group& g) { return g.builder().counters().preemptions; });
  column("recomputed_tokens", [](const Group& g) { return g.builder().counters().recomputed_tokens; });
  column("prefix_queried_tokens", [](const Group& g) { return g.builder().counters().prefix_queried_tokens; });
  column("prefix_hit_tokens", [](const Group& g) { return g.builder().counters().prefix_hit_tokens; });
  column("busy_ps", [](const Group& g) { return g.busy(); });
  column("peak_blocks_used", [](const Group& g) { return std::int64_t{g.builder().counters().peak_blocks_used}; });
  column("total_blocks", [](const Group& g) { return std::int64_t{g.builder().pool().total}; });
  column("free_blocks", [](const Group& g) { return std::int64_t{g.builder().pool().free}; });
  column("pool_consistent", [](const Group& g) { return std::int64_t{g.builder().pool_consistent()}; });
  column("running", [](const Group& g) { return std::int64_t{g.num_running()}; });
  const auto parked = [](const Group& g) { return std::int64_t{g.builder().num_parked()}; };
  column("waiting", [&](const Group& g) { return g.num_waiting() - parked(g); });
  column("parked", parked);
  column("idle_with_work", [](const Group& g) { return g.idle_with_work(); });
  const auto ended = [](const Group& g, bool here) {
    return (g.config().role != Role::kPrefill) == here ? g.builder().counters().finished : 0;
  };
  column("finished", [&](const Group& g) { return ended(g, true); });
  column("handed_over", [&](const Group& g) { return ended(g, false); });
  column("cancelled", [&s](const Group& g) { return g.builder().counters().cancelled - twice_cancelled(s, g); });
  column("verifications", [](const Group& g) { return g.builder().counters().speculation.verifications; });
  column("drafted_tokens", [](const Group& g) { return g.builder().counters().speculation.drafts; });
  column("accepted_tokens", [](const Group& g) { return g.builder().counters().speculation.accepted; });
  column("verified_tokens", [](const Group& g) { return g.builder().counters().speculation.emitted; });
  column("rejected", [](const Group& g) { return static_cast<std::int64_t>(g.rejected().size()); });
  return d;
}

// Per group: how many drafts of each position held.
nb::list accepted_at(const Simulation& s) {
  nb::list groups;
  for (const auto& group : s.groups()) groups.append(to_array(group->builder().counters().speculation.accepted_at));
  return groups;
}

nb::dict blame_columns(const Simulation& s) {
  const Blame b = blame(s);
  nb::dict d;
  d["api_ps"] = to_array(b.api);
  d["queue_ps"] = to_array(b.queue);
  d["wait_ps"] = to_array(b.wait);
  d["prefill_ps"] = to_array(b.prefill);
  d["decode_ps"] = to_array(b.decode);
  d["communication_ps"] = to_array(b.communication);
  d["host_ps"] = to_array(b.host);
  d["kv_transfer_ps"] = to_array(b.kv_transfer);
  d["preemption_ps"] = to_array(b.preemption);
  d["abandoned_ps"] = to_array(b.abandoned);
  return d;
}

// Per group: how often each row of its tables over tokens, sequences and gathered tokens was read.
// How often each row of each feature's table was read, in the order of Feature.
nb::tuple rows_of(const Program::Usage& usage) {
  nb::list rows;
  for (const auto& counts : usage.rows) rows.append(to_array(counts));
  return nb::tuple(rows);
}

nb::list table_rows(const Simulation& s) {
  nb::list groups;
  for (const auto& group : s.groups()) {
    const Program::Usage& usage = group->evaluator().usage();
    groups.append(rows_of(usage));
  }
  return groups;
}

// When a group's devices worked, on what, and for whom.
nb::dict group_activity(const Group& group) {
  const Program::Usage& usage = group.evaluator().usage();
  nb::dict d;
  d["start_ps"] = to_array(group.output_starts());
  d["end_ps"] = to_array(group.output_times());
  d["rows"] = rows_of(usage);
  d["kv_read_tokens"] = usage.kv_read_tokens;
  d["sequences"] = usage.sequences;
  d["scheduled_tokens"] = group.scheduled_tokens();
  d["offload"] = offload_counters(group.evaluator());
  nb::list tiers;
  if (group.tiers() != nullptr)
    for (const auto& [pool, bytes] : group.tiers()->moved()) tiers.append(nb::make_tuple(pool, bytes));
  d["tier_bytes"] = tiers;
  d["share_request"] = to_array(group.shares ? group.shares->request : std::vector<RequestId>{});
  d["share_ps"] = to_array(group.shares ? group.shares->ps : std::vector<Ps>{});
  return d;
}

nb::list attention_reach(const Simulation& s) {
  nb::list rows;
  for (const auto& group : s.groups()) {
    const Program& program = group->evaluator().program();
    for (const OperatorTime& time : program.busy_time(group->evaluator().usage())) {
      if (time.beyond_permille > 1000)
        rows.append(nb::make_tuple(group->config().index, time.op, time.beyond_permille));
    }
  }
  return rows;
}

namespace {

// The drafter's operators come behind the program's: those of its first pass, then those of the others.
void append_drafter_time(const Group& group, nb::list& rows) {
  const Drafter* drafter = group.evaluator().drafter();
  if (drafter == nullptr) return;
  auto first = static_cast<std::int32_t>(group.evaluator().program().operators().size()) + 1;
  const auto append = [&](const Program& program, const Program::Usage& usage) {
    for (const OperatorTime& time : program.busy_time(usage)) {
      nb::list ps;
      for (const std::int64_t value : time.ps) ps.append(value);
      rows.append(nb::make_tuple(group.config().index, first + time.op, nb::tuple(ps)));
    }
    first += static_cast<std::int32_t>(program.operators().size()) + 1;
  };
  append(drafter->first(), group.evaluator().drafter_usage().first);
  append(drafter->next(), group.evaluator().drafter_usage().next);
}

}  // namespace

nb::list busy_time(const Simulation& s) {
  nb::list rows;
  for (const auto& group : s.groups()) {
    const Program& program = group->evaluator().program();
    for (const OperatorTime& time : program.busy_time(group->evaluator().usage())) {
      nb::list ps;
      for (const std::int64_t value : time.ps) ps.append(value);
      rows.append(nb::make_tuple(group->config().index, time.op, nb::tuple(ps)));
    }
    append_drafter_time(*group, rows);
  }
  return rows;
}

}  // namespace llmsim
