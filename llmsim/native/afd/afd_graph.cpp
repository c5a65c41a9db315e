#include "afd/afd_graph.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace llmsim {

namespace {

class AfdPass {
 public:
  AfdPass(const AfdConfig& config, std::span<const Program* const> programs, bool full, bool drafts,
          Segments& segments)
      : config_(config),
        programs_(programs),
        segments_(segments),
        full_(full),
        drafts_(drafts),
        members_(static_cast<std::int32_t>(programs.size())),
        attention_(config.attention_members),
        stages_(programs.front()->num_stages()),
        builder_(members_, stages_),
        front_(programs.size(), 0),
        back_(at(config.lanes), std::vector<std::int32_t>(at(attention_), 0)),
        runs_(programs.size()),
        draws_before_(programs.size(), 0) {
    check();
    for (std::size_t m = 0; m < programs.size(); ++m) {
      runs_[m].assign(programs[m]->operators().size(), 0);
      draws_before_[m] = draws_;
      draws_ += programs[m]->num_draws();
    }
  }

  StepGraph build() {
    begin();
    for (stage_ = 0; stage_ < stages_; ++stage_) {
      if (stage_ > 0) receive();
      around_layers(kPrologue);
      for (const AfdBand& band : config_.bands)
        if (band.stage == stage_) add(band);
      around_layers(kHead);
    }
    stage_ = stages_ - 1;
    end();
    builder_.graph().segments = segments_.all();
    return std::move(builder_.graph());
  }

 private:
  static constexpr std::int32_t kPrologue = 0, kHead = 2;  // parts of a program

  void check() const {
    if (attention_ < 1 || attention_ >= members_)
      throw std::invalid_argument("attention members and at least one FFN member are needed");
    if (config_.lanes < 1 || config_.columns < 1 || config_.sharing < 1)
      throw std::invalid_argument("at least one lane and one column of ranks are needed");
    for (std::int32_t m = 0; m < members_; ++m)
      if (programs_[at(m)]->num_stages() > stages_)
        throw std::invalid_argument("FFN members have more stages than the attention's");
    for (const AfdBand& band : config_.bands) {
      if (band.stage < 0 || band.stage >= stages_ || band.repeat < 1)
        throw std::invalid_argument("a band of layers is in no stage, or never runs");
      for (const AfdLayer& layer : band.layers) {
        if (layer.attention.empty())
          throw std::invalid_argument("a layer has no operators on the attention's devices");
        if (layer.hop < 0 || at(layer.hop) >= config_.hops.size())
          throw std::invalid_argument("a layer moves what no hop describes");
      }
    }
  }

  std::int32_t stream(std::int32_t member, DeviceStream kind) const {
    return stream_of(member * stages_ + stage_, kind);
  }
  std::uint8_t lane_number(std::int32_t lane) const { return static_cast<std::uint8_t>(lane + 1); }

  std::int32_t add(NodeRole role, std::int32_t member, std::int32_t stream,
                   std::span<const Wait> waits, std::int32_t lane = -1, std::int32_t hop = -1) {
    StepNode node;
    node.role = role;
    node.member = member;
    node.stream = stream;
    node.lane = lane_number(lane);
    const PriceKey key{.role = role, .lane = node.lane, .member = member, .hop = hop};
    return builder_.add(node, key, waits);
  }

  std::int32_t meet(const std::vector<std::int32_t>& nodes) {
    std::vector<Wait> waits;
    for (const std::int32_t node : nodes) waits.push_back({WaitFor::kNode, node});
    return add(NodeRole::kMeet, 0, kNoStream, waits);
  }

  void begin() {
    stage_ = 0;
    for (std::int32_t m = 0; m < members_; ++m) {
      const HostNodes host = builder_.add_host(m, 1, programs_[at(m)]->graphs());
      std::vector<Wait> waits;
      host.add_begin(stage_, waits);
      front_[at(m)] = add(NodeRole::kBegin, m, stream(m, DeviceStream::kCompute), waits);
      builder_.graph().members[at(m)].begin = front_[at(m)];
      launched_.insert(launched_.end(), host.launched.begin(), host.launched.end());
    }
    for (auto& lane : back_)
      for (std::int32_t m = 0; m < attention_; ++m) lane[at(m)] = front_[at(m)];
    builder_.end_block();
  }

  // Every lane enters the next stage of its attention member.
  void receive() {
    for (auto& lane : back_)
      for (std::int32_t m = 0; m < attention_; ++m) {
        const Wait sent{WaitFor::kNode, lane[at(m)]};
        lane[at(m)] = add(NodeRole::kReceive, m, stream(m, DeviceStream::kCompute), {&sent, 1});
      }
    builder_.end_block();
  }

