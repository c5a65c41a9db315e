#include "afd/afd_pricer.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

namespace {

// Tokens [from, to) of an item, whose last ones are drafts.
Item part_of(const Item& item, std::int32_t from, std::int32_t to) {
  Item part = item;
  part.tokens = to - from;
  part.computed_before += from;
  part.drafts = std::max(0, to - std::max(from, item.tokens - item.drafts));
  part.emits = item.emits && to == item.tokens;
  return part;
}

}  // namespace

AfdPricer::AfdPricer(std::vector<GroupCosts*> members, AfdConfig config)
    : members_(std::move(members)), config_(std::move(config)) {
  if (config_.attention_bytes_per_s < 1 || config_.ffn_bytes_per_s < 1 || config_.latency < 0)
    throw std::invalid_argument("the rate or latency of the way between attention and FFN");
  for (std::size_t m = 0; m < members_.size(); ++m)
    if (!attends(m) && members_[m]->drafter() != nullptr)
      throw std::invalid_argument("FFN members have no drafter");
  const auto lanes = at(config_.lanes);
  batches_.assign(lanes, std::vector<Batch>(members_.size()));
  steps_.assign(lanes, std::vector<MemberStep>(members_.size()));
  prices_.resize(members_.size());
  drafts_.resize(members_.size());
  padded_.resize(members_.size());
  work_.resize(members_.size());
  hop_runs_.assign(config_.hops.size(), 0);
  for (const AfdBand& band : config_.bands)
    for (const AfdLayer& layer : band.layers)
      if (!layer.ffn.empty()) hop_runs_.at(at(layer.hop)) += band.repeat;
}

void AfdPricer::begin(std::span<const Batch* const> batches) {
  cut(batches);
  draws_.clear();
  for (std::size_t lane = 0; lane < batches_.size(); ++lane) {
    place_attention(lane);
    place_ffn(lane);
  }
  for (std::size_t m = 0; attends(m); ++m) {
    const auto rows = program(m).place(batches[m]->features, 0, 0).sequences;
    work_[m] = batches[m]->host_work();
    steps_[0][m].place.sequences = rows;  // what works on sequences runs once for all lanes
    drafts_[m] = members_[m]->propose(*batches[m]);
  }
  count(batches);
}

// As many tokens in each lane, the first ones one more; an item may be in several.
void AfdPricer::cut(std::span<const Batch* const> batches) {
  const std::int64_t lanes = config_.lanes;
  for (std::size_t m = 0; attends(m); ++m) {
    const Batch& whole = *batches[m];
    for (auto& lane : batches_) lane[m].clear();
    if (lanes == 1 || whole.empty()) {
      batches_[0][m].items = whole.items;
      batches_[0][m].features = whole.features;
      continue;
    }
    const std::int64_t tokens = whole.features.tokens;
    std::size_t lane = 0;
    std::int64_t room = tokens / lanes + (0 < tokens % lanes);
    for (const Item& item : whole.items) {
      for (std::int32_t from = 0; from < item.tokens;) {
        while (room == 0) {
          ++lane;
          room = tokens / lanes + (static_cast<std::int64_t>(lane) < tokens % lanes);
        }
        const auto to = static_cast<std::int32_t>(std::min<std::int64_t>(item.tokens, from + room));
        const Item part = part_of(item, from, to);
        batches_[lane][m].items.push_back(part);
        batches_[lane][m].features.add(part);
        room -= part.tokens;
        from = to;
      }
    }
  }
}

// With a captured graph all members run a lane at the size of the largest; if one has none, nobody
// pads.
void AfdPricer::place_attention(std::size_t lane) {
  std::int64_t most = 0;
  GraphMode mode = GraphMode::kFull;
  std::size_t taking_part = 0;
  for (std::size_t m = 0; attends(m); ++m) {
    const Features& f = batches_[lane][m].features;
    if (f.tokens == 0) continue;
    ++taking_part;
    most = std::max(most, f.tokens);
    mode = std::min(mode, program(m).graph_mode(f));
  }
  std::int64_t gathered = 0;
  for (std::size_t m = 0; attends(m); ++m) {
    const Batch& batch = batches_[lane][m];
    MemberStep& step = steps_[lane][m];
    step = {};
    step.place.mode = mode;
    if (batch.features.tokens == 0) continue;
    std::int64_t padded = batch.features.tokens;
    if (config_.attention_members == 1) {
      padded = program(m).padded(batch.features);
    } else if (mode != GraphMode::kNone) {
      padded = program(m).padded(most, mode);
    }
    step = {&batch, program(m).place(batch.features, padded, 0), program(m).attention_layer(batch)};
    step.place.mode = mode;
    step.place.sequences = 0;
    gathered += padded;
  }
  for (std::size_t m = 0; m < members_.size(); ++m) steps_[lane][m].place.gathered = gathered;
}

