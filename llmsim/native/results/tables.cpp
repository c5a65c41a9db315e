#include "results/tables.h"

namespace llmsim {

RequestProgress request_progress(const Simulation& s) {
  RequestProgress progress = s.log();
  for (std::size_t i = 0; i < s.log().last_streamed.size(); ++i) {
    if (s.log().first_streamed[i] != kNever) progress.first_token[i] = s.log().first_streamed[i];
    if (s.log().last_streamed[i] != kNever) progress.finish[i] = s.log().last_streamed[i];
  }
  const KvTransfers* kv_transfers = s.kv_transfers();
  if (kv_transfers == nullptr) return progress;
  for (RequestId request = 0; request < static_cast<RequestId>(progress.group.size()); ++request) {
    if (s.prompt_log()->knows(request)) progress.begin_with(*s.prompt_log(), request);
  }
  return progress;
}

RequestProgress engine_progress(const Simulation& s, std::span<const RequestId> requests) {
  RequestProgress progress = s.log().picked(requests);
  if (s.kv_transfers() == nullptr) return progress;
  const RequestProgress prompts = s.prompt_log()->picked(requests);
  for (RequestId row = 0; at(row) < requests.size(); ++row)
    if (prompts.knows(row)) progress.begin_with(prompts, row);
  return progress;
}

RequestStates request_states(const Simulation& s) {
  RequestStates states;
  states.arrival_ps.resize(s.sequences().size());
  states.status.resize(s.sequences().size());
  for (RequestId request = 0; request < static_cast<RequestId>(states.status.size()); ++request) {
    states.arrival_ps[request] = s.sequences()[request].arrival;
    states.status[request] = s.sequences()[request].status;
    if (s.kv_transfers() == nullptr || s.kv_transfers()->of(request).prefill_group < 0) continue;
    const auto prompt = static_cast<Status>((*s.prompt_sequences())[request].status);
    if (prompt == Status::kWaiting || prompt == Status::kRunning || prompt == Status::kParked)
      states.status[request] = static_cast<std::uint8_t>(prompt);
  }
  return states;
}

KvTransferTable kv_transfer_table(const Simulation& s) {
  KvTransferTable table;
  resize(table, s.sequences().size());
  for (std::size_t i = 0; i < table.prefill_group.size(); ++i) {
    const KvTransfer& kv_transfer = s.kv_transfers()->of(static_cast<RequestId>(i));
    table.prefill_group[i] = static_cast<std::int16_t>(kv_transfer.prefill_group);
    table.prefill_end_ps[i] = kv_transfer.prefilled;
    table.kv_reserved_ps[i] = kv_transfer.reserved;
    table.kv_landed_ps[i] = kv_transfer.landed;
    table.decode_cached_tokens[i] = kv_transfer.cached;
    table.kv_transfer_bytes[i] = kv_transfer.bytes;
    table.kv_due_bytes[i] = s.kv_transfers()->due_bytes(static_cast<RequestId>(i));
  }
  table.decode_scheduled_ps = s.log().scheduled;
  for (std::size_t i = 0; i < s.log().resumed.size(); ++i)
    if (s.log().resumed[i] != kNever) table.decode_scheduled_ps[i] = s.log().resumed[i];
  return table;
}

StepRecorder step_table(const Simulation& s) {
  StepRecorder all;
  for (const auto& group : s.groups()) {
    if (!group->steps) continue;
    append(all, *group->steps);
  }
  return all;
}

NodeSpanTable node_span_table(const Simulation& s) {
  NodeSpanTable all;
  for (const auto& group : s.groups())
    if (const NodeSpans* spans = group->costs().spans()) append(all, spans->table());
  return all;
}

LinkTable link_table(const Simulation& s) {
  LinkTable table;
  const SharedNetwork* network = s.network();
  for (std::size_t link = 0; network != nullptr && link < network->num_links(); ++link) {
    const NetworkLinkCounters counters =
        network->link_counters(static_cast<NetworkLinkId>(link), s.now());
    table.bytes_per_s.push_back(network->config().links[link].bytes_per_s);
    table.bytes.push_back(counters.bytes);
    table.transfers.push_back(counters.transfers);
    table.busy_ps.push_back(counters.busy);
  }
  return table;
}

}  // namespace llmsim
