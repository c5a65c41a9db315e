#include "step/step_graph.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace llmsim {

Segment::Segment(const Program& program, const Parts& parts) {
  for (const auto& [index, times] : parts) {
    const Operator& op = program.operators()[at(index)];
    if (op.kind == NodeKind::kAttention) {
      attention[at(op.attention)] += times;
      continue;
    }
    if (op.sampled != nullptr) continue;
    auto& table = ps[static_cast<std::size_t>(op.feature)];
    table.resize(op.ps.size(), 0);
    for (std::size_t i = 0; i < op.ps.size(); ++i) table[i] += op.ps[i] * times;
  }
}

Ps Segment::price(const Program::Place& place, const AttentionPrices& prices) const {
  Ps sum = 0;
  for (std::size_t i = 0; i < kMaxAttentions; ++i) sum += attention[i] * prices[i].ps;
  for (std::size_t i = 0; i < kNumFeatures; ++i)
    if (!ps[i].empty()) sum += ps[i][static_cast<std::size_t>(place.at(static_cast<Feature>(i)))];
  return sum;
}

StepGraphBuilder::StepGraphBuilder(std::int32_t members, std::int32_t stages) {
  graph_.units = members * stages;
  graph_.stages = stages;
  graph_.members.resize(at(members));
}

std::int32_t StepGraphBuilder::add(StepNode node, const PriceKey& key, std::span<const Wait> waits,
                                   std::span<const Draws> draws) {
  const auto number = static_cast<std::int32_t>(graph_.prices.size());
  const auto [found, is_new] = price_of_.try_emplace(key, number);
  if (is_new) graph_.prices.push_back(key);
  node.price = found->second;
  const auto append = [](auto& all, auto some) {
    const Range range{static_cast<std::int32_t>(all.size()),
                      static_cast<std::int32_t>(some.size())};
    all.insert(all.end(), some.begin(), some.end());
    return range;
  };
  node.waits = append(graph_.waits, waits);
  node.draws = append(graph_.draws, draws);
  graph_.nodes.push_back(node);
  return static_cast<std::int32_t>(graph_.nodes.size()) - 1;
}

HostNodes StepGraphBuilder::add_host(std::int32_t member, std::int32_t stages,
                                     const GraphRules& rules) {
  const auto takes_time = [](const auto& modes) {
    return std::ranges::any_of(modes, [](Ps ps) { return ps > 0; });
  };
  HostNodes host;
  if (!rules.prepares() && std::ranges::none_of(rules.host_ps, takes_time)) return host;
  std::vector<Wait> waits;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    for (const NodeRole role : {NodeRole::kPrepare, NodeRole::kLaunch}) {
      StepNode node;
      node.role = role;
      node.member = member;
      node.stream = stream_of(member * graph_.stages + stage, DeviceStream::kHost);
      const PriceKey key{.role = role, .member = member, .execution = stage};
      const std::int32_t number = add(node, key, waits);
      (role == NodeRole::kPrepare ? host.prepared : host.launched).push_back(number);
      waits = {{WaitFor::kNode, number}};
    }
  }
  graph_.members[at(member)].launched = host.launched.back();
  return host;
}

void StepGraphBuilder::end_block(std::int32_t repeat) {
  const std::int32_t first = graph_.blocks.empty() ? 0 : graph_.blocks.back().last;
  const auto last = static_cast<std::int32_t>(graph_.nodes.size());
  if (last > first) graph_.blocks.push_back({first, last, repeat});
}

namespace {

constexpr std::size_t kLongestPeriod = 12;

// How many layers from `first` on follow the pattern of the first `period`, which occurs at least
// twice; one layer alone is a pattern, too.
std::size_t covered(const std::vector<ProgramLayer>& layers, std::size_t first,
                    std::size_t period) {
  const auto recurs = [&](std::size_t at) {
    const ProgramLayer &one = layers[at], &other = layers[at - period];
    return one.stage == other.stage && one.part == other.part && one.ops == other.ops;
  };
  std::size_t last = first + period;
  if (last > layers.size()) return 0;
  while (last < layers.size() && recurs(last)) ++last;
  const std::size_t times = (last - first) / period;
  return times > 1 || period == 1 ? times * period : 0;
}

}  // namespace