  // What a stage runs before or behind its layers: each lane for itself, but what works on
  // sequences once for all of them.
  void around_layers(std::int32_t part) {
    for (std::int32_t m = 0; m < attention_; ++m) {
      const auto& operators = programs_[at(m)]->operators();
      std::vector<std::int32_t> by_lane, once, sends;
      for (std::int32_t i = 0; i < static_cast<std::int32_t>(operators.size()); ++i) {
        const Operator& op = operators[at(i)];
        if (op.part != part || op.stage != stage_) continue;
        const bool whole = op.feature == Feature::kSequences;
        (op.kind == NodeKind::kStageSend ? sends : whole ? once : by_lane).push_back(i);
      }
      for (std::int32_t lane = 0; lane < config_.lanes; ++lane) {
        std::int32_t& back = back_[at(lane)][at(m)];
        back = run(by_lane, m, lane, DeviceStream::kCompute, back);
        back = run(sends, m, lane, DeviceStream::kSend, back);
      }
      run(once, m, 0, DeviceStream::kCompute, -1);
    }
    builder_.end_block();
  }

  // Operators one after the other; the last node, or `after` where there are none.
  std::int32_t run(const std::vector<std::int32_t>& operators, std::int32_t member,
                   std::int32_t lane, DeviceStream kind, std::int32_t after) {
    if (operators.empty()) return after;
    std::vector<Wait> waits;
    if (after >= 0) waits.push_back({WaitFor::kNode, after});
    if (!full_) return add_operators(operators, member, lane, kind, waits);
    std::int32_t node = after;
    for (const std::int32_t op : operators) {
      node = add_operators({op}, member, lane, kind, waits);
      waits.clear();
    }
    return node;
  }

  std::int32_t add_operators(const std::vector<std::int32_t>& operators, std::int32_t member,
                             std::int32_t lane, DeviceStream kind, std::span<const Wait> waits) {
    const Program& program = *programs_[at(member)];
    StepNode node;
    node.member = member;
    node.stream = stream(member, kind);
    node.lane = lane_number(lane);
    PriceKey key{.lane = node.lane, .member = member};
    std::vector<Draws> draws;
    Segment::Parts parts;
    for (const std::int32_t op : operators) {
      std::int32_t& runs = runs_[at(member)][at(op)];
      const std::int32_t execution = runs / config_.lanes;
      ++runs;
      parts.emplace_back(op, 1);
      const std::int64_t first = program.first_draw(at(op));
      if (first >= 0)
        draws.push_back({lane * draws_ + draws_before_[at(member)] + first + execution});
      if (operators.size() == 1) {
        node.op = key.op = op;
        node.execution = execution;
      }
    }
    if (operators.size() > 1) key.segment = segments_.number(program, parts);
    return builder_.add(node, key, waits, draws);
  }

  // Sampled times differ from layer to layer, so that none of them can be leapt over.
  void add(const AfdBand& band) {
    const bool apart = full_ || draws_ > 0;
    for (std::int32_t i = 0; i < (apart ? band.repeat : 1); ++i) {
      const auto first_node = static_cast<std::int32_t>(builder_.graph().nodes.size());
      const auto entry = back_;
      for (const AfdLayer& layer : band.layers)
        for (std::int32_t lane = 0; lane < config_.lanes; ++lane) add(layer, lane);
      const std::int32_t repeat = apart ? 1 : band.repeat;
      if (repeat > 1) carry_over(first_node, entry);
      builder_.end_block(repeat);
    }
  }

  // In a repeated block, what waits for the layer before it waits for the block's last layer, but
  // in its first run.
  void carry_over(std::int32_t first_node, const std::vector<std::vector<std::int32_t>>& entry) {
    StepGraph& graph = builder_.graph();
    for (std::size_t i = at(first_node); i < graph.nodes.size(); ++i) {
      const StepNode& node = graph.nodes[i];
      for (std::int32_t w = node.waits.first; w < node.waits.first + node.waits.count; ++w) {
        Wait& wait = graph.waits[at(w)];
        if (wait.from != WaitFor::kNode || wait.index >= first_node) continue;
        const std::size_t lane = at(node.lane - 1), m = at(node.member);
        if (wait.index != entry[lane][m])
          throw std::logic_error("a layer waits for a node that it cannot know");
        wait = {WaitFor::kLayerBefore, back_[lane][m], wait.index};
      }
    }
  }

