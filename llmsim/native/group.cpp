#include "group.h"

#include <algorithm>

namespace llmsim {

Group::Group(GroupConfig config, std::unique_ptr<Builder> builder, std::unique_ptr<Evaluator> evaluator,
             SequenceTable& sequences, RequestLog& log)
    : config_(config),
      builder_(std::move(builder)),
      evaluator_(std::move(evaluator)),
      sequences_(sequences),
      log_(log),
      slots_(static_cast<std::size_t>(config.depth)) {}

bool Group::can_ever_run(const Sequence& sequence, std::int32_t max_tokens) const {
  const Limits limits = builder_->limits();
  if (sequence.prompt_tokens >= limits.max_model_len) return false;
  // The last token that is sampled needs no slot of its own.
  const std::int64_t most =
      std::min<std::int64_t>(std::int64_t{sequence.prompt_tokens} + max_tokens, limits.max_model_len);
  return ceil_div(most - 1, limits.block_size) <= limits.usable_blocks;
}

void Group::receive(RequestId request, Ps now) {
  log_.group[request] = static_cast<std::int16_t>(config_.index);
  log_.queued[request] = now + config_.api_latency;
  if (!can_ever_run(sequences_[request], sequences_.max_tokens(request))) {
    sequences_[request].status = static_cast<std::uint8_t>(Status::kRejected);
    rejected_.push_back(request);
    return;
  }
  sequences_[request].status = static_cast<std::uint8_t>(Status::kWaiting);
  inbox_.push_back({now + config_.api_latency, request});
  ++outstanding_;
}

void Group::drain_inbox(Ps now) {
  while (!inbox_.empty() && inbox_.front().seen <= now) {
    builder_->add(inbox_.front().request);
    inbox_.pop_front();
  }
}

void Group::pump(Ps now) {
  drain_inbox(now);
  fill_slots(now);
  if (idle() && builder_->has_requests()) ++idle_with_work_;
}

void Group::fill_slots(Ps now) {
  while (num_in_flight_ < slots_.size() && !nothing_to_build_ && builder_->has_requests()) {
    Slot& slot = slots_[(oldest_ + num_in_flight_) % slots_.size()];
    log_.begin_build(static_cast<std::int32_t>(output_times_.size() + num_in_flight_));
    builder_->build(now, slot.batch);
    if (schedule) schedule->built(now, *builder_, slot.batch);
    if (slot.batch.empty()) {
      if (num_in_flight_ == 0 && !slot.batch.preempted.empty()) continue;  // its own victim: admit it again
      nothing_to_build_ = num_in_flight_ > 0;
      return;
    }
    slot.scheduled = now;
    slot.start = std::max(now, device_free_);
    const Evaluator::StepEnd step = evaluator_->end(slot.batch, slot.start);
    slot.end = step.end;
    slot.communication = step.communication_ps;
    device_free_ = slot.end;
    busy_ += slot.end - slot.start;
    scheduled_tokens_ += slot.batch.features.tokens;
    ++num_in_flight_;
    if (steps) steps->record(config_.index, slot.scheduled, slot.start, slot.end, slot.batch, *builder_, *evaluator_);
  }
}

void Group::outputs(Ps now, std::vector<RequestId>& finished) {
  Slot& slot = slots_[oldest_];
  log_.begin_output(static_cast<std::int32_t>(output_times_.size()), now);
  output_times_.push_back(now);
  output_starts_.push_back(slot.start);
  output_communication_.push_back(slot.communication);
  const std::size_t before = finished.size();
  builder_->complete(slot.batch, finished);
  outstanding_ -= static_cast<std::int32_t>(finished.size() - before);
  if (key_log_ != nullptr) key_log_->publish(now);
  if (schedule) schedule->completed(now, *builder_, std::span(finished).subspan(before));
  oldest_ = (oldest_ + 1) % slots_.size();
  --num_in_flight_;
  nothing_to_build_ = false;
}

}  // namespace llmsim
