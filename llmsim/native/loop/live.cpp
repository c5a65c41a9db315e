// Requests that are asked while a simulation runs.
#include "loop/simulation.h"

namespace llmsim {

namespace {

bool ended(const Sequence& sequence) {
  switch (static_cast<Status>(sequence.status)) {
    case Status::kFinished:
    case Status::kRejected:
    case Status::kCancelled:
    case Status::kRefused:
    case Status::kFailed:
      return true;
    default:
      return false;
  }
}

Sequence asked(const LiveRequest& request) {
  Sequence sequence;
  sequence.prompt_tokens = sequence.num_tokens = request.input_tokens;
  sequence.priority = request.priority;
  sequence.adapter = request.adapter;
  sequence.arrival = request.arrival;
  return sequence;
}

}  // namespace

LiveRequests& Simulation::live() {
  if (!live_) throw std::invalid_argument("the requests of this simulation are known");
  return *live_;
}

void Simulation::ask(RequestId row, LiveRequest request) {
  LiveRequests& live = this->live();
  if (row < 0 || at(row) >= sequences_.size())
    throw std::invalid_argument("row " + std::to_string(row) + " does not exist");
  if (request.arrival < now()) throw std::invalid_argument("a request arrives in the past");
  sequences_[row] = asked(request);
  sequences_.set_max_tokens(row, request.output_tokens);
  if (prompts_) prompts_->sequences[row] = asked(request);
  const Ps arrival = request.arrival;
  live.fill(row, std::move(request));
  clients_->ask(row, arrival);
}

std::vector<std::uint8_t> Simulation::statuses(std::span<const RequestId> rows) const {
  std::vector<std::uint8_t> found;
  for (const RequestId row : rows) {
    if (row < 0 || at(row) >= sequences_.size())
      throw std::invalid_argument("row " + std::to_string(row) + " does not exist");
    found.push_back(sequences_[row].status);
  }
  return found;
}

void Simulation::leave(RequestId row, Ps time) {
  live();
  clients_->leave(row, std::max(time, now()));
}

std::vector<RequestId> Simulation::reusable_rows() {
  live();
  std::vector<RequestId> rows;
  if (network_ && network_->num_in_flight() > 0) return rows;  // it may be the KV of some of them
  std::vector<bool> referred(sequences_.size(), false);
  for (const auto& group : groups_) group->mark_referred(referred);
  for (RequestId row = 0; at(row) < sequences_.size(); ++row)
    if (!referred[at(row)] && ended(sequences_[row]) &&
        (!prompts_ || ended(prompts_->sequences[row])))
      rows.push_back(row);
  frontend_->forget(rows);
  clients_->forget(rows);
  if (prompts_) prompts_->log.forget(rows);
  if (kv_transfers_) kv_transfers_->forget(rows);
  return rows;
}

}  // namespace llmsim