  void add(const AfdLayer& layer, std::int32_t lane) {
    std::vector<std::int32_t> computed, sent;
    for (std::int32_t m = 0; m < attention_; ++m) {
      std::int32_t& back = back_[at(lane)][at(m)];
      back = run(layer.attention, m, lane, DeviceStream::kCompute, back);
      computed.push_back(back);
    }
    if (layer.ffn.empty()) return;
    for (std::int32_t m = 0; m < attention_; ++m)
      sent.push_back(send(m, lane, layer.hop, computed[at(m)]));
    const std::int32_t all_computed = meet(computed), all_sent = meet(sent);
    computed.clear();
    sent.clear();
    for (std::int32_t f = attention_; f < members_; ++f) {
      const std::int32_t there = arrive(f, lane, layer.hop, all_computed, all_sent);
      computed.push_back(run(layer.ffn, f, lane, DeviceStream::kCompute, there));
    }
    for (std::int32_t f = attention_; f < members_; ++f)
      sent.push_back(send(f, lane, layer.hop, computed[at(f - attention_)]));
    const std::int32_t all_served = meet(computed), all_returned = meet(sent);
    for (std::int32_t m = 0; m < attention_; ++m)
      back_[at(lane)][at(m)] = arrive(m, lane, layer.hop, all_served, all_returned);
  }

  std::int32_t send(std::int32_t member, std::int32_t lane, std::int32_t hop,
                    std::int32_t computed) {
    const Wait wait{WaitFor::kNode, computed};
    return add(NodeRole::kM2nSend, member, stream(member, DeviceStream::kSend), {&wait, 1}, lane,
               hop);
  }

  // A member's port takes rows in while the others send them; the last ones are there a latency
  // after they have left.
  std::int32_t arrive(std::int32_t member, std::int32_t lane, std::int32_t hop,
                      std::int32_t all_computed, std::int32_t all_sent) {
    const Wait begun{WaitFor::kNode, all_computed};
    const std::int32_t received = add(NodeRole::kM2nReceive, member,
                                      stream(member, DeviceStream::kPull), {&begun, 1}, lane, hop);
    const std::vector<Wait> both{{WaitFor::kNode, all_sent}, {WaitFor::kNode, received}};
    return add(NodeRole::kM2nLatency, member, kNoStream, both, lane, hop);
  }

  // The last layer is only computed when the hosts of both sides have launched it.
  void end() {
    const std::int32_t all_launched = launched_.empty() ? -1 : meet(launched_);
    for (std::int32_t m = 0; m < members_; ++m) {
      std::vector<Wait> launched;
      if (!launched_.empty()) launched.push_back({WaitFor::kNode, all_launched});
      if (m < attention_)
        for (const auto& lane : back_) launched.push_back({WaitFor::kNode, lane[at(m)]});
      if (m < attention_ && drafts_) {
        add(NodeRole::kDrafts, m, stream(m, DeviceStream::kCompute), launched);
        launched.clear();
      }
      builder_.graph().members[at(m)].end =
          add(NodeRole::kEnd, m, stream(m, DeviceStream::kCompute), launched);
    }
    builder_.end_block();
  }

  const AfdConfig& config_;
  std::span<const Program* const> programs_;
  Segments& segments_;
  const bool full_, drafts_;
  std::int32_t members_, attention_, stages_;
  StepGraphBuilder builder_;
  std::vector<std::int32_t> front_;  // by member: where its step begins
  // By lane and attention member: what the lane's next operator waits for.
  std::vector<std::vector<std::int32_t>> back_;
  std::vector<std::vector<std::int32_t>> runs_;  // by member and operator, in all lanes
  std::vector<std::int64_t> draws_before_;       // by member: draws of those before it in a lane
  std::int64_t draws_ = 0;                       // of all members in one lane
  std::vector<std::int32_t> launched_;
  std::int32_t stage_ = 0;
};

}  // namespace

std::int32_t Segments::number(const Program& program, const Segment::Parts& parts) {
  const auto next = static_cast<std::int32_t>(all_.size());
  const auto [found, is_new] = number_.try_emplace({&program, parts}, next);
  if (is_new) all_.push_back(std::make_shared<const Segment>(program, parts));
  return found->second;
}

StepGraph afd_graph(const AfdConfig& config, std::span<const Program* const> programs, bool full,
                    bool drafts) {
  Segments segments;
  return afd_graph(config, programs, full, drafts, segments);
}

StepGraph afd_graph(const AfdConfig& config, std::span<const Program* const> programs, bool full,
                    bool drafts, Segments& segments) {
  return AfdPass(config, programs, full, drafts, segments).build();
}

void number_rows(StepGraph& graph) {
  std::map<std::pair<std::int32_t, std::uint8_t>, std::int32_t> so_far;  // by stream and lane
  std::int32_t newest = 0;
  for (StepNode& node : graph.nodes) {
    const bool moves = node.role == NodeRole::kM2nSend || node.role == NodeRole::kM2nReceive;
    if (moves) newest = node.execution = so_far[{node.stream, node.lane}]++;
    // The last rows are there: what follows the receipt of the others.
    if (node.role == NodeRole::kM2nLatency) node.execution = newest;
  }
}

}  // namespace llmsim
