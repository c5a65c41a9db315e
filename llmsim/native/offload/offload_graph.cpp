#include "offload/offload_graph.h"

#include <algorithm>

namespace llmsim {

OffloadDomain::GraphBuilder::GraphBuilder(const OffloadDomain& owner, std::int32_t lanes)
    : owner_(owner),
      halves_(at(lanes)),
      computed_(owner.places_.size() * owner.members_.size(), -1) {
  lanes_.assign(halves_ == 1 ? 1 : 3, std::vector<Lane>(num_members()));
  for (std::size_t number = 0; number + 1 < lanes_.size(); ++number)
    for (Lane& lane : lanes_[number]) lane.number = static_cast<std::int32_t>(number) + 1;
  graph_.units = owner.stages_ * static_cast<std::int32_t>(num_members());
  copied_.resize(at(owner.stages_));
  std::int32_t layer = 0;
  for (std::size_t place = 0; place < owner.places_.size(); ++place) {
    layer_.push_back(attention_at(place) < owner.places_[place].ops.size() ? layer++ : -1);
    auto& of_stage = copied_[at(owner.places_[place].stage)];
    copied_rank_.push_back(copies(place) ? static_cast<std::int32_t>(of_stage.size()) : -1);
    if (copied_rank_.back() >= 0) of_stage.push_back(static_cast<std::int32_t>(place));
  }
}

std::int32_t OffloadDomain::GraphBuilder::add(std::int32_t stream, std::size_t price,
                                              const Nodes& after, const NodeLabel& label) {
  graph_.nodes.push_back({stream, static_cast<std::int32_t>(price),
                          static_cast<std::int32_t>(graph_.after.size()),
                          static_cast<std::int32_t>(after.size()), label.role == NodeRole::kBegin});
  graph_.labels.push_back(label);
  graph_.after.insert(graph_.after.end(), after.begin(), after.end());
  return static_cast<std::int32_t>(graph_.nodes.size()) - 1;
}

std::int32_t OffloadDomain::GraphBuilder::stream(std::size_t member, std::size_t place,
                                                 DeviceStream kind) const {
  const auto unit =
      static_cast<std::int32_t>(member) * owner_.stages_ + owner_.places_[place].stage;
  return stream_of(unit, kind);
}

std::size_t OffloadDomain::GraphBuilder::attention_at(std::size_t place) const {
  const auto& ops = owner_.places_[place].ops;
  std::size_t i = 0;
  while (i < ops.size() && owner_.program().operators()[at(ops[i])].kind != NodeKind::kAttention)
    ++i;
  return i;
}

bool OffloadDomain::GraphBuilder::copies(std::size_t place) const {
  const WeightStreaming& weights = owner_.config().weights;
  const Place& here = owner_.places_[place];
  for (std::size_t i = 0; i < here.ops.size(); ++i) {
    const std::size_t o = at(here.ops[i]), e = at(here.execution[i]);
    if (o < weights.ahead.size() && e < weights.ahead[o].size() && weights.ahead[o][e] > 0)
      return true;
    if (o < weights.by_batch.size() && !weights.by_batch[o].empty()) return true;
    if (o < weights.sampled.size() && weights.sampled[o] != nullptr) return true;
  }
  return false;
}

// What the step leaves in a place for the next one.
std::size_t OffloadDomain::GraphBuilder::kept(std::size_t member, std::size_t place) const {
  return member * owner_.places_.size() + place;
}

// The copy of an execution's weights. Its buffer is free when the place that used it last has been
// computed: of the stage's places with copies the one `buffers` before, in this step or in the one
// before. `gate` is the operator that decides what is copied.
void OffloadDomain::GraphBuilder::load(Nodes& after, std::size_t member, std::size_t place,
                                       std::int32_t op, std::int32_t execution, const Nodes& gate) {
  const WeightStreaming& weights = owner_.config().weights;
  const std::size_t o = at(op), e = at(execution);
  if (copied_rank_[place] < 0) return;
  const auto& of_stage = copied_[at(owner_.places_[place].stage)];
  const auto count = static_cast<std::int32_t>(of_stage.size());
  const std::int32_t before = copied_rank_[place] - std::min(weights.buffers, count);
  const std::size_t freed = at(of_stage[at(before >= 0 ? before : count + before)]);
  const std::int32_t buffer = before >= 0
                                  ? computed_[kept(member, freed)]
                                  : kCarried + static_cast<std::int32_t>(kept(member, freed));
  const std::int32_t copy_in = stream(member, place, DeviceStream::kCopyIn);
  if (o < weights.ahead.size() && e < weights.ahead[o].size() && weights.ahead[o][e] > 0)
    after.push_back(add(copy_in, owner_.ahead_price(op, execution), {buffer},
                        {NodeRole::kCopy, op, execution}));
  const bool sampled = o < weights.sampled.size() && weights.sampled[o] != nullptr;
  if (!sampled && (o >= weights.by_batch.size() || weights.by_batch[o].empty())) return;
  Nodes waits{buffer, graph_.members[member].begin};
  if (o < weights.demand.size() && weights.demand[o])
    waits.insert(waits.end(), gate.begin(), gate.end());
  after.push_back(add(copy_in, owner_.batch_price(member, op, execution), waits,
                      {NodeRole::kCopy, op, execution}));
}

// The lane's activations come back from the host.
void OffloadDomain::GraphBuilder::bring_back(Lane& lane, std::size_t member, std::size_t place) {
  if (lane.hosted.op < 0) return;
  NodeLabel label = lane.hosted;
  label.role = NodeRole::kFromHost;
  lane.ready = {add(stream(member, place, DeviceStream::kPull),
                    owner_.from_host(member, lane.number, label.op), lane.ready, label)};
  lane.hosted = {};
}

void OffloadDomain::GraphBuilder::run_on_host(Lane& lane, std::size_t member, std::size_t place,
                                              std::int32_t op, std::int32_t execution) {
  if (lane.hosted.op < 0)
    lane.ready = {add(stream(member, place, DeviceStream::kCopyOut),
                      owner_.to_host(member, lane.number, op), lane.ready,
                      {NodeRole::kToHost, op, execution, lane.number})};
  lane.hosted = {NodeRole::kOperator, op, execution, lane.number};
  lane.ready = {add(stream(member, place, DeviceStream::kHost),
                    owner_.op_price(member, lane.number, op, execution), lane.ready, lane.hosted)};
  computed_[kept(member, place)] = lane.ready[0];
}

// Operators first .. last - 1 of a place, in one lane of all members. Weights are copied once, for
// the lane that comes first. What works on gathered tokens starts when all members are there.
void OffloadDomain::GraphBuilder::run(std::size_t number, std::size_t place, std::size_t first,
                                      std::size_t last) {
  const Place& here = owner_.places_[place];
  for (std::size_t i = first; i < last; ++i) {
    const std::int32_t op = here.ops[i], execution = here.execution[i];
    if (owner_.on_host(op)) {
      for (std::size_t m = 0; m < num_members(); ++m)
        run_on_host(lanes_[number][m], m, place, op, execution);
      continue;
    }
    Nodes all;
    for (std::size_t m = 0; m < num_members(); ++m) {
      Lane& lane = lanes_[number][m];
      bring_back(lane, m, place);
      all.insert(all.end(), lane.ready.begin(), lane.ready.end());
    }
    const bool meet = owner_.program().operators()[at(op)].feature == Feature::kGathered;
    for (std::size_t m = 0; m < num_members(); ++m) {
      Lane& lane = lanes_[number][m];
      Nodes after;
      if (lane.number <= 1) load(after, m, place, op, execution, lane.ready);
      const Nodes& ready = meet ? all : lane.ready;
      after.insert(after.end(), ready.begin(), ready.end());
      lane.ready = {add(stream(m, place, DeviceStream::kCompute),
                        owner_.op_price(m, lane.number, op, execution), after,
                        {NodeRole::kOperator, op, execution, lane.number})};
      computed_[kept(m, place)] = lane.ready[0];
    }
  }
}

// Prompts attend on the device, decodes in the memory, both at once.
void OffloadDomain::GraphBuilder::attend_in_memory(Lane& lane, std::size_t member,
                                                   std::size_t place, std::int32_t op,
                                                   std::int32_t execution) {
  // With one row buffer a bank either computes or is read and written.
  const bool beside = owner_.config().pim.concurrent;
  const std::int32_t to =
      stream(member, place, beside ? DeviceStream::kCopyOut : DeviceStream::kPim);
  const std::int32_t back =
      stream(member, place, beside ? DeviceStream::kPull : DeviceStream::kPim);
  const auto extra = [&](Extra what) { return owner_.extra_price(member, lane.number, what); };
  const auto label = [&](NodeRole role) { return NodeLabel{role, op, execution, lane.number}; };
  const auto layers = static_cast<std::size_t>(owner_.attention_layers_);
  const auto place_of_kv =
      static_cast<std::int32_t>(computed_.size() + member * layers + at(layer_[place]));
  const std::int32_t prompts =
      kCarried + place_of_kv;  // the KV of the layer's earlier prompts is there
  const Nodes ready = lane.ready;
  const std::int32_t context = add(back, extra(kContext), {prompts, graph_.members[member].begin},
                                   label(NodeRole::kContext));
  const std::int32_t push = add(to, extra(kPush), ready, label(NodeRole::kQueries));
  const std::int32_t work = add(stream(member, place, DeviceStream::kPim), extra(kInMemory),
                                {push, prompts}, label(NodeRole::kInMemory));
  const std::int32_t pull = add(back, extra(kPull), {work}, label(NodeRole::kResults));
  const std::int32_t kv = add(to, extra(kPrompts), ready, label(NodeRole::kPrompts));
  if (at(lane.number) + 1 >= lanes_.size()) graph_.carries.emplace_back(kv, place_of_kv);
  Nodes after = ready;
  after.push_back(context);
  const std::int32_t prefills =
      add(stream(member, place, DeviceStream::kCompute), owner_.lane_price(member, lane.number, op),
          after, label(NodeRole::kOperator));
  lane.ready = {prefills, pull};
  computed_[kept(member, place)] = prefills;
}

void OffloadDomain::GraphBuilder::attend(std::size_t number, std::size_t place) {
  const std::size_t attention = attention_at(place);
  const std::int32_t op = owner_.places_[place].ops[attention];
  if (!owner_.config().has_pim) return run(number, place, attention, attention + 1);
  for (std::size_t m = 0; m < num_members(); ++m) {
    Lane& lane = lanes_[number][m];
    bring_back(lane, m, place);
    attend_in_memory(lane, m, place, op, owner_.places_[place].execution[attention]);
  }
}

// Prologue and head: the whole batch, after all lanes.
void OffloadDomain::GraphBuilder::together(std::size_t place) {
  const std::size_t whole = lanes_.size() - 1;
  for (std::size_t m = 0; m < num_members() && halves_ > 1; ++m) {
    Lane& all = lanes_[whole][m];
    all.ready.clear();
    for (std::size_t number = 0; number < halves_; ++number) {
      Lane& lane = lanes_[number][m];
      bring_back(lane, m, place);
      for (const std::int32_t node : lane.ready)
        if (std::find(all.ready.begin(), all.ready.end(), node) == all.ready.end())
          all.ready.push_back(node);
    }
  }
  const Place& here = owner_.places_[place];
  if (owner_.program().operators()[at(here.ops[0])].kind == NodeKind::kStageSend) {
    hand_over(place);
  } else {
    run(whole, place, 0, here.ops.size());
  }
  for (std::size_t m = 0; m < num_members() && halves_ > 1; ++m) {
    bring_back(lanes_[whole][m], m, place);
    for (std::size_t number = 0; number < halves_; ++number)
      lanes_[number][m].ready = lanes_[whole][m].ready;
  }
}

// Hidden states leave for the next stage, beside the sender's next batch.
void OffloadDomain::GraphBuilder::hand_over(std::size_t place) {
  for (std::size_t m = 0; m < num_members(); ++m) {
    Lane& lane = lanes_.back()[m];
    bring_back(lane, m, place);
    const std::int32_t op = owner_.places_[place].ops[0];
    lane.ready = {add(stream(m, place, DeviceStream::kSend), owner_.lane_price(m, lane.number, op),
                      lane.ready, {NodeRole::kOperator, op, 0, lane.number})};
    computed_[kept(m, place)] = lane.ready[0];
  }
}

StreamGraph OffloadDomain::GraphBuilder::build() {
  const auto& places = owner_.places_;
  for (std::size_t m = 0; m < num_members(); ++m) {
    const std::int32_t begin =
        add(stream(m, 0, DeviceStream::kCompute), at(kNothing), {}, {NodeRole::kBegin});
    graph_.members.push_back({begin, begin});
    for (auto& lanes : lanes_) lanes[m].ready = {begin};
  }
  for (std::size_t place = 0; place < places.size(); ++place) {
    if (layer_[place] < 0) {
      together(place);
      continue;
    }
    // A lane goes on into the next layer before the other one leaves this one: each computes while
    // the other attends.
    const bool first = place == 0 || layer_[place - 1] < 0;
    const bool last = place + 1 == places.size() || layer_[place + 1] < 0;
    if (first) {
      for (std::size_t number = 0; number < halves_; ++number) {
        run(number, place, 0, attention_at(place));
        attend(number, place);
      }
    }
    for (std::size_t number = 0; number < halves_; ++number) {
      run(number, place, attention_at(place) + 1, places[place].ops.size());
      if (last) continue;
      run(number, place + 1, 0, attention_at(place + 1));
      attend(number, place + 1);
    }
  }
  for (std::size_t m = 0; m < num_members(); ++m) {
    Nodes ready;
    for (std::size_t number = 0; number < halves_; ++number) {
      Lane& lane = lanes_[number][m];
      bring_back(lane, m, places.size() - 1);
      ready.insert(ready.end(), lane.ready.begin(), lane.ready.end());
    }
    graph_.members[m].end = add(stream(m, places.size() - 1, DeviceStream::kCompute), at(kGap),
                                ready, {NodeRole::kEnd});
  }
  for (std::size_t i = 0; i < computed_.size(); ++i)
    graph_.carries.emplace_back(computed_[i], static_cast<std::int32_t>(i));
  return std::move(graph_);
}

}  // namespace llmsim
