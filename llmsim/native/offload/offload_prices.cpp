#include <algorithm>

#include "offload/offload.h"

namespace llmsim {

namespace {

Ps moving(std::int64_t bytes, Ps latency, int128 rate_q16) {
  if (bytes == 0) return 0;
  const int128 volume = static_cast<int128>(bytes) * kPsPerSecond * 65536;
  return latency + static_cast<Ps>((volume + rate_q16 - 1) / rate_q16);
}

}  // namespace

void OffloadDomain::lay_out_prices() {
  const WeightStreaming& weights = config().weights;
  const std::size_t lanes = members_.size() * at(kNumLanes);
  first_sampled_ = 2 + lanes * at(3 * num_ops_ + kNumExtras);
  std::size_t next = first_sampled_ + lanes * static_cast<std::size_t>(num_draws_);
  for (const auto& executions : weights.ahead) {
    ahead_of_.push_back(next);
    next += executions.size();
  }
  first_by_batch_ = next;
  next = first_by_batch_ + members_.size() * at(num_ops_);
  for (std::size_t op = 0; op < at(num_ops_); ++op) {
    drawn_copy_of_.push_back(next);
    if (op < weights.sampled.size() && weights.sampled[op] != nullptr)
      next += at(program().operators()[op].repeat);
  }
  amounts_.ps.assign(next, 0);
  amounts_.bytes.assign(next, 0);
  amounts_.way.assign(next, -1);
  amounts_.fixed.assign(next, false);
  amounts_.ps[at(kGap)] = program().host_gap();
}

std::size_t OffloadDomain::lane_price(std::size_t member, std::int32_t lane,
                                      std::int32_t what) const {
  return 2 + (member * at(kNumLanes) + at(lane)) * at(3 * num_ops_ + kNumExtras) + at(what);
}

std::size_t OffloadDomain::extra_price(std::size_t member, std::int32_t lane, Extra what) const {
  return lane_price(member, lane, num_ops_ + what);
}

std::size_t OffloadDomain::to_host(std::size_t member, std::int32_t lane, std::int32_t op) const {
  return lane_price(member, lane, num_ops_ + kNumExtras + op);
}

std::size_t OffloadDomain::from_host(std::size_t member, std::int32_t lane, std::int32_t op) const {
  return lane_price(member, lane, 2 * num_ops_ + kNumExtras + op);
}

std::size_t OffloadDomain::op_price(std::size_t member, std::int32_t lane, std::int32_t op,
                                    std::int32_t execution) const {
  const std::int64_t draw = program().first_draw(at(op));
  if (draw < 0) return lane_price(member, lane, op);
  return first_sampled_ +
         (member * at(kNumLanes) + at(lane)) * static_cast<std::size_t>(num_draws_) +
         static_cast<std::size_t>(draw + execution);
}

std::size_t OffloadDomain::ahead_price(std::int32_t op, std::int32_t execution) const {
  return ahead_of_[at(op)] + at(execution);
}

std::size_t OffloadDomain::batch_price(std::size_t member, std::int32_t op,
                                       std::int32_t execution) const {
  const auto& sampled = config().weights.sampled;
  if (at(op) < sampled.size() && sampled[at(op)] != nullptr)
    return drawn_copy_of_[at(op)] + at(execution);
  return first_by_batch_ + member * at(num_ops_) + at(op);
}

void OffloadDomain::set_copy(std::size_t price, std::int32_t source, std::int64_t bytes) {
  const CopySource& from = config().weights.sources.at(at(source));
  amounts_.ps[price] = moving(bytes, from.latency, from.rate_q16);
  amounts_.bytes[price] = bytes;
  amounts_.way[price] = static_cast<std::int16_t>(source);
}

void OffloadDomain::set_way(std::size_t price, std::int64_t bytes, std::int32_t way, Ps latency,
                            std::int64_t bytes_per_s) {
  amounts_.ps[price] = moving(bytes, latency, static_cast<int128>(bytes_per_s) << 16);
  amounts_.bytes[price] = bytes;
  amounts_.way[price] = static_cast<std::int16_t>(at(way) + config().weights.sources.size());
}

void OffloadDomain::price_ahead() {
  const WeightStreaming& weights = config().weights;
  for (std::size_t op = 0; op < weights.ahead.size(); ++op) {
    for (std::size_t e = 0; e < weights.ahead[op].size(); ++e) {
      const std::size_t price = ahead_of_[op] + e;
      if (weights.ahead[op][e] > 0)
        set_copy(price, weights.ahead_from.at(op).at(e), weights.ahead[op][e]);
      amounts_.fixed[price] = true;
    }
  }
}

// Prompts attend on the device; returns their price.
AttentionPrices OffloadDomain::price_memory(std::size_t member, std::int32_t lane,
                                            const Batch& batch) {
  const PimConfig& pim = config().pim;
  prefills_.clear();
  decodes_.clear();
  std::int64_t prompt_tokens = 0, earlier = 0;
  for (const Item& item : batch.items) {
    if (item.tokens == 1) {
      decodes_.push_back(item);
      continue;
    }
    prefills_.items.push_back(item);
    prefills_.features.add(item.tokens, item.computed_before);
    prompt_tokens += item.tokens;
    earlier += item.computed_before;
  }
  const auto decodes = static_cast<std::int64_t>(decodes_.size());
  const auto set = [&](Extra what, std::int64_t bytes, MemoryWay way) {
    set_way(extra_price(member, lane, what), bytes, way, pim.latency, pim.bytes_per_s);
  };
  set(kPush, decodes * pim.query_bytes, kToMemory);
  amounts_.ps[extra_price(member, lane, kInMemory)] = channels_[member]->work(decodes_).longest;
  set(kPull, decodes * pim.output_bytes, kFromMemory);
  set(kContext, earlier * pim.kv_bytes, kFromMemory);
  set(kPrompts, prompt_tokens * pim.kv_bytes, kToMemory);
  AttentionPrices prices{};
  if (!prefills_.empty()) prices = members_[member]->program().attention_layer(prefills_);
  return prices;
}

void OffloadDomain::price_lane(std::size_t member, std::int32_t lane, const MemberStep& step,
                               std::span<const Ps> draws) {
  const auto& operators = program().operators();
  const HostOperators& host = config().host;
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    const Operator& op = operators[at(i)];
    const std::int64_t draw = program().first_draw(at(i));
    if (draw >= 0) {
      const auto first = draws.begin() + draw;
      std::copy(first, first + op.repeat,
                amounts_.ps.begin() + static_cast<std::ptrdiff_t>(op_price(member, lane, i, 0)));
    } else {
      amounts_.ps[lane_price(member, lane, i)] =
          op.kind == NodeKind::kAttention
              ? step.attention[at(op.attention)].ps
              : op.ps[static_cast<std::size_t>(step.place.at(op.feature))];
    }
    if (!on_host(i)) continue;
    const std::int64_t units = step.place.at(op.feature);
    set_way(to_host(member, lane, i), units * host.input_bytes[at(i)], kToHost, host.latency,
            host.bytes_per_s);
    set_way(from_host(member, lane, i), units * host.output_bytes[at(i)], kFromHost, host.latency,
            host.bytes_per_s);
  }
}

// Copies whose sizes depend on the batch.
void OffloadDomain::price_copies(std::size_t member, const MemberStep& step) {
  const WeightStreaming& weights = config().weights;
  const auto& operators = program().operators();
  for (std::size_t op = 0; op < weights.by_batch.size(); ++op) {
    const std::int64_t units = step.place.at(operators[op].feature);
    if (!weights.by_batch[op].empty())
      set_copy(batch_price(member, static_cast<std::int32_t>(op), 0), weights.by_batch_from[op],
               weights.by_batch[op].at(static_cast<std::size_t>(units)));
    if (op >= weights.sampled.size() || weights.sampled[op] == nullptr) continue;
    const SampledCostTable::Step sampled =
        weights.sampled[op]->step(units, members_.front()->usage().steps);
    for (std::int32_t layer = 0; layer < operators[op].repeat; ++layer) {
      const std::int64_t bytes = sampled.at(layer);
      set_copy(drawn_copy_of_[op] + at(layer), weights.by_batch_from[op], bytes);
      members_[member]->offload.drawn_bytes += bytes;
    }
  }
}

}  // namespace llmsim
