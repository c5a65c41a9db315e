#include "step/step_prices.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

namespace {

// At a rate in parts of 2^-16 bytes per second.
Ps moving(std::int64_t bytes, Ps latency, int128 rate_q16) {
  return bytes == 0 ? 0 : latency + transfer_time(bytes, rate_q16, 1 << 16);
}

}  // namespace

StepTimes OpenStep::ended(Ps start, Ps end) const {
  return {start, end, communication, std::max<Ps>(0, end - gap - start - busy), padded_tokens};
}

StepPricer::StepPricer(std::vector<GroupCosts*> members,
                       std::vector<std::shared_ptr<const OffloadConfig>> offload)
    : members_(std::move(members)),
      offload_(std::move(offload)),
      operators_(members_.size()),
      drafts_(members_.size()),
      half_(members_.size()) {
  for (auto& steps : lanes_) steps.resize(members_.size());
  for (auto& moved : in_memory_) moved.resize(members_.size());
  for (const Operator& op : program().operators())
    if (op.kind == NodeKind::kAttention) attention_layers_ += op.repeat;
  if (this->offload() != nullptr && this->offload()->has_pim)
    for (const auto& one : offload_) channels_.push_back(std::make_unique<PimChannels>(one->pim));
}

// With a captured graph all members run at the size of the largest; if one has none, nobody pads.
void StepPricer::combine(std::span<const Batch* const> batches) {
  std::int64_t most = 0, gathered = 0;
  GraphMode mode = GraphMode::kFull;
  features_.clear();
  for (std::size_t m = 0; m < batches.size(); ++m) {
    const Program& mine = members_[m]->program();
    features_.push_back(mine.rank_features(*batches[m]));
    most = std::max(most, features_.back().tokens);
    mode = std::min(mode, mine.graph_mode(features_.back()));
  }
  const bool graphs = mode != GraphMode::kNone;
  const auto padded = [&](std::size_t m) {
    const Program& mine = members_[m]->program();
    if (batches.size() == 1) return mine.padded(features_[m]);
    return graphs ? mine.padded(most, mode) : features_[m].tokens;
  };
  for (std::size_t m = 0; m < batches.size(); ++m) gathered += padded(m);
  for (std::size_t m = 0; m < batches.size(); ++m) {
    const Program& mine = members_[m]->program();
    MemberStep& step = lanes_[0][m];
    step = {batches[m], mine.place(*batches[m], padded(m), gathered),
            mine.attention_layer(*batches[m])};
    step.place.mode = mode;
  }
  draws_[0].clear();
  if (program().draws())
    program().draw(lanes_[0][0].place, members_.front()->usage().steps + 1, draws_[0]);
}

void StepPricer::count_memory(std::size_t member, const Batch& batch) {
  const PimConfig& pim = offload()->pim;
  OffloadCounters& counters = members_[member]->offload;
  decodes_.clear();
  for (const Item& item : batch.items)
    if (item.tokens == 1) decodes_.push_back(item);
  channels_[member]->place(decodes_);
  counters.channel_busy += int128{channels_[member]->work(decodes_).sum} * attention_layers_;
  // What decodes see there is not the device's: neither its attention nor reads of its memory.
  Program::Usage& usage = members_[member]->usage();
  for (const Item& item : decodes_) {
    usage.attended_tokens_x2 -= 2 * (std::int64_t{item.computed_before} + 1);
    usage.kv_read_tokens -= std::int64_t{item.computed_before} + 1;
  }
  const Features& f = batch.features;
  const auto decodes = static_cast<std::int64_t>(decodes_.size());
  counters.to_memory_bytes +=
      attention_layers_ * (decodes * pim.query_bytes + f.prefill_tokens * pim.kv_bytes);
  counters.from_memory_bytes +=
      attention_layers_ *
      (decodes * pim.output_bytes + (f.prefill_context - f.prefill_tokens) * pim.kv_bytes);
}

// Prompts attend on the device; returns their price.
AttentionPrices StepPricer::price_memory(std::size_t member, std::size_t lane, const Batch& batch) {
  const PimConfig& pim = offload()->pim;
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
  in_memory_[lane][member] = {decodes * pim.query_bytes, decodes * pim.output_bytes,
                              earlier * pim.kv_bytes, prompt_tokens * pim.kv_bytes,
                              channels_[member]->work(decodes_).longest};
  AttentionPrices prices{};
  if (!prefills_.empty()) prices = members_[member]->program().attention_layer(prefills_);
  return prices;
}

bool StepPricer::begin(std::span<const Batch* const> batches, Ps at) {
  combine(batches);
  const bool in_memory = !channels_.empty();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    GroupCosts& member = *members_[m];
    MemberStep& step = lanes_[0][m];
    if (in_memory) {
      count_memory(m, *batches[m]);
      step.attention = price_memory(m, 0, *batches[m]);
    }
    operators_[m] = member.price(*batches[m], step.place, step.attention, draws_[0], at);
    drafts_[m] = offload() == nullptr ? member.propose(*batches[m]) : Program::StepPrice{0, 0};
  }
  if (offload() == nullptr) return false;
  for (std::size_t m = 0; m < members_.size(); ++m) count_copies(m);
  return split(batches);
}

