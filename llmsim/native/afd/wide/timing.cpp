#include "afd/wide/timing.h"

#include <algorithm>

namespace llmsim {

WideTiming::WideTiming(const WideGraphs& graphs)
    : graph_(graphs.folded()),
      classes_(graphs.all_together()),
      times_(graph_, classes_),
      ends_(times_.all_nodes(), 0),
      last_(graph_.nodes.size(), 0) {}

void WideTiming::pass(const AfdPrices& prices, const StepStart& start, std::int32_t number) {
  const StepNode& node = graph_.graph.nodes[at(number)];
  const WideGraph::Node& wide = graph_.nodes[at(number)];
  Ps base = given_at(node, start);
  for (const std::int32_t other : graph_.waits_of(wide.others))
    base = std::max(base, last_[at(other)]);
  if (wide.cls == kNoClass) {
    last_[at(number)] = base;
    return;
  }
  const std::span<Ps> ends = times_.of_node(ends_, number);
  const std::size_t width = ends.size();
  const Ps* price = &prices.kinds[graph_.kinds[at(wide.cls)]].ps[at(wide.key) * width];
  Ps* free = node.stream == kNoStream ? nullptr : times_.of_stream(free_, node.stream).data();
  const std::span<const std::int32_t> owns = graph_.waits_of(wide.own);
  Ps last = 0;
  for (std::size_t i = 0; i < width; ++i) {
    Ps begin = base;
    for (const std::int32_t own : owns) begin = std::max(begin, times_.of_node(ends_, own)[i]);
    if (free != nullptr) begin = std::max(begin, free[i]);
    Ps end = begin + price[i];
    // Who samples times is alone in a kind.
    for (const Draws& drawn : graph_.graph.draws_of(node))
      for (std::int64_t k = 0; k < drawn.count; ++k)
        end += prices.draws[static_cast<std::size_t>(drawn.first + k)];
    ends[i] = end;
    if (free != nullptr) free[i] = end;
    last = std::max(last, end);
  }
  last_[at(number)] = last;
}

void WideTiming::pass_layer(const AfdPrices& prices, const StepStart& start, const Block& block) {
  for (std::int32_t i = block.first; i < block.last; ++i) pass(prices, start, i);
}

void WideTiming::note_before(const WideGraph::BlockShape& shape) {
  before_.clear();
  for (const std::int32_t stream : shape.streams) {
    const auto free = times_.of_stream(std::as_const(free_), stream);
    before_.insert(before_.end(), free.begin(), free.end());
  }
  for (const std::int32_t node : shape.crossing) {
    const auto ends = ends_of(node);
    before_.insert(before_.end(), ends.begin(), ends.end());
  }
}

bool WideTiming::moved_alike(const WideGraph::BlockShape& shape, Ps& moved) const {
  moved = times_.of_stream(free_, shape.streams[0])[0] - before_[0];
  const Ps* before = before_.data();
  const auto alike = [&](std::span<const Ps> times) {
    bool same = true;
    for (const Ps time : times) same &= time - *before++ == moved;
    return same;
  };
  for (const std::int32_t stream : shape.streams)
    if (!alike(times_.of_stream(free_, stream))) return false;
  return std::ranges::all_of(shape.crossing,
                             [&](std::int32_t node) { return alike(ends_of(node)); });
}

void WideTiming::leap(const Block& block, const WideGraph::BlockShape& shape, Ps rest) {
  for (const std::int32_t stream : shape.streams)
    for (Ps& time : times_.of_stream(free_, stream)) time += rest;
  for (std::int32_t i = block.first; i < block.last; ++i) {
    last_[at(i)] += rest;
    if (graph_.nodes[at(i)].cls == kNoClass) continue;
    for (Ps& time : times_.of_node(ends_, i)) time += rest;
  }
}

// Layers that move all streams by the same time are followed by layers that do, too
// (FoldedTiming::pass_layers). Blocks with sampled times do not repeat.
void WideTiming::pass_layers(const AfdPrices& prices, const StepStart& start, const Block& block,
                             const WideGraph::BlockShape& shape) {
  for (const WideGraph::Carried& carried : shape.carried) {
    std::ranges::copy(ends_of(carried.entry), times_.of_node(ends_, carried.node).begin());
    last_[at(carried.node)] = last_[at(carried.entry)];
  }
  for (std::int32_t layer = 0; layer < block.repeat; ++layer) {
    note_before(shape);
    pass_layer(prices, start, block);
    Ps moved = 0;
    if (!moved_alike(shape, moved)) continue;
    leap(block, shape, moved * (block.repeat - layer - 1));
    return;
  }
}

void WideTiming::run(const AfdPrices& prices, const StepStart& start, std::span<Ps> free,
                     std::span<Ps> starts, std::span<Ps> ends) {
  times_.gather(free, free_);
  for (std::size_t i = 0; i < graph_.graph.blocks.size(); ++i) {
    const Block& block = graph_.graph.blocks[i];
    if (block.repeat == 1) {
      pass_layer(prices, start, block);
    } else {
      pass_layers(prices, start, block, graph_.blocks[i]);
    }
  }
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const StepGraph::Member& member = graph_.graph.members[c];
    const auto begun = ends_of(member.begin), ended = ends_of(member.end);
    const auto stream = times_.of_stream(free_, graph_.graph.nodes[at(member.end)].stream);
    for (std::size_t i = 0; i < begun.size(); ++i) {
      const std::size_t m = at(classes_[c].members[i]);
      starts[m] = begun[i];
      ends[m] = stream[i] = std::max(ended[i], begun[i] + 1);
    }
  }
  times_.scatter(free_, free);
}

AtOnce::AtOnce(const WideGraphs& graphs, bool wanted)
    : wanted_(wanted), starts_(graphs.kinds().num_members()), ends_(graphs.kinds().num_members()) {
  for (std::size_t kind = 0; kind < graphs.kinds().size(); ++kind) {
    const std::vector<PriceKey>& keys = graphs.keys().of(kind);
    for (std::size_t key = 0; key < keys.size(); ++key) {
      const NodeRole role = keys[key].role;
      if (role == NodeRole::kM2nSend || role == NodeRole::kM2nReceive ||
          role == NodeRole::kM2nLatency)
        travelling_.push_back({kind, key, graphs.kinds().members(kind).size()});
    }
  }
}

std::span<const Ps> AtOnce::ends(const AfdPrices& prices, const StepStart& start,
                                 std::span<const Ps> free, WideTiming& timing) {
  if (!wanted_) {
    ends_.assign(ends_.size(), kNever);
    return ends_;
  }
  prices_ = prices;
  Ps moved = 0;
  for (const Travelling& one : travelling_) {
    const auto first =
        prices_.kinds[one.kind].ps.begin() + static_cast<std::ptrdiff_t>(one.key * one.members);
    for (auto price = first; price != first + static_cast<std::ptrdiff_t>(one.members); ++price)
      moved += std::exchange(*price, 0);
  }
  if (moved == 0) {
    ends_.assign(ends_.size(), kNever);
    return ends_;
  }
  free_.assign(free.begin(), free.end());
  timing.run(prices_, start, free_, starts_, ends_);
  return ends_;
}

}  // namespace llmsim
