#include "offload/offload.h"

#include <algorithm>
#include <stdexcept>

#include "offload/offload_graph.h"

namespace llmsim {

OffloadDomain::OffloadDomain(std::vector<GroupCosts*> members,
                             std::vector<std::shared_ptr<const OffloadConfig>> configs)
    : members_(std::move(members)),
      configs_(std::move(configs)),
      features_(members_, nullptr),
      starts_(members_.size()),
      ends_(members_.size()),
      half_(members_.size()),
      busy_(members_.size()),
      pending_(members_.size()) {
  num_ops_ = static_cast<std::int32_t>(program().operators().size());
  stages_ = program().num_stages();
  for (std::size_t op = 0; op < at(num_ops_); ++op)
    if (program().first_draw(op) >= 0) num_draws_ += program().operators()[op].repeat;
  find_places();
  if (config().has_pim)
    for (const auto& one : configs_) channels_.push_back(std::make_unique<PimChannels>(one->pim));
  if (config().expanded) {
    timing_ = std::make_unique<ExpandedStreams>();
  } else {
    timing_ = std::make_unique<FoldedStreams>();
  }
  lay_out_prices();
  price_ahead();
  const std::size_t units = members_.size() * at(stages_);
  carry_.free.assign(units * kNumDeviceStreams, 0);
  carry_.places.assign(
      members_.size() * (places_.size() + static_cast<std::size_t>(attention_layers_)), 0);
  whole_ = GraphBuilder(*this, 1).build();
  if (config().interleaving != Interleaving::kNever) halves_ = GraphBuilder(*this, 2).build();
}

// Operators of one part and stage repeat together; those that repeat less often are in the first
// layers.
void OffloadDomain::find_places() {
  const auto& operators = program().operators();
  for (std::size_t first = 0; first < operators.size();) {
    const bool kv_transfer = operators[first].kind == NodeKind::kStageSend;
    std::size_t last = first;
    std::int32_t repeat = 0;
    while (last < operators.size() && operators[last].part == operators[first].part &&
           operators[last].stage == operators[first].stage &&
           (operators[last].kind == NodeKind::kStageSend) == kv_transfer)
      repeat = std::max(repeat, operators[last++].repeat);
    for (std::int32_t layer = 0; layer < repeat; ++layer) {
      Place place{operators[first].stage, {}, {}};
      for (std::size_t i = first; i < last; ++i) {
        if (layer >= operators[i].repeat) continue;
        place.ops.push_back(static_cast<std::int32_t>(i));
        place.execution.push_back(layer);
        attention_layers_ += operators[i].kind == NodeKind::kAttention;
      }
      places_.push_back(std::move(place));
    }
    first = last;
  }
}

std::vector<Way> OffloadDomain::ways() const {
  std::vector<Way> ways;
  const std::size_t units = members_.size() * at(stages_);
  for (std::size_t source = 0; source < config().weights.sources.size(); ++source) {
    Way& way = ways.emplace_back(
        Way{false, config().weights.sources[source].before, {}, Purpose::kWeights});
    for (std::size_t unit = 0; unit < units; ++unit)
      way.other.push_back({configs_[unit / at(stages_)]->weights.sources[source].place});
  }
  for (const MemoryWay which : {kToMemory, kFromMemory, kToHost, kFromHost}) {
    const bool memory = which == kToMemory || which == kFromMemory,
               out = which == kToMemory || which == kToHost;
    const Ps before = memory || out ? 0 : config().host.before;
    Way& way = ways.emplace_back(Way{out, before, {}, Purpose::kOther});
    for (std::size_t unit = 0; unit < units; ++unit) {
      const OffloadConfig& mine = *configs_[unit / at(stages_)];
      std::vector<NetworkNodeId> places{mine.host.place};
      if (memory && mine.has_pim) {
        const std::size_t tp = mine.ranks.at(unit % at(stages_)).size();
        const auto first =
            mine.pim.places.begin() + static_cast<std::ptrdiff_t>(unit % at(stages_) * tp);
        places.assign(first, first + static_cast<std::ptrdiff_t>(tp));
      }
      way.other.push_back(std::move(places));
    }
  }
  return ways;
}

void OffloadDomain::start(SharedNetwork* network) {
  if (!config().shared) return;
  if (network == nullptr)
    throw std::invalid_argument("steps that meet other transfers need the network");
  std::vector<std::vector<NetworkNodeId>> ranks;
  for (const auto& one : configs_) ranks.insert(ranks.end(), one->ranks.begin(), one->ranks.end());
  const auto ended = [this](std::size_t member, Ps start, Ps end, Ps now) {
    const Pending pending = pending_[member].front();
    pending_[member].pop_front();
    sink_->timed(member, timed(member, pending, start, end), now);
  };
  shared_ = std::make_unique<ContendedStreams>(*network, std::move(ranks), ways(), carry_, whole_,
                                               amounts_, ended);
  shared_->begin(0);
}

void OffloadDomain::count_memory(std::size_t member, const Batch& batch) {
  const PimConfig& pim = config().pim;
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

// Halves of about equal tokens: the longest first, each to the half with fewer. False: there is
// nothing to split.
bool OffloadDomain::split(std::span<const Batch* const> batches) {
  const auto one = [](const Batch* batch) { return batch->items.size() < 2; };
  if (halves_.nodes.empty() || std::all_of(batches.begin(), batches.end(), one)) return false;
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
      Batch& half = half_[m][work(half_[m][1].features) < work(half_[m][0].features)];
      half.items.push_back(*item);
      half.features.add(item->tokens, item->computed_before);
    }
  }
  for (std::size_t half = 0; half < 2; ++half) {
    std::int64_t gathered = 0;
    for (std::size_t m = 0; m < batches.size(); ++m)
      gathered += program().padded(half_[m][half].features);
    half_draws_.clear();
    for (std::size_t m = 0; m < batches.size(); ++m) {
      const Program& mine = members_[m]->program();
      const Batch& batch = half_[m][half];
      MemberStep step{
          &batch, mine.place(batch.features, mine.padded(batch.features), gathered), {}, {}};
      const auto lane = static_cast<std::int32_t>(half) + 1;
      step.attention =
          config().has_pim ? price_memory(m, lane, batch) : mine.attention_layer(batch);
      if (m == 0 && mine.draws()) mine.draw(step.place, members_[0]->usage().steps, half_draws_);
      price_lane(m, lane, step, half_draws_);
    }
  }
  return true;
}