std::vector<LayerRun> layer_runs(const Program& program) {
  const std::vector<ProgramLayer>& layers = program.layers();
  std::vector<LayerRun> runs;
  for (std::size_t first = 0, best = 0; first < layers.size(); first += best) {
    LayerRun& run = runs.emplace_back(LayerRun{first, 1, 1});
    best = 0;
    for (std::size_t period = 1; period <= kLongestPeriod; ++period) {
      const std::size_t length = covered(layers, first, period);
      if (length <= best) continue;
      best = length;
      run.period = period;
    }
    run.repeat = static_cast<std::int32_t>(best / run.period);
  }
  return runs;
}

namespace {

// Lays a program out, layer by layer.
class ProgramPass {
 public:
  ProgramPass(const Program& program, std::int32_t members, bool drafts)
      : program_(program),
        members_(members),
        drafts_(drafts),
        builder_(members, program.num_stages()),
        front_(at(members)) {}

  StepGraph build() {
    begin();
    for (const LayerRun& run : layer_runs(program_)) {
      const ProgramLayer& layer = program_.layers()[run.first];
      while (stage_ < layer.stage) receive();
      if (program_.operators()[at(layer.ops[0])].kind == NodeKind::kStageSend) {
        send(layer.ops[0]);
      } else {
        add_run(run);
      }
    }
    end();
    return std::move(builder_.graph());
  }

 private:
  std::int32_t stream(std::int32_t member, DeviceStream kind) const {
    return stream_of(member * program_.num_stages() + stage_, kind);
  }

  std::int32_t add(NodeRole role, std::int32_t member, std::int32_t stream,
                   std::span<const Wait> waits) {
    StepNode node;
    node.role = role;
    node.member = member;
    node.stream = stream;
    return builder_.add(node, {.role = role, .member = member}, waits);
  }

  void begin() {
    for (std::int32_t m = 0; m < members_; ++m) {
      host_.push_back(builder_.add_host(m, program_.num_stages(), program_.graphs()));
      std::vector<Wait> waits;
      host_.back().add_begin(stage_, waits);
      front_[at(m)] = add(NodeRole::kBegin, m, stream(m, DeviceStream::kCompute), waits);
      builder_.graph().members[at(m)].begin = front_[at(m)];
    }
    builder_.end_block();
  }

  // Every member enters the next stage.
  void receive() {
    ++stage_;
    for (std::int32_t m = 0; m < members_; ++m) {
      std::vector<Wait> waits{{WaitFor::kNode, front_[at(m)]}};
      host_[at(m)].add_begin(stage_, waits);
      front_[at(m)] = add(NodeRole::kReceive, m, stream(m, DeviceStream::kCompute), waits);
    }
    builder_.end_block();
  }

  void send(std::int32_t op) {
    if (program_.operators()[at(op)].feature != Feature::kTokens)
      throw std::invalid_argument("a hand-over is sized by tokens");
    add_slowed();
    for (std::int32_t m = 0; m < members_; ++m) {
      std::vector<Wait> waits{{WaitFor::kNode, front_[at(m)]}};
      host_[at(m)].add_end(stage_, waits);
      front_[at(m)] = add_operator(op, 0, m, DeviceStream::kSend, waits);
    }
    builder_.end_block();
  }

  std::int32_t add_operator(std::int32_t op, std::int32_t execution, std::int32_t member,
                            DeviceStream kind, std::span<const Wait> waits) {
    StepNode node;
    node.member = member;
    node.stream = stream(member, kind);
    node.op = op;
    node.execution = execution;
    const std::int64_t first = program_.first_draw(at(op));
    const Draws draws{first + execution};
    return builder_.add(node, {.member = member, .op = op}, waits, {&draws, first < 0 ? 0U : 1U});
  }

