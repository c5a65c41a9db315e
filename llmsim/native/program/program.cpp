#include "program/program.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>

namespace llmsim {

Program::Program(std::vector<Operator> operators,
                 std::vector<std::unique_ptr<AttentionCost>> attentions,
                 std::vector<std::int32_t> padded_tokens, LowerBound floor, Ps host_gap,
                 std::int64_t largest_graph, std::int32_t context_ranks)
    : operators_(std::move(operators)),
      attentions_(std::move(attentions)),
      padded_tokens_(std::move(padded_tokens)),
      floor_(floor),
      host_gap_(host_gap),
      context_ranks_(context_ranks) {
  graphs_.largest_mixed = largest_graph;
  if (context_ranks < 1) throw std::invalid_argument("a program has at least one context rank");
  if (attentions_.empty() || attentions_.size() > kMaxAttentions)
    throw std::invalid_argument("a program has 1 to 6 kinds of attention");
  for (const Operator& op : operators_) {
    if (op.kind == NodeKind::kAttention) {
      if (static_cast<std::size_t>(op.attention) >= attentions_.size())
        throw std::invalid_argument("operator " + op.name + ": there is no such attention");
      attention_repeat_[static_cast<std::size_t>(op.attention)] += op.repeat;
      continue;
    }
    if (op.ps.size() != op.provenance.size())
      throw std::invalid_argument("operator " + op.name + ": ragged table");
    auto& fused = fused_[static_cast<std::size_t>(op.feature)];
    if (fused.empty()) fused.assign(op.ps.size(), 0);
    if (fused.size() != op.ps.size())
      throw std::invalid_argument("operator " + op.name + ": table of another length");
    if (op.sampled != nullptr) continue;
    for (std::size_t i = 0; i < op.ps.size(); ++i) fused[i] += op.ps[i] * op.repeat;
    if (op.kind == NodeKind::kCompute) continue;
    auto& collective = collective_[static_cast<std::size_t>(op.feature)];
    collective.resize(op.ps.size(), 0);
    for (std::size_t i = 0; i < op.ps.size(); ++i) collective[i] += op.ps[i] * op.repeat;
  }
  lay_out_layers();
  for (const Operator& op : operators_) {
    first_draw_.push_back(op.sampled != nullptr ? num_draws_ : -1);
    if (op.sampled != nullptr) num_draws_ += op.repeat;
  }
  check_padding(padded_tokens_);
}

// A step reads the tables of tokens, of all kinds, at no more than it pads to.
void Program::check_padding(const std::vector<std::int32_t>& padded_tokens) const {
  for (const Feature feature :
       {Feature::kTokens, Feature::kGathered, Feature::kDecodes, Feature::kPrefills}) {
    const auto rows = static_cast<std::int64_t>(fused_[static_cast<std::size_t>(feature)].size());
    for (const std::int32_t padded : padded_tokens)
      if (padded < 0 || (rows > 0 && padded >= rows))
        throw std::invalid_argument("padding reaches beyond the token tables");
  }
}

void Program::set_graphs(GraphRules graphs) {
  if (!graphs.padded_decode.empty() && graphs.padded_decode.size() != padded_tokens_.size())
    throw std::invalid_argument("padding of decodes has another length than that of other batches");
  check_padding(graphs.padded_decode);
  graphs_ = std::move(graphs);
}

void Program::set_power(PowerTables power) {
  if (power.rows.size() != kNumFeatures || power.attentions.size() != attentions_.size())
    throw std::invalid_argument("tables of power are of every feature and kind of attention");
  for (std::size_t i = 0; i < kNumFeatures; ++i)
    if (!power.rows[i].empty() && power.rows[i].size() != fused_[i].size())
      throw std::invalid_argument("a table of power has another length than the program's");
  if (power.stages < 1) throw std::invalid_argument("power is of at least one stage");
  power_ = std::move(power);
}

DeviceWork Program::device_work(const Batch& batch, const Place& place,
                                const AttentionPrices& attention) const {
  DeviceWork work;
  const std::array<std::int64_t, kNumFeatures> rows = place.rows();
  for (std::size_t i = 0; i < kNumFeatures; ++i)
    if (!power_.rows[i].empty()) work += power_.rows[i][static_cast<std::size_t>(rows[i])];
  const Batch share = context_ranks_ == 1 ? Batch{} : share_of(batch);
  const Batch& mine = context_ranks_ == 1 ? batch : share;
  for (std::size_t i = 0; i < attentions_.size(); ++i) {
    const AttentionEnergy& energy = power_.attentions[i];
    const Features seen = attentions_[i]->seen(mine);
    const std::int64_t pairs = (seen.prefill_area + seen.prefill_tokens) / 2;
    const std::int64_t read = seen.prefill_context + seen.decode_context + seen.decode_sequences;
    work.switching_pj += energy.layers * energy.switching_pj_per_pair * pairs;
    work.traffic_pj += energy.layers * energy.traffic_pj_per_token * read;
    work.clocked += energy.layers * attention[i].prompts_ps;
  }
  return {work.switching_pj / power_.stages, work.traffic_pj / power_.stages,
          work.clocked / power_.stages};
}

Program::Usage Program::new_usage() const {
  Usage usage;
  for (std::size_t i = 0; i < kNumFeatures; ++i) usage.rows[i].assign(fused_[i].size(), 0);
  usage.sampled.assign(draws() ? operators_.size() : 0, 0);
  return usage;
}

namespace {

// A rank's part of a prompt of q tokens: two of 2 * ranks equal pieces, the first piece with the
// last and so on, which sees as many pairs as every other rank's (vLLM's layout of prefill context
// parallelism; prompts are padded to it).
std::int64_t part_of(std::int64_t q, std::int64_t ranks) {
  return 2 * ((q + 2 * ranks - 1) / (2 * ranks));
}

}  // namespace

// The batch as one of the context ranks sees it: fewer tokens after as many others that the pairs
// per token stay.
Batch Program::share_of(const Batch& batch) const {
  Batch mine;
  mine.items = batch.items;
  for (Item& item : mine.items) {
    if (!item.decodes()) {
      const std::int64_t part = part_of(item.tokens, context_ranks_);
      item.computed_before += static_cast<std::int32_t>((item.tokens - part) / 2);
      item.tokens = static_cast<std::int32_t>(part);
    }
    mine.features.add(item);
  }
  if (mine.items.empty()) mine.features = batch.features;
  return mine;
}

Ps Program::lower_bound_ps(const Features& f, std::int64_t tokens) const {
  Ps floor = 0;
  if (floor_.bytes_per_s > 0) {
    int128 bytes = static_cast<int128>(floor_.kv_bytes_per_token) * f.decode_context;
    if (bytes <= floor_.cached_kv_bytes) bytes = 0;
    floor = static_cast<Ps>((bytes + floor_.weight_bytes) * kPsPerSecond / floor_.bytes_per_s);
  }
  if (floor_.flops_per_s > 0) {
    const int128 flops = static_cast<int128>(floor_.flops_per_token) * tokens;
    floor = std::max(floor, static_cast<Ps>(flops * kPsPerSecond / floor_.flops_per_s));
  }
  return floor;
}

void Program::draw(const Place& place, std::int64_t step, std::vector<Ps>& draws) const {
  draws.clear();
  for (const Operator& op : operators_) {
    if (op.sampled == nullptr) continue;
    const SampledCostTable::Step sampled = op.sampled->step(place.at(op.feature), step);
    for (std::int32_t layer = 0; layer < op.repeat; ++layer) draws.push_back(sampled.at(layer));
  }
}

void Program::count(const Features& f, GraphMode mode, Usage& usage) const {
  ++usage.steps;
  ++usage.steps_by_mode[static_cast<std::size_t>(mode)];
  usage.sequences += f.sequences;
  // A token attends to what came before it and to itself: q * (2k + q + 1) / 2 pairs for q tokens
  // after k.
  usage.attended_tokens_x2 += f.prefill_area + f.prefill_tokens +
                              2 * (f.decode_context + f.decode_sequences) + f.draft_area;
  usage.kv_read_tokens += f.prefill_context + f.decode_context + f.decode_sequences;
}

Program::StepPrice Program::run(const Place& place, const AttentionPrices& attention, Usage& usage,
                                std::span<const Ps> draws) const {
  StepPrice price{0, 0};
  for (std::size_t i = 0; i < attentions_.size(); ++i) {
    AttentionPrice& sum = usage.attention[i];
    sum.ps += attention[i].ps;
    for (std::size_t p = 0; p < kNumProvenances; ++p) sum.parts[p] += attention[i].parts[p];
    sum.beyond_permille = std::max(sum.beyond_permille, attention[i].beyond_permille);
    price.ps += attention[i].ps * attention_repeat_[i];
  }
  const std::array<std::int64_t, kNumFeatures> rows = place.rows();
  for (std::size_t i = 0; i < kNumFeatures; ++i) {
    if (fused_[i].empty()) continue;
    const auto row = static_cast<std::size_t>(rows[i]);
    ++usage.rows[i][row];
    price.ps += fused_[i][row];
    if (!collective_[i].empty()) price.communication_ps += collective_[i][row];
  }
  if (num_draws_ > 0) add_draws(place, draws, usage, price);
  return price;
}

Program::StepPrice Program::evaluate(const Batch& batch, const Place& place,
                                     const AttentionPrices& attention, Usage& usage,
                                     std::span<const Ps> draws) const {
  count(batch.features, place.mode, usage);
  const StepPrice price = run(place, attention, usage, draws);
  if (price.ps < lower_bound_ps(batch.features, rank_features(batch).tokens))
    ++usage.steps_below_lower_bound;
  return price;
}

Program::StepPrice Program::evaluate_pass(const Batch& batch, Usage& usage) const {
  StepPrice price = evaluate(batch, usage);
  const Ps span = launched(price.ps, graph_mode(rank_features(batch)));
  usage.launching += span - price.ps;
  price.ps = span;
  return price;
}

void Program::cached_at(const Batch& batch, std::int64_t step, std::vector<Ps>& out) const {
  out.assign(at(cached_layers()), kEndOfTime);
  const Place where = place(batch, padded(rank_features(batch)), 0);
  const AttentionPrices attention = attention_layer(batch);
  std::vector<Ps> draws;
  if (num_draws_ > 0) draw(where, step, draws);
  Ps now = 0;
  for (const ProgramLayer& layer : layers_) {
    for (std::size_t i = 0; i < layer.ops.size(); ++i) {
      const auto index = at(layer.ops[i]);
      const Operator& op = operators_[index];
      const bool attends = op.kind == NodeKind::kAttention;
      now += attends ? attention[static_cast<std::size_t>(op.attention)].ps
             : first_draw_[index] >= 0
                 ? draws[static_cast<std::size_t>(first_draw_[index] + layer.executions[i])]
                 : op.ps[static_cast<std::size_t>(where.at(op.feature))];
      if (op.caches) out[at(layer.number)] = now;
    }
  }
}

std::int32_t Program::cached_layers() const {
  std::int32_t layers = 0;
  for (const Operator& op : operators_)
    if (op.caches && !op.layers.empty()) layers = std::max(layers, op.layers.back() + 1);
  return layers;
}

namespace {

// Operators first .. last - 1 of one part and stage; a kStageSend is alone.
struct Part {
  std::size_t first = 0, last = 0;
};

std::vector<Part> parts_of(const std::vector<Operator>& operators) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < operators.size(); ++i) {
    const Operator& op = operators[i];
    if (!parts.empty()) {
      const Operator& before = operators[i - 1];
      const bool sends = op.kind == NodeKind::kStageSend || before.kind == NodeKind::kStageSend;
      if (!sends && op.part == before.part && op.stage == before.stage) {
        ++parts.back().last;
        continue;
      }
    }
    parts.push_back({i, i + 1});
  }
  return parts;
}

