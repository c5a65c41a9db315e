// What groups counted and what their devices did, as columns for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace llmsim {

// Per group: how many drafts of each position held.
nb::list accepted_at(const Simulation& s) {
  nb::list groups;
  for (const auto& group : s.groups())
    groups.append(to_array(group->scheduler().counters().speculation.accepted_at));
  return groups;
}

nb::object draft_columns(const Simulation& s) {
  const RequestLog::Drafts& drafts = s.log().drafts;
  if (drafts.verified.empty()) return nb::none();
  nb::dict columns;
  columns["drafted_tokens"] = to_array(drafts.drafted);
  columns["verified_tokens"] = to_array(drafts.verified);
  columns["accepted_tokens"] = to_array(drafts.accepted);
  columns["committed_tokens"] = to_array(drafts.committed);
  return columns;
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

nb::dict costs_activity(const GroupCosts& costs) {
  const Program::Usage& usage = costs.usage();
  nb::dict d;
  d["rows"] = rows_of(usage);
  d["kv_read_tokens"] = usage.kv_read_tokens;
  d["sequences"] = usage.sequences;
  d["offload"] = offload_counters(costs);
  nb::list passes;  // of a drafter: the first ones, then the others
  if (costs.drafter() != nullptr) {
    const Drafter::Usage& drafts = costs.drafter_usage();
    for (const Program::Usage* pass : {&drafts.first, &drafts.next}) {
      nb::dict p;
      p["rows"] = rows_of(*pass);
      p["kv_read_tokens"] = pass->kv_read_tokens;
      p["sequences"] = pass->sequences;
      passes.append(p);
    }
  }
  d["draft_passes"] = passes;
  d["m2n_bytes"] = nb::make_tuple(costs.m2n.sent_bytes, costs.m2n.received_bytes);
  return d;
}

// When a group's devices worked, on what, and for whom.
nb::dict group_activity(const Group& group) {
  nb::dict d = costs_activity(group.costs());
  const CompletedSteps& steps = group.completed();
  std::vector<Ps> starts(steps.size());
  for (std::size_t step = 0; step < starts.size(); ++step) starts[step] = steps.start(step);
  d["start_ps"] = to_array(std::move(starts));
  d["end_ps"] = to_array(steps.ends());
  d["scheduled_tokens"] = group.scheduled_tokens();
  nb::list tiers;
  if (group.moves() != nullptr)
    for (const auto& [pool, bytes] : group.moves()->moved())
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
  auto first = static_cast<std::int32_t>(group.costs().program().operators().size()) + kTimesBeside;
  const auto append = [&](const Program& program, const Program::Usage& usage) {
    for (const OperatorTime& time : program.busy_time(usage)) {
      nb::list ps;
      for (const int128 value : time.ps) ps.append(to_int(value));
      rows.append(nb::make_tuple(group.config().index, first + time.op, nb::tuple(ps)));
    }
    first += static_cast<std::int32_t>(program.operators().size()) + kTimesBeside;
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
