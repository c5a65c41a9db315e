// Python bindings of the serving core: conversions and the parts that make up the module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "loop/simulation.h"

namespace llmsim {

// To be called now and then by code that works long without the interpreter's lock: raises
// KeyboardInterrupt, or what else a handler of Python raises, if a signal has come.
std::function<void()> signal_check();

namespace nb = nanobind;

template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
std::vector<T> to_vector(const In<T>& array) {
  return std::vector<T>(array.data(), array.data() + array.shape(0));
}

// Copies what the simulation keeps and takes over what was made for Python, so that it outlives the
// simulation.
template <typename T>
Out<T> to_array(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  if (kept->empty()) kept->reserve(1);  // an array without data is none
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Out<T>(kept->data(), {kept->size()}, owner);
}

// A Python object that may be copied and dropped without the interpreter's lock.
using SharedObject = std::shared_ptr<nb::object>;
SharedObject share(nb::object object);

// A Python integer of any size.
inline nb::object to_int(int128 value) {
  const nb::int_ high(static_cast<std::int64_t>(value >> 64)),
      low(static_cast<std::uint64_t>(value)), bits(64);
  return (high << bits) | low;
}

// (tokens, computed before) of each sequence, or (tokens, computed before, drafts among the
// tokens).
using Items = std::vector<std::vector<std::int64_t>>;
// Without items: what a rank without work runs.
// `adapters`: the counts of AdapterUse; none: no request has one.
Batch batch_of(const Items& items, const std::vector<std::int32_t>& adapters = {});

void bind_build(nb::module_& m);
void bind_content_hasher(nb::module_& m);
void bind_live_config(nb::module_& m);
void bind_live(nb::class_<Simulation>& simulation);
void bind_program(nb::module_& m);
void bind_configs(nb::module_& m);
void bind_expanded(nb::module_& m);
void bind_network(nb::module_& m);
void bind_routing(nb::module_& m);
void bind_policies(nb::module_& m);
void bind_kv_tiers(nb::module_& m);
void bind_kv_offloading(nb::module_& m);
void bind_pools_below(nb::module_& m);
void bind_engine_turns(nb::module_& m);
void bind_offload(nb::module_& m);
void bind_afd(nb::module_& m);
void bind_step_graph(nb::module_& m);
void bind_membership(nb::module_& m);
void bind_simulation_config(nb::module_& m);
void bind_simulation(nb::module_& m);

// The type of every column that llmsim/columns.py declares, by table and column.
nb::dict column_types();
// Columns of a simulation as dictionaries of numpy arrays; units in llmsim/columns.py.
nb::dict schedule_columns(const ScheduleRecorder& recorder);
nb::dict step_columns(const Simulation& simulation);
nb::dict series_columns(Series series);
nb::dict kv_tier_series_columns(TierSeries series);
nb::dict link_series_columns(LinkSeries series);
// One dictionary for each pool of KV below the groups.
nb::list kv_tier_rows(const Simulation& simulation);
nb::dict request_columns(const Simulation& simulation);
// None where nothing is disaggregated.
nb::object kv_transfer_columns(const Simulation& simulation);
nb::dict network_columns(Simulation& simulation);
nb::dict transfer_columns(const Simulation& simulation);
nb::dict node_span_columns(const Simulation& simulation);
nb::dict counter_columns(const Simulation& simulation);
nb::list accepted_at(const Simulation& simulation);
// Per request, what became of its drafts; None where no group speculates.
nb::object draft_columns(const Simulation& simulation);
// Where the latency of each finished request went.
nb::dict blame_columns(const Simulation& simulation);
nb::dict first_token_blame_columns(const Simulation& simulation);
nb::list busy_time(const Simulation& simulation);
// (group, operator, how far its attention tables were continued, in permille of their last point),
// where they were.
nb::list attention_reach(const Simulation& simulation);
nb::list table_rows(const Simulation& simulation);
nb::dict group_activity(const Group& group);
// What a group copied and computed outside of its devices; zeros for one that does not.
nb::dict offload_counters(const GroupCosts& costs);
// What operators and copies of a group moved: a part of its activity.
nb::dict costs_activity(const GroupCosts& costs);
}  // namespace llmsim
