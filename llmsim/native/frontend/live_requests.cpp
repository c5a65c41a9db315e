#include "frontend/live_requests.h"

#include <stdexcept>

namespace llmsim {

namespace {

// No row has a time, so that none arrives by itself.
Source unasked(const LiveConfig& config) {
  if (config.rows < 1) throw std::invalid_argument("live.rows: at least one request is remembered");
  if (config.granularity < 1)
    throw std::invalid_argument("live.granularity: content keys name at least one token");
  const auto rows = static_cast<std::size_t>(config.rows);
  Source source;
  source.arrival_ps.assign(rows, -1);
  source.input_tokens.assign(rows, 0);
  source.output_tokens.assign(rows, 0);
  source.model.assign(rows, 0);
  source.next_call.assign(rows, -1);
  source.tool_delay_ps.assign(rows, 0);
  source.content.granularity = config.granularity;
  source.content.live.resize(rows);
  source.clients.cancel_after_tokens.assign(rows, 0);
  return source;
}

}  // namespace

LiveRequests::LiveRequests(const LiveConfig& config)
    : source_(std::make_shared<Source>(unasked(config))),
      tokens_(source_->output_tokens.size(), 0) {}

void LiveRequests::fill(RequestId row, LiveRequest request) {
  const std::size_t i = at(row);
  source_->input_tokens[i] = request.input_tokens;
  source_->output_tokens[i] = request.output_tokens;
  source_->model[i] = request.model;
  source_->content.live[i] = std::move(request.keys);
  tokens_[i] = 0;
}

void LiveRequests::received(RequestId row, std::int32_t tokens, Ps now) {
  if (tokens == tokens_[at(row)]) return;
  tokens_[at(row)] = tokens;
  note(row, tokens, Status::kRunning, now);
}

void LiveRequests::ended(RequestId row, Status status, Ps now) {
  note(row, tokens_[at(row)], status, now);
}

void LiveRequests::note(RequestId row, std::int32_t tokens, Status status, Ps now) {
  events_.request.push_back(row);
  events_.tokens.push_back(tokens);
  events_.status.push_back(static_cast<std::uint8_t>(status));
  events_.time.push_back(now);
}

}  // namespace llmsim
