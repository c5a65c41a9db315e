#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <unordered_set>

#include "bindings/bindings.h"
#include "bindings/python/python_scheduler.h"
#include "scheduler/bookkeeping.h"

namespace nb = nanobind;

namespace llmsim {

using Scheduled = std::tuple<RequestId, std::int32_t, std::int32_t, std::int32_t, bool>;

static bool says(const nb::object& scheduler, const char* attribute) {
  return nb::hasattr(scheduler, attribute) && nb::cast<bool>(scheduler.attr(attribute));
}

static KvCacheConfig keys_alone(KvCacheConfig kv) {
  kv.num_blocks = 1;
  return kv;
}

PoolsBelow::PoolsBelow(const KvCacheConfig& kv, SequenceTable& sequences, GroupTiers* tiers)
    : keys_(keys_alone(kv), sequences), tiers_(tiers) {
  if (tiers->write() == TierWrite::kBack)
    throw std::invalid_argument(
        "a scheduler in Python does not say which blocks lose their content");
  keys_.use_tiers(*tiers);
}

void PoolsBelow::load(RequestId request, std::int32_t cached, std::int32_t tokens) {
  const bool parked = parks() && tokens > 0;
  if (parked) tiers_->open_load(request);
  keys_.below().recall(request, cached, tokens);
  if (!parked) return;
  tiers_->close_load();
  ++num_parked_;
}

PythonScheduler::PythonScheduler(nb::object scheduler, const KvCacheConfig& kv,
                                 SpeculationConfig speculation, const LoraSlotsConfig& lora,
                                 SequenceTable& sequences, RequestLog& log)
    : scheduler_(std::move(scheduler)),
      kv_(kv),
      limits_{kv.max_model_len, kv.block_size, kv.num_blocks - 1,
              2 * speculation.tokens + speculation.lookahead},
      speculation_(std::move(speculation)),
      lora_slots_(lora),
      sequences_(sequences),
      log_(log),
      may_ask_again_(nb::hasattr(scheduler_, "asks_again")),
      queues_empty_batches_(nb::hasattr(scheduler_, "queues_empty_batches")),
      connects_(says(scheduler_, "connects")),
      keeps_finished_(says(scheduler_, "keeps_finished")),
      runs_loop_(nb::hasattr(scheduler_, "go_on")),
      free_blocks_(limits_.usable_blocks) {
  keep_turn();
}

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
  const auto elsewhere = elsewhere_.find(item.request);
  const std::int32_t cached =
      elsewhere == elsewhere_.end() ? item.computed_before : elsewhere->second;
  log_.first_scheduled(item.request, now, cached);
  log_.began_with(item.request, item.computed_before);
  if (elsewhere == elsewhere_.end()) {
    counters_.prompt_tokens += s.prompt_tokens;
    counters_.prompt_cached_tokens += std::min(cached, s.prompt_tokens);
  } else {
    elsewhere_.erase(elsewhere);
  }
  counters_.prefix_queried_tokens += s.prompt_tokens;
  counters_.prefix_hit_tokens += cached;
  counters_.first_queried_tokens += s.prompt_tokens;
  counters_.first_hit_tokens += cached;
}

// All calls come first: where one of them is interrupted, nothing of ours has changed.
void PythonScheduler::schedule(Ps now, Batch& batch) {
  const nb::gil_scoped_acquire lock;
  batch.clear();
  const auto [items, preempted] =
      nb::cast<std::tuple<std::vector<Scheduled>, std::vector<RequestId>>>(
          scheduler_.attr("build")(now));
  keep(ask_gauges());
  keep_turn();
  for (const RequestId victim : preempted) {
    note_preemption(victim, sequences_[victim], log_, counters_);
    batch.preempted.push_back(victim);
  }
  for (const auto& [request, tokens, computed, drafts, emits] : items) {
    const Sequence& s = sequences_[request];
    // Who starts has proposed nothing yet.
    const bool padded = drafts > 0 && s.status != static_cast<std::uint8_t>(Status::kRunning);
    batch.items.push_back({request, tokens, computed, s.epoch, drafts, emits, padded});
    batch.features.add(batch.items.back());
    note_scheduled(now, batch.items.back());
  }
  if (lora_slots_.on()) batch.features.lora = lora_slots_.begin_step(batch.items, sequences_);
  batch.drafts_after = speculation_.on() ? speculation_.drafts_after(batch.items.size()) : 0;
}

void PythonScheduler::take_reserved(std::vector<Reserved>& out) {
  const nb::gil_scoped_acquire lock;
  const auto reserved = nb::cast<std::vector<std::tuple<RequestId, std::int32_t>>>(
      scheduler_.attr("take_reserved")());
  for (const auto& [request, cached] : reserved) {
    sequences_[request].remote_kv = false;
    elsewhere_[request] = cached;
    out.push_back({request, cached});
  }
  num_bound_ += static_cast<std::int32_t>(reserved.size());
}

bool PythonScheduler::transferred(RequestId request) {
  const nb::gil_scoped_acquire lock;
  --num_bound_;
  const bool failed = static_cast<bool>(nb::bool_(scheduler_.attr("transferred")(request)));
  keep(ask_gauges());
  if (failed) note_failure(sequences_[request], counters_);
  return !failed;
}

void PythonScheduler::use_tiers(GroupTiers* tiers) {
  const nb::gil_scoped_acquire lock;
  below_ = std::make_shared<PoolsBelow>(kv_, sequences_, tiers);
  scheduler_.attr("use_tiers")(below_);
}