  void add_run(const LayerRun& run) {
    const auto first_node = static_cast<std::int32_t>(builder_.graph().nodes.size());
    meetings_.clear();
    for (std::size_t i = run.first; i < run.first + run.period; ++i)
      add_layer(program_.layers()[i]);
    set_strides(first_node);
    // Where a run begins with a meeting, members come there from the run before.
    StepGraph& graph = builder_.graph();
    for (const std::int32_t meeting : meetings_) {
      const Range range = graph.nodes[at(meeting)].waits;
      for (std::int32_t m = 0; m < members_; ++m) {
        Wait& wait = graph.waits[at(range.first + m)];
        if (run.repeat > 1 && wait.index < first_node)
          wait = {WaitFor::kLayerBefore, front_[at(m)]};
      }
    }
    builder_.end_block(run.repeat);
  }

  void add_layer(const ProgramLayer& layer) {
    bool apart = true;
    for (std::size_t i = 0; i < layer.ops.size(); ++i) {
      const bool together = program_.operators()[at(layer.ops[i])].feature == Feature::kGathered;
      std::vector<Wait> met;
      if (together && apart && members_ > 1) {
        meetings_.push_back(meet());
        met.push_back({WaitFor::kNode, meetings_.back()});
      }
      apart = !together;
      for (std::int32_t m = 0; m < members_; ++m)
        front_[at(m)] =
            add_operator(layer.ops[i], layer.executions[i], m, DeviceStream::kCompute, met);
    }
  }

  // Each run of the block goes on where the one before ends.
  void set_strides(std::int32_t first_node) {
    StepGraph& graph = builder_.graph();
    std::map<std::int32_t, std::int32_t> executions;  // by operator, of one member
    const auto runs_once = [](const StepNode& node) { return node.op >= 0 && node.member == 0; };
    for (std::size_t i = at(first_node); i < graph.nodes.size(); ++i)
      if (runs_once(graph.nodes[i])) ++executions[graph.nodes[i].op];
    for (std::size_t i = at(first_node); i < graph.nodes.size(); ++i) {
      StepNode& node = graph.nodes[i];
      if (node.op < 0) continue;
      node.stride = executions[node.op];
      for (std::int32_t k = 0; k < node.draws.count; ++k)
        graph.draws[at(node.draws.first + k)].stride = node.stride;
    }
  }

  std::int32_t meet() {
    std::vector<Wait> all;
    for (const std::int32_t node : front_) all.push_back({WaitFor::kNode, node});
    return add(NodeRole::kMeet, 0, kNoStream, all);
  }

  // Every member's operators of the stage are done.
  void add_slowed() {
    if (!program_.limits_power()) return;
    for (std::int32_t m = 0; m < members_; ++m)
      front_[at(m)] = add(NodeRole::kSlowed, m, stream(m, DeviceStream::kCompute), {});
    builder_.end_block();
  }

  // The launches are joined before the drafts, which the last stage proposes.
  void end() {
    add_slowed();
    for (std::int32_t m = 0; m < members_; ++m) {
      std::vector<Wait> launched;
      host_[at(m)].add_end(stage_, launched);
      const std::int32_t compute = stream(m, DeviceStream::kCompute);
      if (drafts_) {
        add(NodeRole::kDrafts, m, compute, launched);
        launched.clear();
      }
      builder_.graph().members[at(m)].end = add(NodeRole::kEnd, m, compute, launched);
    }
    builder_.end_block();
  }

  const Program& program_;
  std::int32_t members_;
  bool drafts_;
  StepGraphBuilder builder_;
  std::vector<std::int32_t> front_;     // the last node of each member's way through the stages
  std::vector<HostNodes> host_;         // by member
  std::vector<std::int32_t> meetings_;  // of the block at hand
  std::int32_t stage_ = 0;
};

}  // namespace

StepGraph program_graph(const Program& program, std::int32_t members, bool drafts) {
  return ProgramPass(program, members, drafts).build();
}

