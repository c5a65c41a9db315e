// Plans of several dimensions: which lines do what, in which order, and what of the vector each
// rank has by then.
#include "model/collective/schedule.h"

namespace astra_sim::model {

void ScheduleBuilder::all_pairs() {
  const std::vector<std::int64_t>& units = *plan_.shape.pair_units;
  Line line{{}, {}, 0, 0, 0, 1};
  for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) line.ranks.push_back(rank);
  for (std::uint32_t from = 0; from < num_ranks_; ++from) {
    for (std::uint32_t distance = 1; distance < num_ranks_; ++distance) {
      const std::uint32_t to = (from + distance) % num_ranks_;
      const std::int64_t count = units[static_cast<std::size_t>(from) * num_ranks_ + to];
      if (count > 0) add(line, from, to, 0, count, {});
    }
  }
}

// The first piece; the whole vector where there is one.
void ScheduleBuilder::piece() {
  using enum CollectiveKind;
  const CollectiveKind kind = plan_.kind;
  const auto dims = static_cast<std::uint32_t>(dims_.size());
  const std::int64_t whole = out_->denominator_ / plan_.shape.pieces;
  first_.assign(num_ranks_, 0);
  units_ = whole;
  if (kind == kAllGather) {  // each rank's own part; dimension 0 parts the vector first
    for (std::uint32_t dim = 0; dim < dims; ++dim) {
      units_ /= dims_[dim];
      for (std::uint32_t rank = 0; rank < num_ranks_; ++rank)
        first_[rank] += coordinate(rank, dim) * units_;
    }
  }
  if (kind == kGather) {  // parts in rank order
    units_ /= num_ranks_;
    for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) first_[rank] += rank * units_;
  }
  switch (kind) {
    case kAllReduce:
      for (std::uint32_t dim = 0; dim + 1 < dims; ++dim) phase(dim, kReduceScatter);
      phase(dims - 1, kAllReduce);
      for (std::uint32_t dim = dims - 1; dim-- > 0;) phase(dim, kAllGather);
      return;
    case kAllGather:
    case kBroadcast:
    case kScatter:
      for (std::uint32_t dim = dims; dim-- > 0;) phase(dim, kind);
      return;
    default:
      for (std::uint32_t dim = 0; dim < dims; ++dim) phase(dim, kind);
      return;
  }
}

// All lines of a dimension; of a rooted kind only those that lead to the root in the dimensions
// below.
void ScheduleBuilder::phase(std::uint32_t dim, CollectiveKind kind) {
  using enum CollectiveKind;
  const std::uint32_t size = dims_[dim];
  const bool rooted = is_rooted(kind);
  const bool two_phases = kind == kAllReduce && entry_of(algorithms_[dim]).two_phases;
  if (kind == kScatter) {
    for (std::uint32_t rank = 0; rank < num_ranks_; ++rank)
      first_[rank] += coordinate(rank, dim) * (units_ / size);
  }
  std::int64_t lap =
      out_->denominator_;  // what the members of a line hold together is in one piece
  if (kind == kGather) lap = units_ * size;
  if (kind == kScatter) lap = units_;
  for (std::uint32_t head = 0; head < num_ranks_ && size > 1; ++head) {
    if (coordinate(head, dim) != 0) continue;
    if (rooted && head % stride_[dim] != plan_.shape.root % stride_[dim]) continue;
    Line line{{}, {}, units_, coordinate(plan_.shape.root, dim), windows_[dim], lap};
    for (std::uint32_t at = 0; at < size; ++at) {
      line.ranks.push_back(head + at * stride_[dim]);
      line.first.push_back(first_[line.ranks.back()]);
    }
    lay(line, two_phases ? kReduceScatter : kind, algorithms_[dim]);
  }
  end_phase();
  if (kind == kReduceScatter || kind == kScatter) units_ /= size;
  if (kind == kReduceScatter) {
    for (std::uint32_t rank = 0; rank < num_ranks_; ++rank)
      first_[rank] += coordinate(rank, dim) * units_;
  }
  if (kind == kAllGather || kind == kGather) {
    for (std::uint32_t rank = 0; rank < num_ranks_; ++rank)
      first_[rank] -= coordinate(rank, dim) * units_;
  }
  if (kind == kAllGather || kind == kGather) units_ *= size;
  if (two_phases) {  // the way back
    units_ /= size;
    for (std::uint32_t rank = 0; rank < num_ranks_; ++rank)
      first_[rank] += coordinate(rank, dim) * units_;
    phase(dim, kAllGather);
  }
}

// Refused by Schedule::check: algorithms without a pattern.
void ScheduleBuilder::lay(const Line& line, CollectiveKind kind, Algorithm algorithm) {
  const AlgorithmEntry& entry = entry_of(algorithm);
  const bool disseminates = kind == CollectiveKind::kBarrier && !entry.on_switch;
  (disseminates ? &patterns::dissemination : entry.lay)(*this, line, kind);
}

std::uint32_t ScheduleBuilder::add_switch(const Line& line, VertexId vertex) {
  const auto endpoint = num_ranks_ + static_cast<std::uint32_t>(agents_.size());
  const auto [place, fresh] = agents_.try_emplace(line.ranks, endpoint);
  if (fresh) out_->switches_.push_back(vertex);
  return place->second;  // above all positions: an endpoint, see `add`
}

void ScheduleBuilder::end_phase() {
  for (std::uint32_t rank = 0; rank < num_ranks_; ++rank) {
    if (incoming_[rank].empty()) continue;
    if (!ready_[rank].empty()) gate(rank);
    ready_[rank].insert(ready_[rank].end(), incoming_[rank].begin(), incoming_[rank].end());
  }
  for (Ids& ids : incoming_) ids.clear();
  ++phase_;
}

}  // namespace astra_sim::model