void PythonScheduler::use_copies(GroupCopies& copies) {
  const nb::gil_scoped_acquire lock;
  copies_ = std::make_shared<CopiesBelow>(copies);
  scheduler_.attr("use_copies")(copies_);
}

void PythonScheduler::keep_turn() {
  if (!runs_loop_) return;
  turn_ = nb::cast<EngineTurn>(scheduler_.attr("turn"));
  if (turn_ == EngineTurn::kTakes) taken_from_ = nb::cast<Ps>(scheduler_.attr("taken_from_ps"));
}

bool PythonScheduler::has_work() const {
  const nb::gil_scoped_acquire lock;
  return nb::cast<bool>(scheduler_.attr("has_work")());
}

void PythonScheduler::go_on() {
  const nb::gil_scoped_acquire lock;
  scheduler_.attr("go_on")();
  keep_turn();
}

bool PythonScheduler::pending() const {
  if (copies_ == nullptr) return false;
  const nb::gil_scoped_acquire lock;
  return nb::cast<bool>(scheduler_.attr("pending")());
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

std::int32_t PythonScheduler::accepted(const Item& item) const {
  if (item.drafts == 0 || item.padded) return 0;
  return speculation_.acceptance.accepted(item.request, sequences_[item.request].emitted(),
                                          item.drafts);
}

// Whoever got tokens has verified its drafts, though it may have lost its blocks meanwhile.
void PythonScheduler::count_drafts(const Batch& batch, const std::vector<Emitted>& emitted) {
  verified_.clear();
  if (batch.features.drafts == 0) return;
  std::unordered_set<RequestId> receivers;
  for (const auto& [request, count, is_finished] : emitted)
    if (count > 0) receivers.insert(request);
  for (const Item& item : batch.items) {
    if (item.drafts == 0 || !receivers.contains(item.request)) continue;
    counters_.speculation.add(item.drafts, accepted(item));
    verified_.push_back(item.request);
  }
  std::sort(verified_.begin(), verified_.end());
}

void PythonScheduler::update(const Batch& batch, std::vector<RequestId>& finished) {
  const nb::gil_scoped_acquire lock;
  const auto emitted = nb::cast<std::vector<Emitted>>(scheduler_.attr("complete")());
  keep(ask_gauges());
  keep_turn();
  if (below_ != nullptr) store_computed(batch);
  count_drafts(batch, emitted);
  for (const auto& [request, count, is_finished] : emitted) {
    if (count > 0) log_.emit(request, count);
    sequences_[request].num_tokens += count;
    if (!keeps_finished_) counters_.generation_tokens += count;  // else computed again elsewhere
    if (std::binary_search(verified_.begin(), verified_.end(), request))
      counters_.speculation.emitted += count;
    if (is_finished) finish(request, finished);
  }
}

// What a batch that completes has computed of requests that were not preempted meanwhile.
void PythonScheduler::store_computed(const Batch& batch) {
  for (const Item& item : batch.items) {
    const Sequence& s = sequences_[item.request];
    if (s.epoch != item.epoch || s.status != static_cast<std::uint8_t>(Status::kRunning)) continue;
    const std::int32_t after = item.computed_before + item.tokens - (item.drafts - accepted(item));
    below_->computed(item.request, item.computed_before, after);
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
  num_bound_ += keeps_finished_ ? 1 : 0;
  s.status = static_cast<std::uint8_t>(Status::kFinished);
  ++counters_.finished;
  log_.finished(request);
  finished.push_back(request);
}

void bind_pools_below(nb::module_& m) {
  nb::class_<PoolsBelow>(m, "PoolsBelow",
                         "What a scheduler in Python sees of the pools of KV below its group.")
      .def("find", &PoolsBelow::find, nb::arg("request"), nb::arg("cached"),
           "Tokens after the first `cached` ones that the pools hold.")
      .def("load", &PoolsBelow::load, nb::arg("request"), nb::arg("cached"), nb::arg("tokens"),
           "The request, just admitted, takes `tokens` tokens behind the first `cached` ones.")
      .def_prop_ro("chunk_tokens", &PoolsBelow::chunk_tokens, "Tokens of a chunk.")
      .def_prop_ro("parks", &PoolsBelow::parks,
                   "Whether who takes something is parked until it is there.");
  nb::class_<CopiesBelow>(m, "CopiesBelow",
                          "What a scheduler in Python that offloads KV calls for its copies.")
      .def("load", &CopiesBelow::load, nb::arg("job"), nb::arg("request"), nb::arg("tokens"),
           "A copy of so many tokens from host memory; jobs have ever larger numbers.")
      .def("store", &CopiesBelow::store, nb::arg("job"), nb::arg("request"), nb::arg("tokens"),
           "A copy of so many tokens to host memory.")
      .def("load_in_step", &CopiesBelow::load_in_step, nb::arg("job"), nb::arg("request"),
           nb::arg("tokens"), "A load for which the step that is formed waits.")
      .def("flush", &CopiesBelow::flush, nb::arg("job"),
           "The step that is formed waits for this store.");
}

void bind_engine_turns(nb::module_& m) {
  nb::enum_<EngineTurn>(m, "EngineTurn", "Where the loop of a rank's engine stands.")
      .value("LOOKS", EngineTurn::kLooks, "For what has arrived, in front of its next step.")
      .value("AWAITS", EngineTurn::kAwaits, "The output of its oldest batch.")
      .value("TAKES", EngineTurn::kTakes, "That of its oldest call, which gave no batch.")
      .value("DUMMY", EngineTurn::kDummy, "Until its devices run a dummy batch.")
      .value("AGREES", EngineTurn::kAgrees,
             "With the other data-parallel ranks, whether any of them has work.");
}

}  // namespace llmsim