// Copies whose sizes are sampled.
void StepPricer::count_copies(std::size_t member) {
  const auto& sampled = offload()->weights.sampled;
  const auto& operators = program().operators();
  for (std::size_t op = 0; op < std::min(sampled.size(), offload()->weights.by_batch.size());
       ++op) {
    if (sampled[op] == nullptr) continue;
    const std::int64_t units = lanes_[0][member].place.at(operators[op].feature);
    const SampledCostTable::Step step = sampled[op]->step(units, members_.front()->usage().steps);
    for (std::int32_t layer = 0; layer < operators[op].repeat; ++layer)
      members_[member]->offload.drawn_bytes += step.at(layer);
  }
}

// Halves of about equal tokens: the longest first, each to the half with fewer. False: there is
// nothing to split.
bool StepPricer::split(std::span<const Batch* const> batches) {
  const auto one = [](const Batch* batch) { return batch->items.size() < 2; };
  if (offload()->interleaving == Interleaving::kNever || std::ranges::all_of(batches, one))
    return false;
  for (std::size_t m = 0; m < batches.size(); ++m) {
    std::vector<const Item*> order;
    for (const Item& item : batches[m]->items) order.push_back(&item);
    std::stable_sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
      if (a->tokens != b->tokens) return a->tokens > b->tokens;
      return a->computed_before > b->computed_before;
    });
    for (Batch& half : half_[m]) half.clear();
    for (const Item* item : order) {
      const auto work = [](const Features& f) { return std::pair(f.tokens, f.decode_context); };
      const bool second = work(half_[m][1].features) < work(half_[m][0].features);
      Batch& half = half_[m][second ? 1 : 0];
      half.items.push_back(*item);
      half.features.add(item->tokens, item->computed_before);
    }
  }
  for (std::size_t half = 0; half < 2; ++half) {
    const std::size_t lane = half + 1;
    std::int64_t gathered = 0;
    for (std::size_t m = 0; m < batches.size(); ++m)
      gathered += program().padded(half_[m][half].features);
    draws_[lane].clear();
    for (std::size_t m = 0; m < batches.size(); ++m) {
      const Program& mine = members_[m]->program();
      const Batch& batch = half_[m][half];
      MemberStep& step = lanes_[lane][m];
      step = {&batch, mine.place(batch.features, mine.padded(batch.features), gathered), {}};
      step.attention =
          channels_.empty() ? mine.attention_layer(batch) : price_memory(m, lane, batch);
      if (m == 0 && mine.draws()) mine.draw(step.place, members_[0]->usage().steps, draws_[lane]);
    }
  }
  return true;
}

Ps StepPricer::host_gap(std::size_t member) const {
  const Batch& batch = *lanes_[0][member].batch;
  return members_[member]->program().host_gap(batch.features.sequences);
}

Ps StepPricer::preparing(std::size_t member, std::int32_t stage) const {
  const Batch& batch = *lanes_[0][member].batch;
  return members_[member]->program().graphs().preparing(batch.host_work(), stage);
}

StepPricer::Amount StepPricer::copy(std::int32_t source, std::int64_t bytes) const {
  const CopySource& from = offload()->weights.sources.at(at(source));
  return {moving(bytes, from.latency, from.rate_q16), bytes};
}

StepPricer::Amount StepPricer::copy_by_batch(const PriceKey& key) const {
  const WeightStreaming& weights = offload()->weights;
  const std::size_t op = at(key.op);
  const Feature feature = program().operators()[op].feature;
  const std::int64_t units = lanes_[0][at(key.member)].place.at(feature);
  std::int64_t bytes = 0;
  if (key.execution >= 0) {
    bytes = weights.sampled[op]->step(units, members_.front()->usage().steps).at(key.execution);
  } else {
    bytes = weights.by_batch[op].at(static_cast<std::size_t>(units));
  }
  return copy(weights.by_batch_from[op], bytes);
}

StepPricer::Amount StepPricer::through_memory(std::int64_t bytes) const {
  const PimConfig& pim = offload()->pim;
  return {moving(bytes, pim.latency, static_cast<int128>(pim.bytes_per_s) << 16), bytes};
}

StepPricer::Amount StepPricer::through_host(const PriceKey& key) const {
  const HostOperators& host = offload()->host;
  const std::size_t op = at(key.op);
  const Feature feature = program().operators()[op].feature;
  const bool out = key.role == NodeRole::kToHost;
  const std::int64_t each = out ? host.input_bytes[op] : host.output_bytes[op];
  const std::int64_t bytes = lanes_[key.lane][at(key.member)].place.at(feature) * each;
  return {moving(bytes, host.latency, host.rate_q16), bytes};
}