// Rows of all attention members are dealt evenly over the FFN members and their columns of ranks,
// each of which runs at a captured size.
void AfdPricer::place_ffn(std::size_t lane) {
  const std::int64_t rows = steps_[lane][0].place.gathered;
  const GraphMode mode = steps_[lane][0].place.mode;
  const std::int64_t columns =
      (std::int64_t{config_.columns}) *
      (static_cast<std::int64_t>(members_.size()) - config_.attention_members);
  for (std::size_t m = at(config_.attention_members); m < members_.size(); ++m) {
    MemberStep& step = steps_[lane][m];
    step = {};
    step.place.mode = mode;
    if (rows > 0) {
      const std::int64_t each = (rows + columns - 1) / columns;
      const std::int64_t padded = mode == GraphMode::kNone ? each : program(m).padded(each, mode);
      step.place.tokens = step.place.decodes = padded;
      step.place.gathered = padded * config_.sharing;
    }
    const std::size_t before = draws_.size();
    if (!program(m).draws()) continue;
    std::vector<Ps> drawn;
    const std::int64_t step_number =
        members_[m]->usage().steps * config_.lanes + static_cast<std::int64_t>(lane) + 1;
    program(m).draw(step.place, step_number, drawn);
    if (rows == 0) std::ranges::fill(drawn, 0);
    draws_.insert(draws_.end(), drawn.begin(), drawn.end());
    if (draws_.size() - before != static_cast<std::size_t>(program(m).num_draws()))
      throw std::logic_error("a program draws as many times as it says");
  }
}

void AfdPricer::count(std::span<const Batch* const> batches) {
  ffn_busy_ = 0;
  std::int64_t draws_in_lane = 0;
  for (const GroupCosts* member : members_) draws_in_lane += member->program().num_draws();
  std::int64_t before = 0;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const Program& mine = program(m);
    Program::Usage& usage = members_[m]->usage();
    mine.count(attends(m) ? batches[m]->features : Features{}, steps_[0][m].place.mode, usage);
    prices_[m] = {0, 0};
    padded_[m] = 0;
    for (std::size_t lane = 0; lane < batches_.size(); ++lane) {
      const MemberStep& step = steps_[lane][m];
      if (step.place.tokens == 0) continue;
      const auto first =
          static_cast<std::size_t>(static_cast<std::int64_t>(lane) * draws_in_lane + before);
      const auto draws = std::span(draws_).subspan(mine.draws() ? first : 0,
                                                   static_cast<std::size_t>(mine.num_draws()));
      const Program::StepPrice price = mine.run(step.place, step.attention, usage, draws);
      prices_[m].ps += price.ps;
      prices_[m].communication_ps += price.communication_ps;
      padded_[m] += step.place.tokens;
    }
    before += mine.num_draws();
    if (attends(m)) {
      const Features& f = batches[m]->features;
      const bool idle = f.sequences == 0;  // its dummy pass reads no sampling weights
      if (!idle && prices_[m].ps < mine.lower_bound_ps(f, f.tokens))
        ++usage.steps_below_lower_bound;
    } else {
      ffn_busy_ = std::max(ffn_busy_, prices_[m].ps);
    }
  }
  count_rows();
}

AfdPricer::Amount AfdPricer::operator_amount(const KnownSegments& segments,
                                             const PriceKey& key) const {
  const MemberStep& step = steps_[at(key.lane - 1)][at(key.member)];
  if (step.place.tokens == 0) {
    const bool whole =
        key.lane == 1 && key.op >= 0 &&
        program(at(key.member)).operators()[at(key.op)].feature == Feature::kSequences;
    if (!whole) return {};
  }
  if (key.segment >= 0) return {segments[at(key.segment)]->price(step.place, step.attention)};
  const Operator& op = program(at(key.member)).operators()[at(key.op)];
  if (op.kind == NodeKind::kAttention) return {step.attention[at(op.attention)].ps, 0, 1};
  const std::int64_t units = step.place.at(op.feature);
  if (op.sampled == nullptr) return {op.ps[static_cast<std::size_t>(units)], 0, units};
  return {0, 0, units};  // its node has draws
}

