// What a simulation produced, as columns for Python.
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "bindings/tables.h"
#include "results/latency_breakdown.h"
#include "results/tables.h"
#include "results/totals.h"

namespace llmsim {

namespace {

template <typename... Tables>
nb::dict types_of() {
  static_assert((lists_every_member<Tables>() && ...), "columns() lacks a member of a table");
  nb::dict types;
  (add_types<Tables>(types), ...);
  return types;
}

nb::dict types_of_totals(const std::vector<const char*>& names) {
  nb::dict types;
  for (const char* name : names) types[name] = type_name<std::int64_t>();
  return types;
}

nb::dict dict_of_totals(std::vector<TotalsColumn> totals) {
  nb::dict columns;
  for (TotalsColumn& total : totals) columns[total.name] = to_array(std::move(total.values));
  return columns;
}

}  // namespace

// The types of the columns that llmsim/columns.py declares as well, by table and column.
nb::dict column_types() {
  nb::dict tables;
  tables["requests"] = types_of<RequestProgress, RequestStates>();
  tables["kv_transfers"] = types_of<KvTransferTable>();
  tables["blame"] = types_of<LatencyBreakdown>();
  tables["steps"] = types_of<StepRecorder>();
  tables["series"] = types_of<Series>();
  tables["kv_tier_series"] = types_of<TierSeries>();
  tables["link_series"] = types_of<LinkSeries>();
  tables["network"] = types_of<LinkTable>();
  tables["transfers"] = types_of<TransferTable>();
  tables["node_spans"] = types_of<NodeSpanTable>();
  tables["counters"] = types_of_totals(group_total_names());
  nb::dict kv_tiers = types_of_totals(kv_tier_total_names());
  kv_tiers["name"] = "string";
  tables["kv_tiers"] = kv_tiers;
  return tables;
}

nb::dict schedule_columns(const ScheduleRecorder& recorder) {
  return to_dict(ScheduleTable(recorder));
}

nb::dict step_columns(const Simulation& s) { return to_dict(step_table(s)); }

nb::dict series_columns(Series series) { return to_dict(std::move(series)); }

nb::dict request_columns(const Simulation& s) {
  nb::dict columns;
  add_columns(columns, request_progress(s));
  add_columns(columns, request_states(s));
  return columns;
}

nb::object kv_transfer_columns(const Simulation& s) {
  if (s.kv_transfers() == nullptr) return nb::none();
  return to_dict(kv_transfer_table(s));
}

nb::dict network_columns(Simulation& s) {
  if (s.network() != nullptr) s.network()->catch_up(s.now());
  return to_dict(link_table(s));
}

nb::dict transfer_columns(const Simulation& s) {
  const bool recorded = s.network() != nullptr && s.network()->recorded() != nullptr;
  return to_dict(recorded ? TransferTable(*s.network()->recorded()) : TransferTable{});
}

nb::dict node_span_columns(const Simulation& s) { return to_dict(node_span_table(s)); }

namespace {

// The front end is a cause of its own where it takes time.
nb::dict blame_dict(BlamedLatency parts) {
  for (std::size_t i = 0; i < parts.frontend.size(); ++i) parts.api[i] -= parts.frontend[i];
  std::vector<Ps> frontend = std::move(parts.frontend);
  const bool any = !frontend.empty();
  nb::dict columns = to_dict(static_cast<LatencyBreakdown&&>(parts));
  if (any) columns["frontend_ps"] = to_array(std::move(frontend));
  return columns;
}

}  // namespace

nb::dict blame_columns(const Simulation& s) { return blame_dict(blame(s)); }

nb::dict first_token_blame_columns(const Simulation& s) {
  return blame_dict(blame(s, BlamedSpan::FirstToken));
}

nb::dict counter_columns(const Simulation& s) { return dict_of_totals(group_totals(s)); }

nb::dict link_series_columns(LinkSeries series) { return to_dict(std::move(series)); }

nb::dict kv_tier_series_columns(TierSeries series) { return to_dict(std::move(series)); }

nb::list kv_tier_rows(const Simulation& s) {
  nb::list rows;
  const std::vector<TotalsColumn> totals = kv_tier_totals(s);
  for (std::size_t pool = 0; pool < totals.front().values.size(); ++pool) {
    nb::dict row;
    row["name"] = s.kv_tiers()->pools()[pool].config().name;
    for (const TotalsColumn& total : totals) row[total.name] = total.values[pool];
    rows.append(row);
  }
  return rows;
}

}  // namespace llmsim
