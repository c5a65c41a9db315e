#include "frontend/clients.h"

#include <algorithm>

#include "frontend/frontend.h"
#include "frontend/live_requests.h"

namespace llmsim {

Clients::Clients(std::shared_ptr<const Source> source, SequenceTable& sequences, Frontend& frontend)
    : source_(std::move(source)),
      config_(source_->clients),
      sequences_(sequences),
      frontend_(frontend),
      free_(config_.count),
      num_open_(static_cast<std::int64_t>(source_->arrival_ps.size())) {
  const std::size_t rows = source_->arrival_ps.size();
  if (!config_.timeout.empty() || !config_.cancel_after_tokens.empty())
    gave_up_.assign(rows, false);
  for (std::size_t row = 0; row < rows; ++row)
    if (source_->arrival_ps[row] >= 0) timed_.push_back(static_cast<RequestId>(row));
}

Outlook Clients::outlook(const Event& event) const {
  bool stale = false;
  if (event.phase() == Phase::kGiveUp) stale = !awaited(static_cast<RequestId>(event.argument()));
  if (event.phase() == Phase::kClientIdle) stale = next_timed_ == timed_.size();  // nothing to ask
  return stale ? Outlook::kStale : Outlook::kDue;
}

void Clients::on_event(Ps now, Phase phase, std::uint32_t row) {
  const auto request = static_cast<RequestId>(row);
  if (phase == Phase::kArrival) return arrive(request, now);
  if (phase == Phase::kGiveUp) return give_up(request, now);
  ++free_;
  if (!arrival_pending_) post_next_arrival();
}

bool Clients::take_client() {
  if (!closed_loop()) return true;
  if (free_ == 0) return false;
  --free_;
  return true;
}

bool Clients::awaited(RequestId request) const {
  return !gave_up(request) && frontend_.under_way(request);
}

void Clients::post_next_arrival() {
  arrival_pending_ = false;
  if (next_timed_ == timed_.size() || !take_client()) return;
  const RequestId request = timed_[next_timed_++];
  Ps& arrival = sequences_[request].arrival;
  if (closed_loop()) arrival = std::max(arrival, events().now());  // all clients may have been busy
  arrival_pending_ = true;
  post_row(arrival, Phase::kArrival, request);
}

bool Clients::send(RequestId request, Ps now) {
  const Verdict verdict = frontend_.arrive(request, source_->model[at(request)], now);
  if (verdict == Verdict::kDelivered) return true;
  const Status status = verdict == Verdict::kRefused ? Status::kRefused : Status::kRejected;
  sequences_[request].status = static_cast<std::uint8_t>(status);
  --num_open_;
  end_session(request, status, now);
  return false;
}

void Clients::send_again(std::span<const RequestId> requests, Ps now) {
  for (const RequestId request : requests) send(request, now);
}

void Clients::arrive(RequestId request, Ps now) {
  if (arrival_pending_ && request == timed_[next_timed_ - 1]) post_next_arrival();
  if (!send(request, now)) return;
  const bool waits_for_ever = config_.timeout.empty() || config_.timeout[at(request)] == kNever;
  const Ps deadline = waits_for_ever ? kEndOfTime : now + config_.timeout[at(request)];
  if (deadline < kHorizon) post_row(deadline, Phase::kGiveUp, request);
}

void Clients::give_up(RequestId request, Ps now) {
  gave_up_[at(request)] = true;
  --num_open_;
  end_session(request, Status::kCancelled, now);
  frontend_.give_up(request, now);
}

void Clients::answered(std::span<const RequestId> finished, Ps now) {
  for (const RequestId request : finished) {
    if (gave_up(request)) continue;  // finished before its engine heard of it: nobody waits for it
    --num_open_;
    const std::int32_t next = source_->next_call[at(request)];
    if (next < 0) {
      end_session(request, Status::kPending, now);
      continue;
    }
    sequences_[next].arrival = now + source_->tool_delay_ps[at(request)];
    post_row(sequences_[next].arrival, Phase::kArrival, next);
  }
}

// Later calls of its session never come.
void Clients::failed(RequestId request, Ps now) {
  if (gave_up(request)) return;
  --num_open_;
  end_session(request, Status::kFailed, now);
}

void Clients::forget(const std::vector<RequestId>& requests) {
  for (const RequestId request : requests) gave_up_[at(request)] = false;
}

void Clients::received(RequestId request, std::int32_t tokens, Ps now) {
  if (live_ != nullptr && !gave_up(request)) live_->received(request, tokens, now);
  const std::int32_t enough = config_.cancel_after_tokens[at(request)];
  if (enough > 0 && tokens >= enough && awaited(request)) give_up(request, now);
}

void Clients::end_session(RequestId request, Status rest, Ps now) {
  if (live_ != nullptr && rest != Status::kPending) live_->ended(request, rest, now);
  std::int32_t next = source_->next_call[at(request)];
  for (; next >= 0; next = source_->next_call[at(next)]) {
    sequences_[next].status = static_cast<std::uint8_t>(rest);
    --num_open_;
  }
  if (!closed_loop()) return;
  const Ps think = config_.think.empty() ? 0 : config_.think[at(request)];
  post_row(now + think, Phase::kClientIdle, request);
}

}  // namespace llmsim
