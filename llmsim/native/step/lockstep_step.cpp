#include "step/lockstep_step.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace llmsim {

FoldedRound::FoldedRound(const Program& program)
    : stages_(static_cast<std::size_t>(program.num_stages())) {
  const auto& operators = program.operators();
  for (std::size_t first = 0; first < operators.size();) {
    std::size_t last = first + 1;
    while (last < operators.size() && operators[last].part == operators[first].part &&
           operators[last].stage == operators[first].stage &&
           operators[last].kind != NodeKind::kStageSend)
      ++last;
    Stage& stage = stages_[static_cast<std::size_t>(operators[first].stage)];
    if (operators[first].kind == NodeKind::kStageSend) {
      if (operators[first].feature != Feature::kTokens)
        throw std::invalid_argument("a hand-over is sized by tokens");
      stage.kv_transfer = operators[first].ps;
    } else {
      auto bands = bands_of(program, std::span(operators).subspan(first, last - first));
      stage.bands.insert(stage.bands.end(), bands.begin(), bands.end());
    }
    first = last;
  }
}

std::vector<FoldedRound::Band> FoldedRound::bands_of(const Program& program,
                                                     std::span<const Operator> part) {
  std::set<std::int32_t> repeats;
  for (const Operator& op : part) repeats.insert(op.repeat);
  std::vector<Band> bands;
  std::int32_t done = 0;
  for (const std::int32_t repeat : repeats) {
    Band& band = bands.emplace_back();
    band.first = done;
    band.repeat = repeat - done;
    for (const Operator& op : part) {
      if (op.repeat < repeat) continue;
      const bool together = op.feature == Feature::kGathered;
      band.together |= together;
      if (band.segments.empty() || band.segments.back().together != together)
        band.segments.emplace_back().together = together;
      Segment& segment = band.segments.back();
      if (op.kind == NodeKind::kAttention) {
        ++segment.attention[static_cast<std::size_t>(op.attention)];
        continue;
      }
      if (op.sampled != nullptr) {
        segment.first_draw.push_back(
            program.first_draw(static_cast<std::size_t>(&op - program.operators().data())));
        continue;
      }
      auto& table = segment.ps[static_cast<std::size_t>(op.feature)];
      table.resize(op.ps.size(), 0);
      for (std::size_t i = 0; i < op.ps.size(); ++i) table[i] += op.ps[i];
    }
    done = repeat;
  }
  return bands;
}

Ps FoldedRound::Segment::own(const MemberStep& member) const {
  Ps sum = 0;
  for (std::size_t i = 0; i < kMaxAttentions; ++i) sum += attention[i] * member.attention[i].ps;
  for (std::size_t i = 0; i < kNumFeatures; ++i)
    if (!ps[i].empty())
      sum += ps[i][static_cast<std::size_t>(member.place.at(static_cast<Feature>(i)))];
  return sum;
}

Ps FoldedRound::Segment::sampled(const MemberStep& member, std::int64_t layer) const {
  Ps sum = 0;
  for (const std::int64_t first : first_draw)
    sum += member.draws[static_cast<std::size_t>(first + layer)];
  return sum;
}

Ps FoldedRound::sampled(const Band& band, const MemberStep& member, std::int64_t layer) {
  Ps sum = 0;
  for (const Segment& segment : band.segments) sum += segment.sampled(member, layer);
  return sum;
}

void FoldedRound::pass_layer(const Band& band, std::int64_t layer,
                             std::span<const MemberStep> members) {
  for (const Segment& segment : band.segments) {
    const Ps sampled = segment.sampled(members[0], layer);
    if (segment.together) {
      const Ps end = *std::max_element(at_.begin(), at_.end()) + segment.own(members[0]) + sampled;
      std::fill(at_.begin(), at_.end(), end);
    } else {
      for (std::size_t m = 0; m < members.size(); ++m) at_[m] += segment.own(members[m]) + sampled;
    }
  }
}

void FoldedRound::pass_band(const Band& band, std::span<const MemberStep> members) {
  const std::int64_t end = band.first + band.repeat;
  if (!band.together) {
    for (std::size_t m = 0; m < members.size(); ++m) {
      for (const Segment& segment : band.segments) at_[m] += band.repeat * segment.own(members[m]);
      for (std::int64_t layer = band.first; layer < end; ++layer)
        at_[m] += sampled(band, members[m], layer);
    }
    return;
  }
  for (std::int64_t layer = band.first; layer < end; ++layer) {
    before_ = at_;
    pass_layer(band, layer, members);
    bool alike = true;
    for (std::size_t m = 1; m < members.size(); ++m)
      alike &= at_[m] - before_[m] == at_[0] - before_[0];
    if (!alike) continue;
    // What is sampled differs from layer to layer, but moves all members alike.
    const Ps moved = at_[0] - before_[0] - sampled(band, members[0], layer);
    Ps rest = moved * (end - layer - 1);
    while (++layer < end) rest += sampled(band, members[0], layer);
    for (Ps& at : at_) at += rest;
    return;
  }
}

