#include "program.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

Program::Program(std::vector<Operator> operators, std::unique_ptr<AttentionCost> attention,
                 std::vector<std::int32_t> padded_tokens, LightFloor floor, Ps host_gap)
    : operators_(std::move(operators)),
      attention_(std::move(attention)),
      padded_tokens_(std::move(padded_tokens)),
      floor_(floor),
      host_gap_(host_gap) {
  for (const Operator& op : operators_) {
    if (op.kind == NodeKind::kAttention) {
      attention_repeat_ += op.repeat;
      continue;
    }
    if (op.ps.size() != op.provenance.size()) throw std::invalid_argument("operator " + op.name + ": ragged table");
    auto& fused = op.feature == Feature::kTokens ? fused_tokens_ : fused_sequences_;
    if (fused.empty()) fused.assign(op.ps.size(), 0);
    if (fused.size() != op.ps.size()) throw std::invalid_argument("operator " + op.name + ": table of another length");
    for (std::size_t i = 0; i < op.ps.size(); ++i) fused[i] += op.ps[i] * op.repeat;
    if (op.kind != NodeKind::kCollective) continue;
    auto& collective = op.feature == Feature::kTokens ? collective_tokens_ : collective_sequences_;
    collective.resize(op.ps.size(), 0);
    for (std::size_t i = 0; i < op.ps.size(); ++i) collective[i] += op.ps[i] * op.repeat;
  }
  for (const std::int32_t tokens : padded_tokens_) {
    if (tokens < 0 || static_cast<std::size_t>(tokens) >= fused_tokens_.size())
      throw std::invalid_argument("padding reaches beyond the token tables");
  }
}

Program::Usage Program::new_usage() const {
  Usage usage;
  usage.by_tokens.assign(fused_tokens_.size(), 0);
  usage.by_sequences.assign(fused_sequences_.size(), 0);
  return usage;
}

Ps Program::light_floor_ps(const Features& f) const {
  Ps floor = 0;
  if (floor_.bytes_per_s > 0) {
    int128 bytes = static_cast<int128>(floor_.kv_bytes_per_token) * f.decode_context;
    if (bytes <= floor_.cached_kv_bytes) bytes = 0;
    floor = static_cast<Ps>((bytes + floor_.weight_bytes) * kPsPerSecond / floor_.bytes_per_s);
  }
  if (floor_.flops_per_s > 0) {
    const int128 flops = static_cast<int128>(floor_.flops_per_token) * f.tokens;
    floor = std::max(floor, static_cast<Ps>(flops * kPsPerSecond / floor_.flops_per_s));
  }
  return floor;
}

Program::StepPrice Program::evaluate(const Batch& batch, Usage& usage) const {
  const Features& f = batch.features;
  const auto tokens = static_cast<std::size_t>(padded(f.tokens));
  const auto sequences = std::min(static_cast<std::size_t>(f.sequences), fused_sequences_.size() - 1);
  const AttentionPrice attention = attention_->price(batch);
  ++usage.steps;
  ++usage.by_tokens[tokens];
  ++usage.by_sequences[sequences];
  usage.sequences += f.sequences;
  // A token attends to what came before it and to itself: q * (2k + q + 1) / 2 pairs for q tokens after k.
  usage.attended_tokens_x2 += f.prefill_area + f.prefill_tokens + 2 * (f.decode_context + f.decode_sequences);
  usage.kv_read_tokens += f.prefill_context + f.decode_context + f.decode_sequences;
  (attention.extrapolated ? usage.attention_outside : usage.attention_inside) += attention.ps;
  const Ps busy = fused_tokens_[tokens] + fused_sequences_[sequences] + attention.ps * attention_repeat_;
  if (busy < light_floor_ps(f)) ++usage.steps_below_light;
  const Ps communication = (collective_tokens_.empty() ? 0 : collective_tokens_[tokens]) +
                           (collective_sequences_.empty() ? 0 : collective_sequences_[sequences]);
  return {std::max<Ps>(1, busy + host_gap_), communication};
}

std::vector<OperatorTime> Program::busy_time(const Usage& usage) const {
  std::vector<OperatorTime> rows;
  for (std::size_t i = 0; i < operators_.size(); ++i) {
    const Operator& op = operators_[i];
    OperatorTime row{.op = static_cast<std::int32_t>(i)};
    if (op.kind == NodeKind::kAttention) {
      row.ps[1] = usage.attention_inside * op.repeat;
      row.ps[2] = usage.attention_outside * op.repeat;
    } else {
      const auto& counts = op.feature == Feature::kTokens ? usage.by_tokens : usage.by_sequences;
      for (std::size_t x = 0; x < counts.size(); ++x) row.ps[op.provenance[x]] += counts[x] * op.ps[x] * op.repeat;
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace llmsim