namespace {

// Nodes that follow each other on a stream, with nobody waiting for one between them.
struct Run {
  StepNode node;  // the first
  std::int32_t last = 0;
  Segment::Parts parts;
  std::vector<Draws> draws;
};

class FoldPass {
 public:
  FoldPass(const Program& program, const StepGraph& full, const std::vector<bool>& apart)
      : program_(program),
        full_(full),
        apart_(apart),
        awaited_(full.nodes.size(), false),
        run_of_(full.nodes.size(), -1),
        newest_(at(full.units * kNumDeviceStreams), -1) {
    for (const Wait& wait : full.waits) {
      if (wait.from != WaitFor::kStepBefore) awaited_[at(wait.index)] = true;
      if (wait.entry >= 0) awaited_[at(wait.entry)] = true;
    }
    for (const auto& [node, slot] : full.kept) awaited_[at(node)] = true;
  }

  StepGraph build() {
    for (const Block& block : full_.blocks) add(block);
    return emit();
  }

 private:
  void close_all() { newest_.assign(newest_.size(), -1); }

  bool stays_apart(const StepNode& node) const {
    return node.op >= 0 && at(node.op) < apart_.size() && apart_[at(node.op)];
  }

  // Nobody waits inside: its layers are one after the other on each stream.
  bool is_chain(const Block& block) const {
    if (block.repeat == 1) return true;
    for (std::int32_t i = block.first; i < block.last; ++i)
      if (full_.nodes[at(i)].waits.count > 0 || stays_apart(full_.nodes[at(i)])) return false;
    return true;
  }

  void add(const Block& block) {
    const bool chain = is_chain(block);
    if (!chain) close_all();
    const auto first_run = static_cast<std::int32_t>(runs_.size());
    for (std::int32_t i = block.first; i < block.last; ++i) add(i, chain ? block.repeat : 1);
    const auto last_run = static_cast<std::int32_t>(runs_.size());
    if (!chain) close_all();
    const bool repeated = !chain && block.repeat > 1;
    if (last_run > first_run) blocks_.push_back({first_run, last_run, repeated ? block.repeat : 1});
  }

  void add(std::int32_t index, std::int32_t times) {
    const StepNode& node = full_.nodes[at(index)];
    const std::int32_t before = node.stream == kNoStream ? -1 : newest_[at(node.stream)];
    const bool operates = node.role == NodeRole::kOperator;
    const bool joins = operates && before >= 0 && node.waits.count == 0 &&
                       runs_[at(before)].node.role == NodeRole::kOperator &&
                       runs_[at(before)].node.lane == node.lane && !stays_apart(node) &&
                       !stays_apart(runs_[at(before)].node) &&
                       !awaited_[at(runs_[at(before)].last)];
    if (!joins) {
      runs_.push_back({node, index, {}, {}});
      if (node.stream != kNoStream)
        newest_[at(node.stream)] = static_cast<std::int32_t>(runs_.size()) - 1;
    }
    run_of_[at(index)] = joins ? before : static_cast<std::int32_t>(runs_.size()) - 1;
    Run& run = runs_[at(run_of_[at(index)])];
    run.last = index;
    if (!operates) return;
    run.parts.emplace_back(node.op, times);
    for (const Draws& draws : full_.draws_of(node)) {
      // What follows each other in a chain of one layer is one entry.
      const bool follows = draws.stride == 1;
      for (std::int32_t k = 0; k < (follows ? 1 : times); ++k)
        run.draws.push_back(
            {draws.first + std::int64_t{k} * draws.stride, follows ? times : 1, draws.stride});
    }
  }

  StepGraph emit() {
    StepGraphBuilder builder(static_cast<std::int32_t>(full_.members.size()), full_.stages);
    StepGraph& graph = builder.graph();
    for (const Block& block : blocks_) {
      for (std::int32_t i = block.first; i < block.last; ++i) emit(builder, runs_[at(i)]);
      builder.end_block(block.repeat);
    }
    for (std::size_t m = 0; m < full_.members.size(); ++m)
      graph.members[m] = full_.members[m].moved(run_of_);
    graph.slots = full_.slots;
    for (const auto& [node, slot] : full_.kept) graph.kept.emplace_back(run_of_[at(node)], slot);
    return std::move(graph);
  }