StepPricer::Amount StepPricer::operator_amount(const StepGraph& graph, const PriceKey& key) const {
  const MemberStep& step = lanes_[key.lane][at(key.member)];
  if (key.segment >= 0) return {graph.segments[at(key.segment)]->price(step.place, step.attention)};
  const Operator& op = program().operators()[at(key.op)];
  if (op.kind == NodeKind::kAttention) return {step.attention[at(op.attention)].ps, 0, 1};
  const std::int64_t units = step.place.at(op.feature);
  if (op.sampled == nullptr) return {op.ps[static_cast<std::size_t>(units)], 0, units};
  if (key.execution < 0) return {0, 0, units};  // its node has draws
  const std::int64_t first = program().first_draw(at(key.op));
  return {draws_[key.lane][static_cast<std::size_t>(first + key.execution)], 0, units};
}

StepPricer::Amount StepPricer::amount(const StepGraph& graph, const PriceKey& key) const {
  switch (key.role) {
    case NodeRole::kBegin:
    case NodeRole::kReceive:
    case NodeRole::kMeet:
    case NodeRole::kCorrection:
      return {};
    case NodeRole::kPrepare:
      return {preparing(at(key.member), key.execution)};
    case NodeRole::kLaunch: {
      const auto mode = static_cast<std::size_t>(lanes_[0][at(key.member)].place.mode);
      return {program().graphs().host_ps.at(at(key.execution))[mode]};
    }
    case NodeRole::kSlowed:
      return {operators_[at(key.member)].slowed_ps / program().stages_of_power()};
    case NodeRole::kDrafts:
      return {drafts_[at(key.member)].ps};
    case NodeRole::kEnd:
      return {host_gap(at(key.member))};
    case NodeRole::kOperator:
      return operator_amount(graph, key);
    case NodeRole::kCopy:
      if (!key.ahead) return copy_by_batch(key);
      return copy(offload()->weights.ahead_from.at(at(key.op)).at(at(key.execution)),
                  offload()->weights.ahead[at(key.op)][at(key.execution)]);
    case NodeRole::kToHost:
    case NodeRole::kFromHost:
      return through_host(key);
    case NodeRole::kQueries:
      return through_memory(in_memory_[key.lane][at(key.member)].queries);
    case NodeRole::kInMemory:
      return {in_memory_[key.lane][at(key.member)].ps};
    case NodeRole::kResults:
      return through_memory(in_memory_[key.lane][at(key.member)].results);
    case NodeRole::kContext:
      return through_memory(in_memory_[key.lane][at(key.member)].context);
    case NodeRole::kPrompts:
      return through_memory(in_memory_[key.lane][at(key.member)].prompts);
  }
  return {};
}

void StepPricer::fill(const StepGraph& graph, StepPrices& prices) const {
  fill_prices(graph, prices, [&](const PriceKey& key) { return amount(graph, key); });
  prices.draws = draws_[0];
}

StepPrices StepPricer::ahead(const StepGraph& graph) const {
  StepPrices prices;
  for (const PriceKey& key : graph.prices) {
    const Amount one = key.ahead ? amount(graph, key) : Amount{};
    prices.ps.push_back(one.ps);
    prices.bytes.push_back(one.bytes);
    prices.units.push_back(one.units);
  }
  return prices;
}

OpenStep StepPricer::open(std::size_t member, const StepGraph& graph, const StepPrices& prices) {
  const Ps gap = host_gap(member);
  const std::int64_t padded = lanes_[0][member].place.tokens;
  const Program::StepPrice &operators = operators_[member], &drafts = drafts_[member];
  if (offload() == nullptr)
    return {operators.communication_ps + drafts.communication_ps, operators.ps + drafts.ps, padded,
            gap, drafts.ps};
  OpenStep step{operators.communication_ps, 0, padded, gap};
  for (const StepNode& node : graph.nodes) {
    if (at(node.member) != member) continue;
    const bool computes =
        node.stream % kNumDeviceStreams == static_cast<std::int32_t>(DeviceStream::kCompute);
    if (computes && node.role != NodeRole::kEnd) step.busy += prices.of(graph, node, 0);
    if (node.role == NodeRole::kToHost || node.role == NodeRole::kFromHost)
      members_[member]->offload.host_bytes += prices.bytes[at(node.price)];
  }
  return step;
}

StepTimes StepPricer::close(std::size_t member, const OpenStep& step, Ps start, Ps end,
                            Ps launched) {
  StepTimes times = step.ended(start, end);
  const Ps late = launched - (start + step.busy - step.drafts);
  const Ps launching = std::clamp<Ps>(late, 0, times.waiting);
  members_[member]->usage().launching += launching;
  times.waiting -= launching;
  if (offload() != nullptr) members_[member]->offload.stalled += times.waiting;
  return times;
}

}  // namespace llmsim
