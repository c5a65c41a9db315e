#include "offload.h"

#include <algorithm>
#include <stdexcept>

#include "offload_graph.h"

namespace llmsim {

PimChannels::PimChannels(const PimConfig& config)
    : ps_({Axis(config.context)}, config.ps), load_(static_cast<std::size_t>(config.sets), 0) {}

Ps PimChannels::attention(const Item& item) const {
  return ps_.at({ps_.axis(0).locate(std::int64_t{item.computed_before} + 1)});
}

void PimChannels::place(std::span<const Item> decodes) {
  load_.assign(load_.size(), 0);
  bool all_settled = true;
  for (const Item& item : decodes) {
    if (settled(item)) {
      load_[static_cast<std::size_t>(home_[static_cast<std::size_t>(item.request)].set)] += attention(item);
    } else {
      all_settled = false;
    }
  }
  if (all_settled) return;
  for (const Item& item : decodes) {
    if (settled(item)) continue;
    const auto at = static_cast<std::size_t>(item.request);
    if (at >= home_.size()) home_.resize(at + 1);
    const auto least = std::min_element(load_.begin(), load_.end()) - load_.begin();
    home_[at] = {static_cast<std::int32_t>(least), item.epoch};
    load_[static_cast<std::size_t>(least)] += attention(item);
  }
}

PimChannels::Work PimChannels::work(std::span<const Item> decodes) {
  load_.assign(load_.size(), 0);
  Work work;
  for (const Item& item : decodes) {
    const Ps ps = attention(item);
    Ps& load = load_[static_cast<std::size_t>(home_[static_cast<std::size_t>(item.request)].set)];
    load += ps;
    work.sum += ps;
    work.longest = std::max(work.longest, load);
  }
  return work;
}

OffloadEvaluator::OffloadEvaluator(std::shared_ptr<const Program> program, WeightStreaming weights,
                                   const PimConfig* pim, std::unique_ptr<StreamTiming> timing)
    : Evaluator(std::move(program)), weights_(std::move(weights)), timing_(std::move(timing)) {
  num_ops_ = static_cast<std::int32_t>(program_->operators().size());
  find_places();
  const auto places = static_cast<std::int32_t>(places_.size());
  weights_.buffers = std::max(weights_.buffers, 2);
  weights_.demand.resize(static_cast<std::size_t>(num_ops_), false);
  if (pim != nullptr) {
    if (pim->sets < 1 || pim->context.empty() || pim->context.size() != pim->ps.size())
      throw std::invalid_argument("memory that computes needs channels, and a time for each context");
    pim_ = std::make_unique<PimConfig>(*pim);
    channels_ = std::make_unique<PimChannels>(*pim);
  }
  first_ahead_ = static_cast<std::int32_t>(price_of(3, 0));
  first_by_tokens_ = first_ahead_;
  for (const auto& executions : weights_.ahead) first_by_tokens_ += static_cast<std::int32_t>(executions.size());
  prices_.assign(static_cast<std::size_t>(first_by_tokens_ + num_ops_), 0);
  auto ahead = prices_.begin() + first_ahead_;
  for (const auto& executions : weights_.ahead) ahead = std::copy(executions.begin(), executions.end(), ahead);
  carry_.places.assign(static_cast<std::size_t>(places + attention_layers_), 0);
  whole_ = Builder(*this, 1).build();
  if (pim_ && pim_->interleaving != Interleaving::kNever) halves_ = Builder(*this, 2).build();
}

// Operators of one part repeat together; those that repeat less often are in the first layers.
void OffloadEvaluator::find_places() {
  const auto& operators = program_->operators();
  for (std::size_t first = 0; first < operators.size();) {
    std::size_t last = first;
    std::int32_t repeat = 0;
    while (last < operators.size() && operators[last].part == operators[first].part)
      repeat = std::max(repeat, operators[last++].repeat);
    for (std::int32_t layer = 0; layer < repeat; ++layer) {
      Place place;
      for (std::size_t i = first; i < last; ++i) {
        if (layer >= operators[i].repeat) continue;
        if (operators[i].kind == NodeKind::kHandover || operators[i].stage > 0)
          throw std::invalid_argument("pipeline stages and offloading do not go together");
        place.ops.push_back(static_cast<std::int32_t>(i));
        place.execution.push_back(layer);
        attention_layers_ += operators[i].kind == NodeKind::kAttention;
      }
      places_.push_back(std::move(place));
    }
    first = last;
  }
}

Ps OffloadEvaluator::copy(std::int64_t bytes) const {
  if (bytes == 0) return 0;
  const int128 picoseconds = static_cast<int128>(bytes) * kPsPerSecond;
  return pim_->latency + static_cast<Ps>((picoseconds + pim_->bytes_per_s - 1) / pim_->bytes_per_s);
}

AttentionPrices OffloadEvaluator::price_lane(std::int32_t lane, const Batch& batch, const Program::Place& place) {
  const auto& operators = program_->operators();
  AttentionPrices attention{};
  if (!pim_) {
    attention = program_->attention_layer(batch);
  } else {
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
    if (!prefills_.empty()) attention = program_->attention_layer(prefills_);
    const auto decodes = static_cast<std::int64_t>(decodes_.size());
    const auto set = [&](Extra what, Ps ps) { prices_[price_of(lane, num_ops_ + what)] = ps; };
    set(kPush, copy(decodes * pim_->query_bytes));
    set(kInMemory, channels_->work(decodes_).longest);
    set(kPull, copy(decodes * pim_->output_bytes));
    set(kContext, copy(earlier * pim_->kv_bytes));
    set(kPrompts, copy(prompt_tokens * pim_->kv_bytes));
  }
  for (std::int32_t i = 0; i < num_ops_; ++i) {
    const Operator& op = operators[static_cast<std::size_t>(i)];
    prices_[price_of(lane, i)] = op.kind == NodeKind::kAttention
                                     ? attention[static_cast<std::size_t>(op.attention)].ps
                                     : op.ps[static_cast<std::size_t>(place.at(op.feature))];
  }
  return attention;
}

// Halves of about equal tokens: the longest first, each to the half with fewer.
void OffloadEvaluator::split(const Batch& batch) {
  std::vector<const Item*> order;
  for (const Item& item : batch.items) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    if (a->tokens != b->tokens) return a->tokens > b->tokens;
    return a->computed_before > b->computed_before;
  });
  for (Batch& half : half_) half.clear();
  for (const Item* item : order) {
    const auto work = [](const Features& f) { return std::pair(f.tokens, f.decode_context); };
    Batch& half = half_[work(half_[1].features) < work(half_[0].features)];
    half.items.push_back(*item);
    half.features.add(item->tokens, item->computed_before);
  }
}