  void emit(StepGraphBuilder& builder, const Run& run) {
    std::vector<Wait> waits;
    for (Wait wait : full_.waits_of(run.node)) {
      if (wait.from != WaitFor::kStepBefore) wait.index = run_of_[at(wait.index)];
      if (wait.entry >= 0) wait.entry = run_of_[at(wait.entry)];
      waits.push_back(wait);
    }
    StepNode node = run.node;
    PriceKey key = full_.prices[at(node.price)];
    if (run.parts.size() > 1 || (run.parts.size() == 1 && run.parts[0].second > 1)) {
      node.op = key.op = node.execution = key.execution = -1;
      key.segment = segment_of(builder.graph(), run.parts);
    }
    builder.add(node, key, waits, run.draws);
  }

  std::int32_t segment_of(StepGraph& graph, const Segment::Parts& parts) {
    const auto number = static_cast<std::int32_t>(graph.segments.size());
    const auto [found, is_new] = segment_of_.try_emplace(parts, number);
    if (is_new) graph.segments.push_back(std::make_shared<const Segment>(program_, parts));
    return found->second;
  }

  const Program& program_;
  const StepGraph& full_;
  const std::vector<bool>& apart_;
  std::vector<bool> awaited_;         // by node: another one waits for it
  std::vector<std::int32_t> run_of_;  // by node
  std::vector<std::int32_t> newest_;  // by stream: the run that a node may join; -1: none
  std::vector<Run> runs_;
  std::vector<Block> blocks_;  // of runs
  std::map<Segment::Parts, std::int32_t> segment_of_;
};

}  // namespace

StepGraph folded(const Program& program, const StepGraph& graph, const std::vector<bool>& apart) {
  return FoldPass(program, graph, apart).build();
}

StepGraph unrolled(const StepGraph& graph) {
  StepGraph flat = graph;
  flat.nodes.clear();
  flat.waits.clear();
  flat.draws.clear();
  flat.kept.clear();
  std::vector<std::int32_t> newest(graph.nodes.size(), -1);  // the last copy of each node
  std::vector<std::int32_t> on_stream(at(graph.units * kNumDeviceStreams), -1);
  for (const Block& block : graph.blocks) {
    const std::vector<std::int32_t> entry = on_stream;
    for (std::int32_t layer = 0; layer < block.repeat; ++layer) {
      for (std::int32_t i = block.first; i < block.last; ++i) {
        StepNode node = graph.nodes[at(i)];
        if (node.execution >= 0) node.execution += layer * node.stride;
        node.waits.first = static_cast<std::int32_t>(flat.waits.size());
        for (Wait wait : graph.waits_of(graph.nodes[at(i)])) {
          const std::int32_t target = wait.index;
          if (wait.from != WaitFor::kStepBefore) wait.index = newest[at(target)];
          if (wait.from == WaitFor::kLayerBefore && layer == 0)
            wait.index = wait.entry >= 0 ? newest[at(wait.entry)]
                                         : entry[at(graph.nodes[at(target)].stream)];
          wait.entry = -1;
          if (wait.from == WaitFor::kLayerBefore) wait.from = WaitFor::kNode;
          flat.waits.push_back(wait);
        }
        node.draws.first = static_cast<std::int32_t>(flat.draws.size());
        for (Draws draws : graph.draws_of(graph.nodes[at(i)])) {
          draws.first += std::int64_t{layer} * draws.stride;
          flat.draws.push_back(draws);
        }
        newest[at(i)] = static_cast<std::int32_t>(flat.nodes.size());
        if (node.stream != kNoStream) on_stream[at(node.stream)] = newest[at(i)];
        flat.nodes.push_back(node);
      }
    }
  }
  flat.blocks = {{0, static_cast<std::int32_t>(flat.nodes.size()), 1}};
  for (StepGraph::Member& member : flat.members) member = member.moved(newest);
  for (const auto& [node, slot] : graph.kept) flat.kept.emplace_back(newest[at(node)], slot);
  return flat;
}

