// Lays a step out that keeps weights, KV or operators elsewhere: every layer has nodes of its own,
// since buffers go round and what is copied differs.
#include <algorithm>

#include "step/step_graph.h"

namespace llmsim {

namespace {

class OffloadPass {
 public:
  OffloadPass(const Program& program, const OffloadConfig& config, std::int32_t members,
              std::int32_t lanes);
  StepGraph build();

 private:
  using Waits = std::vector<Wait>;
  // A member's part of the batch on its way through the step.
  struct Lane {
    std::uint8_t number = 0;
    Waits ready;               // what its next operator waits for
    std::int32_t hosted = -1;  // the operator that the host has run last; -1: its activations are
                               // on the device
    std::int32_t hosted_execution = -1;
  };

  const Operator& op_at(std::int32_t op) const { return program_.operators()[at(op)]; }
  Wait add(NodeRole role, const Lane& lane, std::int32_t member, std::size_t place,
           DeviceStream kind, const Waits& waits, std::int32_t op = -1, std::int32_t execution = -1,
           std::int16_t route = -1);
  Wait add_copy(std::int32_t member, std::size_t place, const Waits& waits, std::int32_t op,
                std::int32_t execution, std::int32_t source, bool ahead);
  std::int16_t route(OffloadRoute which) const {
    return static_cast<std::int16_t>(config_.weights.sources.size() +
                                     static_cast<std::size_t>(which));
  }
  bool on_host(std::int32_t op) const {
    return at(op) < config_.host.runs.size() && config_.host.runs[at(op)];
  }
  void bring_back(Lane& lane, std::int32_t member, std::size_t place);
  void run(std::size_t number, std::size_t place, std::size_t first, std::size_t last);
  void run_on_host(Lane& lane, std::int32_t member, std::size_t place, std::int32_t op,
                   std::int32_t execution);
  void attend(std::size_t number, std::size_t place);
  void attend_in_memory(Lane& lane, std::int32_t member, std::size_t place, std::int32_t op,
                        std::int32_t execution);
  void together(std::size_t place);
  void hand_over(std::size_t place);
  void load(Waits& after, std::int32_t member, std::size_t place, std::int32_t op,
            std::int32_t execution, const Waits& gate);
  std::size_t attention_at(std::size_t place) const;
  bool copies(std::size_t place) const;
  // What the step leaves of a place for the next one.
  std::size_t slot_of(std::int32_t member, std::size_t place) const {
    return at(member) * places_.size() + place;
  }

