// What a simulation produced, as columns for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "results/latency_breakdown.h"

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
    all.start_ps.resize(all.group.size(),
                        kNever);  // of steps in flight when the run was interrupted
    all.end_ps.resize(all.group.size(), kNever);
  }
  nb::dict d;
  d["group"] = to_array(std::move(all.group));
  d["schedule_ps"] = to_array(std::move(all.schedule_ps));
  d["start_ps"] = to_array(std::move(all.start_ps));
  d["end_ps"] = to_array(std::move(all.end_ps));
  d["tokens"] = to_array(std::move(all.tokens));
  d["padded_tokens"] = to_array(std::move(all.padded_tokens));
  d["prefill_tokens"] = to_array(std::move(all.prefill_tokens));
  d["sequences"] = to_array(std::move(all.sequences));
  d["decode_sequences"] = to_array(std::move(all.decode_sequences));
  d["running"] = to_array(std::move(all.running));
  d["waiting"] = to_array(std::move(all.waiting));
  d["free_blocks"] = to_array(std::move(all.free_blocks));
  d["preempted"] = to_array(std::move(all.preempted));
  return d;
}

nb::dict series_columns(Series series) {
  nb::dict d;
  d["time_ps"] = to_array(std::move(series.time_ps));
  d["group"] = to_array(std::move(series.group));
  d["running"] = to_array(std::move(series.running));
  d["waiting"] = to_array(std::move(series.waiting));
  d["kv_blocks_used"] = to_array(std::move(series.kv_blocks_used));
  d["kv_blocks_cached"] = to_array(std::move(series.kv_blocks_cached));
  d["prompt_tokens"] = to_array(std::move(series.prompt_tokens));
  d["generation_tokens"] = to_array(std::move(series.generation_tokens));
  d["hit_tokens"] = to_array(std::move(series.hit_tokens));
  d["queried_tokens"] = to_array(std::move(series.queried_tokens));
  d["preemptions"] = to_array(std::move(series.preemptions));
  return d;
}

namespace {

// What a client sees of a disaggregated request begins on the prefill side and ends on the decode
// side.
struct Progress {
  explicit Progress(const RequestLog& log)
      : queued(log.queued),
        scheduled(log.scheduled),
        cancelled(log.cancelled),
        cached(log.cached_tokens),
        preemptions(log.preemptions) {}

  // Where its prompt is computed elsewhere.
  void begin_with(const RequestLog& prompts, const KvTransfers& kv_transfers, RequestId request) {
    cancelled[request] = kv_transfers.cancelled(request);
    if (queued[request] == kNever ||
        (prompts.queued[request] != kNever && prompts.queued[request] < queued[request]))
      queued[request] = prompts.queued[request];
    scheduled[request] = prompts.scheduled[request];
    cached[request] = prompts.cached_tokens[request];
    preemptions[request] += prompts.preemptions[request];
  }

  std::vector<Ps> queued, scheduled, cancelled;
  std::vector<std::int32_t> cached, preemptions;
};

// Where each request stands, on whichever side it is.
std::vector<std::uint8_t> statuses(const Simulation& s) {
  std::vector<std::uint8_t> status(s.sequences().size());
  for (RequestId request = 0; request < static_cast<RequestId>(status.size()); ++request) {
    status[request] = s.sequences()[request].status;
    if (s.kv_transfers() == nullptr || s.kv_transfers()->of(request).prefill_group < 0) continue;
    const auto prompt = static_cast<Status>((*s.prompt_sequences())[request].status);
    if (prompt == Status::kWaiting || prompt == Status::kRunning || prompt == Status::kParked)
      status[request] = static_cast<std::uint8_t>(prompt);
  }
  return status;
}

}  // namespace