std::vector<bool> caching_operators(const Program& program) {
  std::vector<bool> found;
  for (const Operator& op : program.operators()) found.push_back(op.caches);
  return found;
}

LayerNodes caching_nodes(const Program& program, const StepGraph& graph) {
  LayerNodes found(graph.members.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const StepNode& node = graph.nodes[i];
    const bool attends = node.role == NodeRole::kOperator || node.role == NodeRole::kInMemory ||
                         node.role == NodeRole::kPrompts;
    if (!attends || node.op < 0) continue;
    const Operator& op = program.operators()[at(node.op)];
    if (op.caches)
      found[at(node.member)][op.layers[at(node.execution)]].push_back(static_cast<std::int32_t>(i));
  }
  return found;
}

namespace {

class CorrectionPass {
 public:
  CorrectionPass(const StepGraph& full, std::vector<std::int32_t>& marks)
      : full_(full),
        marks_(marks),
        builder_(static_cast<std::int32_t>(full.members.size()), full.stages),
        copy_of_(full.nodes.size(), -1) {
    marks_.assign(at(full.units), -1);
  }

  StepGraph build() {
    for (const Block& block : full_.blocks) {
      for (std::int32_t i = block.first; i < block.last; ++i) add(i);
      builder_.end_block(block.repeat);
    }
    StepGraph& graph = builder_.graph();
    graph.slots = full_.slots;
    graph.segments = full_.segments;
    for (std::size_t m = 0; m < full_.members.size(); ++m)
      graph.members[m] = full_.members[m].moved(copy_of_);
    for (const auto& [node, slot] : full_.kept) graph.kept.emplace_back(copy_of_[at(node)], slot);
    return std::move(graph);
  }

 private:
  bool leaves_unit(const StepNode& node) const {
    const std::int32_t kind = node.stream % kNumDeviceStreams;
    return node.role == NodeRole::kEnd ||
           (node.stream != kNoStream && kind == static_cast<std::int32_t>(DeviceStream::kSend));
  }

  void add(std::int32_t index) {
    const StepNode& node = full_.nodes[at(index)];
    std::vector<Wait> waits;
    for (Wait wait : full_.waits_of(node)) {
      if (wait.from != WaitFor::kStepBefore) wait.index = copy_of_[at(wait.index)];
      if (wait.entry >= 0) wait.entry = copy_of_[at(wait.entry)];
      waits.push_back(wait);
    }
    if (leaves_unit(node)) waits = correct(full_.unit_of(node), node.member, waits);
    const std::span<const Draws> draws = full_.draws_of(node);
    copy_of_[at(index)] = builder_.add(node, full_.prices[at(node.price)], waits, draws);
  }

  // What the node that leaves the unit waits for then. The host's launches are not corrected.
  std::vector<Wait> correct(std::int32_t unit, std::int32_t member,
                            const std::vector<Wait>& before) {
    std::vector<Wait> after, works;
    for (const Wait& wait : before) {
      const bool launch = builder_.graph().nodes[at(wait.index)].role == NodeRole::kLaunch;
      (launch ? after : works).push_back(wait);
    }
    StepNode node;
    node.role = NodeRole::kCorrection;
    node.member = member;
    node.stream = stream_of(unit, DeviceStream::kCompute);
    const PriceKey key{.role = node.role, .member = member, .execution = unit};
    marks_[at(unit)] = builder_.add(node, key, {});
    if (!works.empty()) {
      node.stream = kNoStream;
      marks_[at(unit)] = builder_.add(node, key, works);
      after.push_back({WaitFor::kNode, marks_[at(unit)]});
    }
    return after;
  }

  const StepGraph& full_;
  std::vector<std::int32_t>& marks_;
  StepGraphBuilder builder_;
  std::vector<std::int32_t> copy_of_;  // by node
};

}  // namespace

StepGraph corrected(const StepGraph& graph, std::vector<std::int32_t>& marks) {
  return CorrectionPass(graph, marks).build();
}

}  // namespace llmsim
