#include "offload_graph.h"

#include <algorithm>

namespace llmsim {

OffloadEvaluator::Builder::Builder(const OffloadEvaluator& owner, std::int32_t lanes)
    : owner_(owner), lanes_(static_cast<std::size_t>(lanes)), computed_(owner.places_.size(), -1) {
  for (std::int32_t i = 0; i < lanes; ++i) lanes_[static_cast<std::size_t>(i)].number = lanes == 1 ? 0 : i + 1;
  std::int32_t layer = 0;
  for (std::size_t place = 0; place < owner.places_.size(); ++place) {
    layer_.push_back(attention_at(place) < owner.places_[place].ops.size() ? layer++ : -1);
    copied_rank_.push_back(copies(place) ? static_cast<std::int32_t>(copied_.size()) : -1);
    if (copied_rank_.back() >= 0) copied_.push_back(static_cast<std::int32_t>(place));
  }
}

std::int32_t OffloadEvaluator::Builder::add(DeviceStream stream, std::size_t price, std::array<std::int32_t, 3> after,
                                            bool after_start) {
  graph_.nodes.push_back({stream, after_start, static_cast<std::int32_t>(price), after});
  return static_cast<std::int32_t>(graph_.nodes.size()) - 1;
}

std::size_t OffloadEvaluator::Builder::attention_at(std::size_t place) const {
  const auto& ops = owner_.places_[place].ops;
  std::size_t at = 0;
  while (at < ops.size() &&
         owner_.program_->operators()[static_cast<std::size_t>(ops[at])].kind != NodeKind::kAttention)
    ++at;
  return at;
}

bool OffloadEvaluator::Builder::copies(std::size_t place) const {
  const WeightStreaming& weights = owner_.weights_;
  const Place& here = owner_.places_[place];
  for (std::size_t i = 0; i < here.ops.size(); ++i) {
    const auto o = static_cast<std::size_t>(here.ops[i]), e = static_cast<std::size_t>(here.execution[i]);
    if (o < weights.ahead.size() && e < weights.ahead[o].size() && weights.ahead[o][e] > 0) return true;
    if (o < weights.by_tokens.size() && !weights.by_tokens[o].empty()) return true;
  }
  return false;
}

// The copy of an execution's weights, or -1. Its buffer is free when the place that used it last has been computed: of
// the places with copies the one `buffers` before, in this step or in the one before. `gate` is the operator that
// decides what is copied.
std::int32_t OffloadEvaluator::Builder::load(std::size_t place, std::int32_t op, std::int32_t execution,
                                             std::int32_t gate) {
  const WeightStreaming& weights = owner_.weights_;
  const auto o = static_cast<std::size_t>(op), e = static_cast<std::size_t>(execution);
  if (copied_rank_[place] < 0) return -1;
  const auto copied = static_cast<std::int32_t>(copied_.size());
  const std::int32_t before = copied_rank_[place] - std::min(weights.buffers, copied);
  const std::int32_t freed = copied_[static_cast<std::size_t>(before >= 0 ? before : copied + before)];
  const std::int32_t buffer = before >= 0 ? computed_[static_cast<std::size_t>(freed)] : kCarried + freed;
  std::int32_t node = -1;
  if (o < weights.ahead.size() && e < weights.ahead[o].size() && weights.ahead[o][e] > 0) {
    std::size_t price = static_cast<std::size_t>(owner_.first_ahead_) + e;
    for (std::size_t i = 0; i < o; ++i) price += weights.ahead[i].size();
    node = add(DeviceStream::kCopyIn, price, {buffer, -1, -1}, false);
  }
  if (o < weights.by_tokens.size() && !weights.by_tokens[o].empty())
    node = add(DeviceStream::kCopyIn, static_cast<std::size_t>(owner_.first_by_tokens_ + op),
               {buffer, weights.demand[o] ? gate : -1, -1}, true);
  return node;
}

// Operators first .. last - 1 of a place. Weights are copied once, for the lane that comes first.
void OffloadEvaluator::Builder::compute(Lane& lane, std::size_t place, std::size_t first, std::size_t last) {
  const Place& here = owner_.places_[place];
  for (std::size_t i = first; i < last; ++i) {
    const std::int32_t copied = lane.number <= 1 ? load(place, here.ops[i], here.execution[i], lane.last) : -1;
    lane.last =
        add(DeviceStream::kCompute, owner_.price_of(lane.number, here.ops[i]), {copied, lane.result, lane.last}, true);
    lane.result = -1;
    computed_[place] = lane.last;
  }
}

// Prompts attend on the device, decodes in the memory, both at once.
void OffloadEvaluator::Builder::attend(Lane& lane, std::size_t place) {
  const Place& here = owner_.places_[place];
  const std::int32_t op = here.ops[attention_at(place)], ready = lane.last;
  std::int32_t context = -1;
  if (owner_.pim_) {
    // With one row buffer a bank either computes or is read and written.
    const bool beside = owner_.pim_->concurrent;
    const DeviceStream to = beside ? DeviceStream::kCopyOut : DeviceStream::kPim;
    const DeviceStream back = beside ? DeviceStream::kPull : DeviceStream::kPim;
    const auto extra = [&](Extra what) { return owner_.price_of(lane.number, owner_.num_ops_ + what); };
    const auto kept = static_cast<std::int32_t>(computed_.size()) + layer_[place];
    const std::int32_t prompts = kCarried + kept;  // the KV of the layer's earlier prompts is there
    context = add(back, extra(kContext), {prompts, -1, -1}, true);
    const std::int32_t push = add(to, extra(kPush), {ready, -1, -1}, true);
    const std::int32_t work = add(DeviceStream::kPim, extra(kInMemory), {push, prompts, -1}, true);
    lane.result = add(back, extra(kPull), {work, -1, -1}, true);
    const std::int32_t kv = add(to, extra(kPrompts), {ready, -1, -1}, true);
    if (&lane == &lanes_.back()) graph_.carries.emplace_back(kv, kept);
  }
  lane.last = add(DeviceStream::kCompute, owner_.price_of(lane.number, op), {context, ready, -1}, true);
  computed_[place] = lane.last;
}

// Prologue and head: the whole batch, after all lanes.
void OffloadEvaluator::Builder::together(std::size_t place) {
  for (const Lane& lane : lanes_) {
    all_.last = std::max(all_.last, lane.last);
    all_.result = std::max(all_.result, lane.result);
  }
  compute(all_, place, 0, owner_.places_[place].ops.size());
  for (Lane& lane : lanes_) {
    lane.last = all_.last;
    lane.result = -1;
  }
}

StreamGraph OffloadEvaluator::Builder::build() {
  const auto& places = owner_.places_;
  for (std::size_t place = 0; place < places.size(); ++place) {
    if (layer_[place] < 0) {
      together(place);
      continue;
    }
    // A lane goes on into the next layer before the other one leaves this one: each computes while the other attends.
    const bool first = place == 0 || layer_[place - 1] < 0;
    const bool last = place + 1 == places.size() || layer_[place + 1] < 0;
    if (first) {
      for (Lane& lane : lanes_) {
        compute(lane, place, 0, attention_at(place));
        attend(lane, place);
      }
    }
    for (Lane& lane : lanes_) {
      compute(lane, place, attention_at(place) + 1, places[place].ops.size());
      if (last) continue;
      compute(lane, place + 1, 0, attention_at(place + 1));
      attend(lane, place + 1);
    }
  }
  for (std::size_t place = 0; place < places.size(); ++place)
    graph_.carries.emplace_back(computed_[place], static_cast<std::int32_t>(place));
  graph_.last = computed_.back();
  return std::move(graph_);
}

}  // namespace llmsim