void AfdPricer::count_rows() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    M2nCounters& counters = members_[m]->m2n;
    for (std::size_t hop = 0; hop < hop_runs_.size(); ++hop) {
      if (hop_runs_[hop] == 0) continue;
      for (const auto& lane : steps_) {
        const Program::Place& place = lane[m].place;
        counters.sent_bytes += hop_runs_[hop] * port(m, hop, true).at(place);
        counters.received_bytes += hop_runs_[hop] * port(m, hop, false).at(place);
      }
    }
  }
}

const PortBytes& AfdPricer::port(std::size_t member, std::size_t hop, bool out) const {
  const M2nHop& moved = config_.hops[hop];
  if (attends(member)) return out ? moved.attention_out : moved.attention_in;
  return out ? moved.ffn_out : moved.ffn_in;
}

// Between attention and FFN, over one device's port.
AfdPricer::Amount AfdPricer::moved(const PriceKey& key) const {
  const bool out = key.role == NodeRole::kM2nSend;
  const std::int64_t bytes =
      port(at(key.member), at(key.hop), out).at(steps_[at(key.lane - 1)][at(key.member)].place);
  return {transfer_time(bytes, bytes_per_s(at(key.member))), bytes};
}

AfdPricer::Amount AfdPricer::amount(const KnownSegments& segments, const PriceKey& key) const {
  switch (key.role) {
    case NodeRole::kPrepare:
      return {preparing(at(key.member), key.execution)};
    case NodeRole::kLaunch: {
      Ps ps = 0;
      for (const auto& lane : steps_) {
        const MemberStep& step = lane[at(key.member)];
        if (step.place.tokens > 0)
          ps += program(at(key.member)).graphs().launching(step.place.mode);
      }
      return {ps};
    }
    case NodeRole::kDrafts:
      return {drafts_[at(key.member)].ps};
    case NodeRole::kEnd:
      return {host_gap(at(key.member))};
    case NodeRole::kOperator:
      return operator_amount(segments, key);
    case NodeRole::kM2nSend:
    case NodeRole::kM2nReceive:
      return moved(key);
    case NodeRole::kM2nLatency:
      return {steps_[at(key.lane - 1)][0].place.gathered > 0 ? config_.latency : 0};
    default:
      return {};
  }
}

Ps AfdPricer::preparing(std::size_t member, std::int32_t stage) const {
  const HostWork work = attends(member) ? work_[member] : HostWork{};
  return program(member).graphs().preparing(work, stage);
}

// Of the attention's schedulers; FFN members have none.
Ps AfdPricer::host_gap(std::size_t member) const {
  return attends(member) ? program(member).host_gap(work_[member].sequences) : 0;
}

void AfdPricer::fill(const StepGraph& graph, StepPrices& prices) const {
  fill_prices(graph, prices, [&](const PriceKey& key) { return amount(graph.segments, key); });
  prices.draws = draws_;
}

void AfdPricer::fill(const MemberKinds& kinds, const KindKeys& keys, const Segments& segments,
                     AfdPrices& prices) const {
  prices.kinds.resize(kinds.size());
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    KindPrices& of_kind = prices.kinds[kind];
    of_kind.ps.clear();
    of_kind.bytes.clear();
    for (PriceKey key : keys.of(kind)) {
      for (const std::int32_t member : kinds.members(kind)) {
        key.member = member;
        const Amount one = amount(segments.all(), key);
        of_kind.ps.push_back(one.ps);
        of_kind.bytes.push_back(one.bytes);
      }
    }
  }
  prices.draws = draws_;
}

bool AfdPricer::serves(std::size_t member) const {
  const std::size_t first = attends(member) ? member : 0;
  const std::size_t end = attends(member) ? member + 1 : at(config_.attention_members);
  return std::ranges::any_of(batches_, [&](const std::vector<Batch>& lane) {
    return std::any_of(lane.begin() + first, lane.begin() + end,
                       [](const Batch& batch) { return !batch.empty(); });
  });
}

OpenStep AfdPricer::open(std::size_t member) const {
  const Program::StepPrice &price = prices_[member], &drafts = drafts_[member];
  return {price.communication_ps + drafts.communication_ps, price.ps + drafts.ps, padded_[member],
          host_gap(member), drafts.ps};
}

}  // namespace llmsim