// How long the devices compute, and what goes to the host and back.
void OffloadDomain::measure(const StreamGraph& graph, std::size_t member) {
  busy_[member] = 0;
  const auto to_host = static_cast<std::int16_t>(config().weights.sources.size() + kToHost);
  for (const StreamNode& node : graph.nodes) {
    if (node.stream / kNumDeviceStreams / stages_ != static_cast<std::int32_t>(member)) continue;
    const std::size_t price = at(node.price);
    if (node.stream % kNumDeviceStreams == static_cast<std::int32_t>(DeviceStream::kCompute)) {
      if (node.price != kGap) busy_[member] += amounts_.ps[price];
    } else if (amounts_.way[price] >= to_host) {
      members_[member]->offload.host_bytes += amounts_.bytes[price];
    }
  }
}

// The graph of this step, whose times are then known; where others may interfere, the choice is
// made as if they did not.
const StreamGraph& OffloadDomain::choose(bool may_split, Ps now, std::span<Ps> starts,
                                         std::span<Ps> ends) {
  StreamCarry halved = carry_;
  timing_->run(whole_, amounts_.ps, now, carry_, starts, ends);
  if (!may_split) return whole_;
  std::vector<Ps> half_starts(starts.size()), half_ends(ends.size());
  timing_->run(halves_, amounts_.ps, now, halved, half_starts, half_ends);
  const bool shorter = *std::max_element(half_ends.begin(), half_ends.end()) <
                       *std::max_element(ends.begin(), ends.end());
  if (!shorter && config().interleaving != Interleaving::kAlways) return whole_;
  std::copy(half_starts.begin(), half_starts.end(), starts.begin());
  std::copy(half_ends.begin(), half_ends.end(), ends.begin());
  std::swap(carry_, halved);
  for (GroupCosts* member : members_) ++member->offload.interleaved_steps;
  return halves_;
}

StepTimes OffloadDomain::timed(std::size_t member, Pending pending, Ps start, Ps end) {
  pending.times.start = start;
  pending.times.end = end;
  pending.times.waiting = std::max<Ps>(0, end - program().host_gap() - start - pending.busy);
  members_[member]->offload.stalled += pending.times.waiting;
  return pending.times;
}

// Everything that the step's nodes take; whether it may be split into halves.
bool OffloadDomain::price(std::span<const Batch* const> batches) {
  steps_ = features_.combine(batches);
  open_.clear();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (config().has_pim) {
      count_memory(m, *batches[m]);
      steps_[m].attention = price_memory(m, 0, *batches[m]);
    }
    GroupCosts& member = *members_[m];
    const Program::StepPrice price = member.program().evaluate(
        *batches[m], steps_[m].place, steps_[m].attention, member.usage(), steps_[m].draws);
    price_lane(m, 0, steps_[m], steps_[m].draws);
    open_.push_back({0, kNever, price.communication_ps, 0, steps_[m].place.tokens});
  }
  for (std::size_t m = 0; m < members_.size(); ++m) price_copies(m, steps_[m]);
  return split(batches);
}

void OffloadDomain::begin(std::span<const Batch* const> batches, Ps now, StepSink& sink) {
  const bool may_split = price(batches);
  if (shared_ && may_split) {  // chosen as if everything were free
    std::fill(carry_.free.begin(), carry_.free.end(), 0);
    std::fill(carry_.places.begin(), carry_.places.end(), 0);
  }
  const StreamGraph& graph =
      !shared_ || may_split ? choose(may_split, now, starts_, ends_) : whole_;
  for (std::size_t m = 0; m < members_.size(); ++m) measure(graph, m);
  if (!shared_) {
    for (std::size_t m = 0; m < members_.size(); ++m)
      sink.timed(m, timed(m, {open_[m], busy_[m]}, starts_[m], ends_[m]), now);
    return;
  }
  sink_ = &sink;
  for (std::size_t m = 0; m < members_.size(); ++m) pending_[m].push_back({open_[m], busy_[m]});
  shared_->give(graph, amounts_.ps, amounts_.bytes, now);
}

OffloadDomain::Described OffloadDomain::describe(std::span<const Batch* const> batches,
                                                 std::int64_t step) {
  for (GroupCosts* member : members_) member->usage().steps = step - 1;
  const bool may_split = price(batches);
  const StreamCarry nothing = carry_;
  Described found{&choose(may_split, 0, starts_, ends_), {}, {}, {}, {}};
  carry_ = nothing;
  FoldedStreams timing;
  timing.run(*found.graph, amounts_.ps, 0, carry_, starts_, ends_);
  carry_ = nothing;
  found.end.assign(timing.node_ends().begin(), timing.node_ends().end());
  for (const StreamNode& node : found.graph->nodes) {
    found.ps.push_back(amounts_.ps[at(node.price)]);
    found.bytes.push_back(amounts_.way[at(node.price)] < 0 ? 0 : amounts_.bytes[at(node.price)]);
  }
  if (found.graph == &halves_) found.halves = half_;
  return found;
}

}  // namespace llmsim