nb::dict request_columns(const Simulation& s) {
  const RequestLog& log = s.log();
  nb::dict d;
  d["group"] = to_array(log.group);
  d["status"] = to_array(statuses(s));
  d["arrival_ps"] = to_array(s.arrivals().arrival_ps);
  d["first_token_ps"] = to_array(log.first_token);
  d["finish_ps"] = to_array(log.finish);
  d["emitted_tokens"] = to_array(log.emitted_tokens);
  Progress progress(log);
  const KvTransfers* kv_transfers = s.kv_transfers();
  const auto end = static_cast<RequestId>(kv_transfers == nullptr ? 0 : log.queued.size());
  for (RequestId request = 0; request < end; ++request) {
    if (kv_transfers->of(request).prefill_group >= 0)
      progress.begin_with(*s.prompt_log(), *kv_transfers, request);
  }
  d["queued_ps"] = to_array(std::move(progress.queued));
  d["scheduled_ps"] = to_array(std::move(progress.scheduled));
  d["cancelled_ps"] = to_array(std::move(progress.cancelled));
  d["cached_tokens"] = to_array(std::move(progress.cached));
  d["preemptions"] = to_array(std::move(progress.preemptions));
  return d;
}

nb::object kv_transfer_columns(const Simulation& s) {
  if (s.kv_transfers() == nullptr) return nb::none();
  const std::size_t n = s.sequences().size();
  std::vector<std::int16_t> prefill_group(n);
  std::vector<Ps> prefill_end(n), reserved(n), landed(n);
  std::vector<std::int32_t> cached(n);
  std::vector<std::int64_t> bytes(n), due(n);
  for (std::size_t i = 0; i < n; ++i) {
    const KvTransfer& kv_transfer = s.kv_transfers()->of(static_cast<RequestId>(i));
    prefill_group[i] = static_cast<std::int16_t>(kv_transfer.prefill_group);
    prefill_end[i] = kv_transfer.prefilled;
    reserved[i] = kv_transfer.reserved;
    landed[i] = kv_transfer.landed;
    cached[i] = kv_transfer.cached;
    bytes[i] = kv_transfer.bytes;
    due[i] = s.kv_transfers()->due_bytes(static_cast<RequestId>(i));
  }
  nb::dict d;
  d["prefill_group"] = to_array(std::move(prefill_group));
  d["prefill_end_ps"] = to_array(std::move(prefill_end));
  d["kv_reserved_ps"] = to_array(std::move(reserved));
  d["kv_landed_ps"] = to_array(std::move(landed));
  d["decode_scheduled_ps"] = to_array(s.log().scheduled);
  d["decode_cached_tokens"] = to_array(std::move(cached));
  d["kv_transfer_bytes"] = to_array(std::move(bytes));
  d["kv_due_bytes"] = to_array(std::move(due));
  return d;
}

nb::dict network_columns(const Simulation& s) {
  nb::dict d;
  const SharedNetwork* network = s.network();
  std::vector<std::int64_t> bytes, transfers;
  std::vector<Ps> busy;
  for (std::size_t link = 0; network != nullptr && link < network->num_links(); ++link) {
    const NetworkLinkCounters counters =
        network->link_counters(static_cast<NetworkLinkId>(link), s.now());
    bytes.push_back(counters.bytes);
    transfers.push_back(counters.transfers);
    busy.push_back(counters.busy);
  }
  d["bytes"] = to_array(bytes);
  d["transfers"] = to_array(transfers);
  d["busy_ps"] = to_array(busy);
  return d;
}

nb::dict blame_columns(const Simulation& s) {
  LatencyBreakdown b = blame(s);
  nb::dict d;
  d["api_ps"] = to_array(std::move(b.api));
  d["queue_ps"] = to_array(std::move(b.queue));
  d["wait_ps"] = to_array(std::move(b.wait));
  d["prefill_ps"] = to_array(std::move(b.prefill));
  d["decode_ps"] = to_array(std::move(b.decode));
  d["communication_ps"] = to_array(std::move(b.communication));
  d["host_ps"] = to_array(std::move(b.host));
  d["kv_transfer_ps"] = to_array(std::move(b.kv_transfer));
  d["preemption_ps"] = to_array(std::move(b.preemption));
  d["abandoned_ps"] = to_array(std::move(b.abandoned));
  return d;
}

}  // namespace llmsim