void FoldedRound::run(std::span<const MemberStep> members, Ps now, Carry& carry,
                      std::span<Ps> starts, std::span<Ps> ends) {
  at_.assign(members.size(), now);
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    for (std::size_t m = 0; m < members.size(); ++m)
      at_[m] = std::max(at_[m], carry.device[m * stages_.size() + s]);
    if (s == 0) std::copy(at_.begin(), at_.end(), starts.begin());
    for (const Band& band : stages_[s].bands) pass_band(band, members);
    for (std::size_t m = 0; m < members.size(); ++m) {
      carry.device[m * stages_.size() + s] = at_[m];
      if (stages_[s].kv_transfer.empty()) continue;
      Ps& link = carry.link[m * stages_.size() + s];
      at_[m] = std::max(at_[m], link) +
               stages_[s].kv_transfer[static_cast<std::size_t>(members[m].place.tokens)];
      link = at_[m];
    }
  }
  std::copy(at_.begin(), at_.end(), ends.begin());
}

LockstepExecutor::LockstepExecutor(std::vector<GroupCosts*> members,
                                   std::unique_ptr<RoundTiming> timing)
    : members_(std::move(members)), timing_(std::move(timing)), steps_(members_.size()) {
  const auto stages = static_cast<std::size_t>(members_.front()->program().num_stages());
  carry_.device.assign(members_.size() * stages, 0);
  carry_.link.assign(members_.size() * stages, 0);
  starts_.resize(members_.size());
  ends_.resize(members_.size());
}

std::span<MemberStep> LockstepExecutor::combine(std::span<const Batch* const> batches) {
  std::int64_t most = 0, gathered = 0;
  GraphMode mode = GraphMode::kFull;
  std::vector<Features> mine;
  for (std::size_t m = 0; m < batches.size(); ++m) {
    mine.push_back(members_[m]->program().rank_features(*batches[m]));
    most = std::max(most, mine.back().tokens);
    mode = std::min(mode, members_[m]->program().graph_mode(mine.back()));
  }
  const bool graphs = mode != GraphMode::kNone;
  const auto padded = [&](std::size_t m) {
    const Program& program = members_[m]->program();
    if (batches.size() == 1) return program.padded(mine[m]);
    return graphs ? program.padded(most, mode) : mine[m].tokens;
  };
  for (std::size_t m = 0; m < batches.size(); ++m) gathered += padded(m);
  for (std::size_t m = 0; m < batches.size(); ++m) {
    const Program& program = members_[m]->program();
    steps_[m] = {batches[m],
                 program.place(*batches[m], padded(m), gathered),
                 program.attention_layer(*batches[m]),
                 {}};
    steps_[m].place.mode = mode;
  }
  const Program& program = members_.front()->program();
  if (!program.draws()) return steps_;
  program.draw(steps_.front().place, members_.front()->usage().steps + 1, draws_);
  for (MemberStep& step : steps_) step.draws = draws_;
  return steps_;
}

StepCosts step_costs(GroupCosts& member, const MemberStep& step, std::span<const Ps> draws) {
  return {member.program().evaluate(*step.batch, step.place, step.attention, member.usage(), draws),
          member.propose(*step.batch), member.program().host_gap()};
}

StepTimes step_times(const StepCosts& costs, Ps start, Ps done, std::int64_t padded_tokens) {
  const auto& [operators, drafts, gap] = costs;
  const Ps end = std::max(start + 1, std::max(done, start + operators.ps) + drafts.ps + gap);
  const Ps waiting = std::max<Ps>(0, end - start - operators.ps - drafts.ps - gap);
  return {start, end, operators.communication_ps + drafts.communication_ps, waiting, padded_tokens};
}

void LockstepExecutor::begin(std::span<const Batch* const> batches, Ps now, StepSink& sink) {
  combine(batches);
  timing_->run(steps_, now, carry_, starts_, ends_);
  const auto stages = carry_.device.size() / members_.size();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const StepCosts costs = step_costs(*members_[m], steps_[m], draws_);
    const StepTimes times = step_times(costs, starts_[m], ends_[m], steps_[m].place.tokens);
    carry_.device[m * stages + stages - 1] = times.end;
    sink.timed(m, times, now);
  }
}

}  // namespace llmsim