Ps OffloadEvaluator::computing(const StreamGraph& graph) const {
  Ps sum = 0;
  for (const StreamNode& node : graph.nodes)
    if (node.stream == DeviceStream::kCompute) sum += prices_[static_cast<std::size_t>(node.price)];
  return sum;
}

StepTimes OffloadEvaluator::run(const Batch& batch, Ps now) {
  const Program::Place place = program_->place(batch.features, program_->padded(batch.features), 0);
  if (channels_) {
    decodes_.clear();
    for (const Item& item : batch.items)
      if (item.tokens == 1) decodes_.push_back(item);
    channels_->place(decodes_);
    counters_.channel_busy += channels_->work(decodes_).sum * attention_layers_;
    const Features& f = batch.features;
    const auto decodes = static_cast<std::int64_t>(decodes_.size());
    counters_.to_memory_bytes += attention_layers_ * (decodes * pim_->query_bytes + f.prefill_tokens * pim_->kv_bytes);
    counters_.from_memory_bytes +=
        attention_layers_ * (decodes * pim_->output_bytes + (f.prefill_context - f.prefill_tokens) * pim_->kv_bytes);
  }
  const AttentionPrices attention = price_lane(0, batch, place);
  for (std::size_t op = 0; op < weights_.by_tokens.size(); ++op)
    if (!weights_.by_tokens[op].empty())
      prices_[static_cast<std::size_t>(first_by_tokens_) + op] =
          weights_.by_tokens[op].at(static_cast<std::size_t>(place.tokens));
  const Program::StepPrice price = program_->evaluate(batch, place, attention, usage_, {});

  const Ps start = std::max(now, free_);
  const bool may_split = !halves_.nodes.empty() && batch.items.size() > 1;
  StreamCarry halved = carry_;
  Ps end = timing_->run(whole_, prices_, start, carry_);
  Ps busy = computing(whole_);
  if (may_split) {
    split(batch);
    for (std::int32_t lane = 1; lane <= 2; ++lane) {
      const Batch& half = half_[lane - 1];
      price_lane(lane, half, program_->place(half.features, program_->padded(half.features), 0));
    }
    const Ps split_end = timing_->run(halves_, prices_, start, halved);
    if (split_end < end || pim_->interleaving == Interleaving::kAlways) {
      end = split_end;
      busy = computing(halves_);
      std::swap(carry_, halved);
      ++counters_.interleaved_steps;
    }
  }
  const Ps stalled = std::max<Ps>(0, end - start - busy);
  counters_.stalled += stalled;
  free_ = std::max(start + 1, end + program_->host_gap());
  return {start, free_, price.communication_ps, stalled, place.tokens};
}

}  // namespace llmsim
