#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "bindings/python/python_scheduler.h"
#include "scheduler/bookkeeping.h"

namespace nb = nanobind;

namespace llmsim {

using Scheduled = std::tuple<RequestId, std::int32_t, std::int32_t, std::int32_t, bool>;
using Emitted = std::tuple<RequestId, std::int32_t, bool>;

PythonScheduler::PythonScheduler(nb::object scheduler, Limits limits, SpeculationConfig speculation,
                                 SequenceTable& sequences, RequestLog& log)
    : scheduler_(std::move(scheduler)),
      limits_(limits),
      speculation_(std::move(speculation)),
      sequences_(sequences),
      log_(log),
      may_ask_again_(nb::hasattr(scheduler_, "asks_again")),
      queues_empty_batches_(nb::hasattr(scheduler_, "queues_empty_batches")),
      free_blocks_(limits.usable_blocks) {}

PythonScheduler::~PythonScheduler() {
  const nb::gil_scoped_acquire lock;
  scheduler_.reset();
}

PythonScheduler::Counts PythonScheduler::ask_gauges() const {
  return nb::cast<Counts>(scheduler_.attr("gauges")());
}

void PythonScheduler::keep(const Counts& counts) {
  std::tie(num_running_, num_waiting_, free_blocks_) = counts;
  counters_.peak_blocks_used =
      std::max(counters_.peak_blocks_used, limits_.usable_blocks - free_blocks_);
}

void PythonScheduler::add(RequestId request) {
  const nb::gil_scoped_acquire lock;
  sequences_[request].status = static_cast<std::uint8_t>(Status::kWaiting);
  ++num_waiting_;  // also where the calls are interrupted: it is here now
  scheduler_.attr("add")(request);
  keep(ask_gauges());
}

// Where it computes less of a request than it had said, what it had said was rejected (drafts).
void PythonScheduler::note_scheduled(Ps now, const Item& item) {
  Sequence& s = sequences_[item.request];
  const bool first = log_.scheduled[item.request] == kNever;
  const bool starts = s.status != static_cast<std::uint8_t>(Status::kRunning);
  s.status = static_cast<std::uint8_t>(Status::kRunning);
  if (starts && !first) counters_.recomputed_tokens -= item.computed_before;
  if (starts && first) counters_.started_with_tokens += item.computed_before;
  if (!starts) counters_.discarded_tokens += s.num_computed - item.computed_before;
  s.num_computed = item.computed_before + item.tokens;
  if (!first) return;
  log_.first_scheduled(item.request, now, item.computed_before);
  counters_.prompt_tokens += s.prompt_tokens;
  counters_.prefix_queried_tokens += s.prompt_tokens;
  counters_.prefix_hit_tokens += item.computed_before;
}

// All calls come first: where one of them is interrupted, nothing of ours has changed.
void PythonScheduler::schedule(Ps now, Batch& batch) {
  const nb::gil_scoped_acquire lock;
  batch.clear();
  const auto [items, preempted] =
      nb::cast<std::tuple<std::vector<Scheduled>, std::vector<RequestId>>>(
          scheduler_.attr("build")(now));
  keep(ask_gauges());
  for (const RequestId victim : preempted) {
    note_preemption(victim, sequences_[victim], log_, counters_);
    batch.preempted.push_back(victim);
  }
  for (const auto& [request, tokens, computed, drafts, emits] : items) {
    batch.items.push_back({request, tokens, computed, sequences_[request].epoch, drafts, emits});
    batch.features.add(batch.items.back());
    note_scheduled(now, batch.items.back());
  }
  batch.drafts_after = speculation_.on() ? speculation_.drafts_after(batch.items.size()) : 0;
}

bool PythonScheduler::asks_again() const {
  if (!may_ask_again_) return false;
  const nb::gil_scoped_acquire lock;
  return nb::cast<bool>(scheduler_.attr("asks_again")());
}

void PythonScheduler::abort(RequestId request) {
  const nb::gil_scoped_acquire lock;
  scheduler_.attr("abort")(request);
  keep(ask_gauges());
  note_cancellation(sequences_[request], counters_);
}

void PythonScheduler::count_drafts(const Batch& batch) {
  verified_.clear();
  if (batch.features.drafts == 0) return;
  for (const Item& item : batch.items) {
    const Sequence& s = sequences_[item.request];
    if (item.drafts == 0 || s.status != static_cast<std::uint8_t>(Status::kRunning)) continue;
    counters_.speculation.add(
        item.drafts, speculation_.acceptance.accepted(item.request, s.emitted(), item.drafts));
    verified_.push_back(item.request);
  }
  std::sort(verified_.begin(), verified_.end());
}

void PythonScheduler::update(const Batch& batch, std::vector<RequestId>& finished) {
  const nb::gil_scoped_acquire lock;
  const auto emitted = nb::cast<std::vector<Emitted>>(scheduler_.attr("complete")());
  keep(ask_gauges());
  count_drafts(batch);
  for (const auto& [request, count, is_finished] : emitted) {
    if (count > 0) log_.emit(request, count);
    sequences_[request].num_tokens += count;
    counters_.generation_tokens += count;
    if (std::binary_search(verified_.begin(), verified_.end(), request))
      counters_.speculation.emitted += count;
    if (is_finished) finish(request, finished);
  }
}

// What it had scheduled beyond its last token is not needed; what a preempted one had lost is not
// computed again.
void PythonScheduler::finish(RequestId request, std::vector<RequestId>& finished) {
  Sequence& s = sequences_[request];
  const std::int32_t needed = s.num_tokens - 1;
  if (s.status == static_cast<std::uint8_t>(Status::kRunning)) {
    counters_.discarded_tokens += std::max(0, s.num_computed - needed);
  } else {
    counters_.recomputed_tokens -= needed;
  }
  s.status = static_cast<std::uint8_t>(Status::kFinished);
  ++counters_.finished;
  log_.finished(request);
  finished.push_back(request);
}

}  // namespace llmsim