void check_layers(const Operator& op) {
  bool ascend = op.layers.empty() || op.layers[0] >= 0;
  for (std::size_t i = 1; i < op.layers.size(); ++i) ascend &= op.layers[i - 1] < op.layers[i];
  if (!ascend || op.layers.size() != at(op.repeat))
    throw std::invalid_argument("operator " + op.name + ": there are " + std::to_string(op.repeat) +
                                " layers, which ascend");
}

}  // namespace

// Operators that do not say which layers they are in are in the first ones behind those of earlier
// parts that cache something.
void Program::lay_out_layers() {
  std::int32_t first = 0;
  for (const Part& part : parts_of(operators_)) {
    std::map<std::int32_t, ProgramLayer> by_number;
    bool caches = false;
    for (std::size_t i = part.first; i < part.last; ++i) {
      Operator& op = operators_[i];
      if (op.layers.empty()) {
        op.layers.resize(at(op.repeat));
        std::iota(op.layers.begin(), op.layers.end(), first);
      }
      check_layers(op);
      caches |= op.caches;
      for (std::int32_t execution = 0; execution < op.repeat; ++execution) {
        ProgramLayer& layer = by_number[op.layers[at(execution)]];
        layer.ops.push_back(static_cast<std::int32_t>(i));
        layer.executions.push_back(execution);
      }
    }
    for (auto& [number, layer] : by_number) {
      layer.number = number;
      layer.stage = operators_[part.first].stage;
      layer.part = operators_[part.first].part;
      layers_.push_back(std::move(layer));
      if (caches) first = number + 1;
    }
  }
}