  const Program& program_;
  const OffloadConfig& config_;
  std::int32_t members_, stages_;
  const std::vector<ProgramLayer>& places_;
  std::int32_t attention_layers_ = 0;
  StepGraphBuilder builder_;
  std::vector<std::vector<Lane>> lanes_;  // by number and member; the last number: the whole batch
  std::size_t halves_;                    // how many of them go through the layers
  std::vector<std::int32_t> computed_;    // last node of each member and place, so far
  std::vector<std::int32_t> layer_;       // of each place; -1: no attention
  std::vector<std::vector<std::int32_t>> copied_;  // by stage: places with copies, in order
  std::vector<std::int32_t> copied_rank_;          // of each place among them; -1: none
};

OffloadPass::OffloadPass(const Program& program, const OffloadConfig& config, std::int32_t members,
                         std::int32_t lanes)
    : program_(program),
      config_(config),
      members_(members),
      stages_(program.num_stages()),
      places_(program.layers()),
      builder_(members, stages_),
      halves_(at(lanes)) {
  for (const Operator& op : program.operators())
    attention_layers_ += op.kind == NodeKind::kAttention ? op.repeat : 0;
  computed_.assign(places_.size() * at(members), -1);
  lanes_.assign(halves_ == 1 ? 1 : 3, std::vector<Lane>(at(members)));
  for (std::size_t number = 0; number + 1 < lanes_.size(); ++number)
    for (Lane& lane : lanes_[number]) lane.number = static_cast<std::uint8_t>(number + 1);
  builder_.graph().slots =
      members * (static_cast<std::int32_t>(places_.size()) + attention_layers_);
  copied_.resize(at(stages_));
  std::int32_t layer = 0;
  for (std::size_t place = 0; place < places_.size(); ++place) {
    layer_.push_back(attention_at(place) < places_[place].ops.size() ? layer++ : -1);
    auto& of_stage = copied_[at(places_[place].stage)];
    copied_rank_.push_back(copies(place) ? static_cast<std::int32_t>(of_stage.size()) : -1);
    if (copied_rank_.back() >= 0) of_stage.push_back(static_cast<std::int32_t>(place));
  }
}

Wait OffloadPass::add(NodeRole role, const Lane& lane, std::int32_t member, std::size_t place,
                      DeviceStream kind, const Waits& waits, std::int32_t op,
                      std::int32_t execution, std::int16_t route) {
  StepNode node;
  node.role = role;
  node.lane = lane.number;
  node.route = route;
  node.member = member;
  node.stream = stream_of(member * stages_ + places_[place].stage, kind);
  node.op = op;
  node.execution = execution;
  PriceKey key{.role = role, .lane = lane.number, .member = member, .op = op};
  const bool sampled = role == NodeRole::kOperator && program_.first_draw(at(op)) >= 0;
  if (sampled) key.execution = execution;
  // What moves to the memory that attends is the same in every layer.
  const bool every_layer = role >= NodeRole::kQueries;
  if (every_layer) key.op = -1;
  return {WaitFor::kNode, builder_.add(node, key, waits)};
}

Wait OffloadPass::add_copy(std::int32_t member, std::size_t place, const Waits& waits,
                           std::int32_t op, std::int32_t execution, std::int32_t source,
                           bool ahead) {
  StepNode node;
  node.role = NodeRole::kCopy;
  node.ahead = ahead;
  node.route = static_cast<std::int16_t>(source);
  node.member = member;
  node.stream = stream_of(member * stages_ + places_[place].stage, DeviceStream::kCopyIn);
  node.op = op;
  node.execution = execution;
  const auto& sampled = config_.weights.sampled;
  const bool draws = !ahead && at(op) < sampled.size() && sampled[at(op)] != nullptr;
  PriceKey key{.role = NodeRole::kCopy, .ahead = ahead, .member = member, .op = op};
  if (ahead || draws) key.execution = execution;
  // What is sampled is the same for all members: what the last one brings decides.
  if (ahead) key.member = 0;
  if (draws) key.member = members_ - 1;
  return {WaitFor::kNode, builder_.add(node, key, waits)};
}

std::size_t OffloadPass::attention_at(std::size_t place) const {
  const auto& ops = places_[place].ops;
  std::size_t i = 0;
  while (i < ops.size() && op_at(ops[i]).kind != NodeKind::kAttention) ++i;
  return i;
}

bool OffloadPass::copies(std::size_t place) const {
  const WeightStreaming& weights = config_.weights;
  const ProgramLayer& here = places_[place];
  for (std::size_t i = 0; i < here.ops.size(); ++i) {
    const std::size_t o = at(here.ops[i]), e = at(here.executions[i]);
    if (o < weights.ahead.size() && e < weights.ahead[o].size() && weights.ahead[o][e] > 0)
      return true;
    if (o < weights.by_batch.size() && !weights.by_batch[o].empty()) return true;
    if (o < weights.sampled.size() && weights.sampled[o] != nullptr) return true;
  }
  return false;
}

// The copy of an execution's weights. Its buffer is free when the place that used it last has been
// computed: of the stage's places with copies the one `buffers` before, in this step or in the one
// before. `gate` is the operator that decides what is copied.
void OffloadPass::load(Waits& after, std::int32_t member, std::size_t place, std::int32_t op,
                       std::int32_t execution, const Waits& gate) {
  const WeightStreaming& weights = config_.weights;
  const std::size_t o = at(op), e = at(execution);
  if (copied_rank_[place] < 0) return;
  const auto& of_stage = copied_[at(places_[place].stage)];
  const auto count = static_cast<std::int32_t>(of_stage.size());
  const std::int32_t before = copied_rank_[place] - std::min(weights.buffers, count);
  const std::size_t freed =
      slot_of(member, at(of_stage[at(before >= 0 ? before : count + before)]));
  const Wait buffer = before >= 0 ? Wait{WaitFor::kNode, computed_[freed]}
                                  : Wait{WaitFor::kStepBefore, static_cast<std::int32_t>(freed)};
  if (o < weights.ahead.size() && e < weights.ahead[o].size() && weights.ahead[o][e] > 0)
    after.push_back(
        add_copy(member, place, {buffer}, op, execution, weights.ahead_from.at(o).at(e), true));
  const bool sampled = o < weights.sampled.size() && weights.sampled[o] != nullptr;
  if (!sampled && (o >= weights.by_batch.size() || weights.by_batch[o].empty())) return;
  Waits waits{buffer, {WaitFor::kNode, builder_.graph().members[at(member)].begin}};
  if (o < weights.demand.size() && weights.demand[o])
    waits.insert(waits.end(), gate.begin(), gate.end());
  after.push_back(
      add_copy(member, place, waits, op, execution, weights.by_batch_from.at(o), false));
}

// The lane's activations come back from the host.
void OffloadPass::bring_back(Lane& lane, std::int32_t member, std::size_t place) {
  if (lane.hosted < 0) return;
  lane.ready = {add(NodeRole::kFromHost, lane, member, place, DeviceStream::kPull, lane.ready,
                    lane.hosted, lane.hosted_execution, route(OffloadRoute::kFromHost))};
  lane.hosted = -1;
}

void OffloadPass::run_on_host(Lane& lane, std::int32_t member, std::size_t place, std::int32_t op,
                              std::int32_t execution) {
  if (lane.hosted < 0)
    lane.ready = {add(NodeRole::kToHost, lane, member, place, DeviceStream::kCopyOut, lane.ready,
                      op, execution, route(OffloadRoute::kToHost))};
  lane.hosted = op;
  lane.hosted_execution = execution;
  lane.ready = {add(NodeRole::kOperator, lane, member, place, DeviceStream::kHost, lane.ready, op,
                    execution)};
  computed_[slot_of(member, place)] = lane.ready[0].index;
}

// Operators first .. last - 1 of a place, in one lane of all members. Weights are copied once, for
// the lane that comes first. What works on gathered tokens starts when all members are there.
void OffloadPass::run(std::size_t number, std::size_t place, std::size_t first, std::size_t last) {
  const ProgramLayer& here = places_[place];
  for (std::size_t i = first; i < last; ++i) {
    const std::int32_t op = here.ops[i], execution = here.executions[i];
    if (on_host(op)) {
      for (std::int32_t m = 0; m < members_; ++m)
        run_on_host(lanes_[number][at(m)], m, place, op, execution);
      continue;
    }
    Waits all;
    for (std::int32_t m = 0; m < members_; ++m) {
      Lane& lane = lanes_[number][at(m)];
      bring_back(lane, m, place);
      all.insert(all.end(), lane.ready.begin(), lane.ready.end());
    }
    const bool meet = op_at(op).feature == Feature::kGathered;
    for (std::int32_t m = 0; m < members_; ++m) {
      Lane& lane = lanes_[number][at(m)];
      Waits after;
      if (lane.number <= 1) load(after, m, place, op, execution, lane.ready);
      const Waits& ready = meet ? all : lane.ready;
      after.insert(after.end(), ready.begin(), ready.end());
      lane.ready = {
          add(NodeRole::kOperator, lane, m, place, DeviceStream::kCompute, after, op, execution)};
      computed_[slot_of(m, place)] = lane.ready[0].index;
    }
  }
}

// Prompts attend on the device, decodes in the memory, both at once.
void OffloadPass::attend_in_memory(Lane& lane, std::int32_t member, std::size_t place,
                                   std::int32_t op, std::int32_t execution) {
  // With one row buffer a bank either computes or is read and written.
  const bool beside = config_.pim.concurrent;
  const DeviceStream to = beside ? DeviceStream::kCopyOut : DeviceStream::kPim;
  const DeviceStream back = beside ? DeviceStream::kPull : DeviceStream::kPim;
  const auto add = [&](NodeRole role, DeviceStream kind, const Waits& waits, std::int16_t route) {
    return this->add(role, lane, member, place, kind, waits, op, execution, route);
  };
  const std::int16_t out = route(OffloadRoute::kToMemory), in = route(OffloadRoute::kFromMemory);
  const auto slot =
      static_cast<std::int32_t>(computed_.size()) + member * attention_layers_ + layer_[place];
  const Wait prompts{WaitFor::kStepBefore, slot};  // the KV of the layer's earlier prompts is there
  const Wait begun{WaitFor::kNode, builder_.graph().members[at(member)].begin};
  const Waits ready = lane.ready;
  const Wait context = add(NodeRole::kContext, back, {prompts, begun}, in);
  const Wait push = add(NodeRole::kQueries, to, ready, out);
  const Wait work = add(NodeRole::kInMemory, DeviceStream::kPim, {push, prompts}, -1);
  const Wait pull = add(NodeRole::kResults, back, {work}, in);
  const Wait kv = add(NodeRole::kPrompts, to, ready, out);
  if (std::size_t{lane.number} + 1 >= lanes_.size())
    builder_.graph().kept.emplace_back(kv.index, slot);
  Waits after = ready;
  after.push_back(context);
  const Wait prefills = add(NodeRole::kOperator, DeviceStream::kCompute, after, -1);
  lane.ready = {prefills, pull};
  computed_[slot_of(member, place)] = prefills.index;
}

void OffloadPass::attend(std::size_t number, std::size_t place) {
  const std::size_t attention = attention_at(place);
  if (!config_.has_pim) return run(number, place, attention, attention + 1);
  for (std::int32_t m = 0; m < members_; ++m) {
    Lane& lane = lanes_[number][at(m)];
    bring_back(lane, m, place);
    attend_in_memory(lane, m, place, places_[place].ops[attention],
                     places_[place].executions[attention]);
  }
}

// Prologue and head: the whole batch, after all lanes.
void OffloadPass::together(std::size_t place) {
  const std::size_t whole = lanes_.size() - 1;
  const auto same = [](const Wait& wait) {
    return [wait](const Wait& other) { return other.index == wait.index; };
  };
  for (std::int32_t m = 0; m < members_ && halves_ > 1; ++m) {
    Lane& all = lanes_[whole][at(m)];
    all.ready.clear();
    for (std::size_t number = 0; number < halves_; ++number) {
      Lane& lane = lanes_[number][at(m)];
      bring_back(lane, m, place);
      for (const Wait& wait : lane.ready)
        if (std::ranges::none_of(all.ready, same(wait))) all.ready.push_back(wait);
    }
  }
  const ProgramLayer& here = places_[place];
  if (op_at(here.ops[0]).kind == NodeKind::kStageSend) {
    hand_over(place);
  } else {
    run(whole, place, 0, here.ops.size());
  }
  for (std::int32_t m = 0; m < members_ && halves_ > 1; ++m) {
    bring_back(lanes_[whole][at(m)], m, place);
    for (std::size_t number = 0; number < halves_; ++number)
      lanes_[number][at(m)].ready = lanes_[whole][at(m)].ready;
  }
}

// Hidden states leave for the next stage, beside the sender's next batch.
void OffloadPass::hand_over(std::size_t place) {
  for (std::int32_t m = 0; m < members_; ++m) {
    Lane& lane = lanes_.back()[at(m)];
    bring_back(lane, m, place);
    lane.ready = {add(NodeRole::kOperator, lane, m, place, DeviceStream::kSend, lane.ready,
                      places_[place].ops[0], 0)};
    computed_[slot_of(m, place)] = lane.ready[0].index;
  }
}

StepGraph OffloadPass::build() {
  StepGraph& graph = builder_.graph();
  const Lane whole;
  for (std::int32_t m = 0; m < members_; ++m) {
    const Wait begin = add(NodeRole::kBegin, whole, m, 0, DeviceStream::kCompute, {});
    graph.members[at(m)].begin = begin.index;
    for (auto& lanes : lanes_) lanes[at(m)].ready = {begin};
  }
  for (std::size_t place = 0; place < places_.size(); ++place) {
    if (layer_[place] < 0) {
      together(place);
      continue;
    }
    // A lane goes on into the next layer before the other one leaves this one: each computes while
    // the other attends.
    const bool first = place == 0 || layer_[place - 1] < 0;
    const bool last = place + 1 == places_.size() || layer_[place + 1] < 0;
    if (first) {
      for (std::size_t number = 0; number < halves_; ++number) {
        run(number, place, 0, attention_at(place));
        attend(number, place);
      }
    }
    for (std::size_t number = 0; number < halves_; ++number) {
      run(number, place, attention_at(place) + 1, places_[place].ops.size());
      if (last) continue;
      run(number, place + 1, 0, attention_at(place + 1));
      attend(number, place + 1);
    }
  }
  for (std::int32_t m = 0; m < members_; ++m) {
    Waits ready;
    for (std::size_t number = 0; number < halves_; ++number) {
      Lane& lane = lanes_[number][at(m)];
      bring_back(lane, m, places_.size() - 1);
      ready.insert(ready.end(), lane.ready.begin(), lane.ready.end());
    }
    graph.members[at(m)].end =
        add(NodeRole::kEnd, whole, m, places_.size() - 1, DeviceStream::kCompute, ready).index;
  }
  for (std::size_t slot = 0; slot < computed_.size(); ++slot)
    graph.kept.emplace_back(computed_[slot], static_cast<std::int32_t>(slot));
  builder_.end_block();
  return std::move(graph);
}

}  // namespace

StepGraph offload_graph(const Program& program, const OffloadConfig& config, std::int32_t members,
                        std::int32_t lanes) {
  return OffloadPass(program, config, members, lanes).build();
}

}  // namespace llmsim