void Program::add_draws(const Place& place, std::span<const Ps> draws, Usage& usage,
                        StepPrice& price) const {
  for (std::size_t i = 0; i < operators_.size(); ++i) {
    if (first_draw_[i] < 0) continue;
    const Operator& op = operators_[i];
    Ps sum = 0;
    if (draws.empty()) {
      const SampledCostTable::Step sampled = op.sampled->step(place.at(op.feature), usage.steps);
      for (std::int32_t layer = 0; layer < op.repeat; ++layer) sum += sampled.at(layer);
    } else {
      for (std::int32_t layer = 0; layer < op.repeat; ++layer)
        sum += draws[static_cast<std::size_t>(first_draw_[i] + layer)];
    }
    usage.sampled[i] += sum;
    price.ps += sum;
    if (op.kind == NodeKind::kCollective) price.communication_ps += sum;
  }
}

std::vector<OperatorTime> Program::busy_time(const Usage& usage) const {
  std::vector<OperatorTime> rows;
  for (std::size_t i = 0; i < operators_.size(); ++i) {
    const Operator& op = operators_[i];
    OperatorTime row{.op = static_cast<std::int32_t>(i)};
    if (op.kind == NodeKind::kAttention) {
      const AttentionPrice& used = usage.attention[static_cast<std::size_t>(op.attention)];
      for (std::size_t p = 0; p < kNumProvenances; ++p)
        row.ps[p] = int128{used.parts[p]} * op.repeat;
      row.beyond_permille = used.beyond_permille;
    } else if (op.sampled != nullptr) {
      row.ps[op.sampled->provenance()] = usage.sampled[i];
    } else {
      const auto& counts = usage.rows[static_cast<std::size_t>(op.feature)];
      for (std::size_t x = 0; x < counts.size(); ++x)
        row.ps[op.provenance[x]] += int128{counts[x]} * op.ps[x] * op.repeat;
    }
    rows.push_back(row);
  }
  const auto add_beside = [&](Ps ps) {
    OperatorTime row{.op = static_cast<std::int32_t>(rows.size())};
    row.ps[static_cast<std::size_t>(Provenance::kAnalytic)] = ps;
    rows.push_back(row);
  };
  add_beside(usage.launching);
  if (usage.slowed > 0) add_beside(usage.slowed);
  return rows;
}

}  // namespace llmsim
