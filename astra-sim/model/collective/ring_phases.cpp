#include "model/collective/ring_phases.h"

#include <algorithm>
#include <string>

#include "model/base/arithmetic.h"
#include "model/base/errors.h"

namespace astra_sim::model {

bool RingPhases::covers(const CollectivePlan& plan) {
  const CollectiveShape& shape = plan.shape;
  const auto is_ring = [](Algorithm algorithm) { return algorithm == Algorithm::kRing; };
  const bool rings = shape.algorithms.empty()
                         ? is_ring(plan.algorithm)
                         : std::all_of(shape.algorithms.begin(), shape.algorithms.end(), is_ring);
  const bool by_rule = plan.kind == CollectiveKind::kAllReduce ||
                       plan.kind == CollectiveKind::kAllGather ||
                       plan.kind == CollectiveKind::kReduceScatter;
  return by_rule && rings && shape.pair_units == nullptr && plan.schedule == nullptr;
}

RingPhases::RingPhases(const CollectivePlan& plan, std::uint32_t num_ranks)
    : dims_(plan.shape.dims),
      denominator_(std::int64_t{2} * num_ranks * plan.shape.pieces),
      pieces_(plan.shape.pieces),
      piece_units_(denominator_ / plan.shape.pieces) {
  if (dims_.empty()) dims_.push_back(num_ranks);
  std::uint32_t stride = 1;
  for (const std::uint32_t size : dims_) {
    stride_.push_back(stride);
    stride *= size;
  }
  weight_.assign(dims_.size(), 0);
  units_ = piece_units_;
  const auto count = static_cast<std::uint32_t>(dims_.size());
  if (plan.kind == CollectiveKind::kAllGather) {  // dimension 0 parts the vector first
    for (std::uint32_t dim = 0; dim < count; ++dim) weight_[dim] = units_ /= dims_[dim];
  } else {
    for (std::uint32_t dim = 0; dim < count; ++dim) add(false, dim);
  }
  if (plan.kind != CollectiveKind::kReduceScatter) {
    for (std::uint32_t dim = count; dim-- > 0;) add(true, dim);
  }
  for (const Phase& phase : phases_) per_rank_ += std::int64_t{phase.size - 1} * pieces_;
  if (per_rank_ > (std::int64_t{1} << 30)) {
    throw InvalidTopology("a ring " + std::string(name_of(plan.kind)) + " has " +
                          std::to_string(per_rank_) +
                          " messages per rank: at most 2^30 are possible");
  }
}

void RingPhases::add(bool gathers, std::uint32_t dim) {
  const std::uint32_t size = dims_[dim];
  if (size == 1) return;
  if (!gathers) units_ /= size;
  const auto number = static_cast<std::uint32_t>(phases_.size());
  Phase phase{gathers, size, stride_[dim], dim, units_, weight_};
  for (std::uint32_t before = 0; before < number; ++before) {
    if (phases_[before].dim != dim) continue;
    phase.earlier = before;
    phases_[before].later = number;
  }
  phases_.push_back(std::move(phase));
  weight_[dim] = gathers ? 0 : units_;
  if (gathers) units_ *= size;
}

Bytes RingPhases::timing_bytes(std::uint32_t phase, Bytes bytes) const {
  return share_of(bytes, phases_[phase].units, denominator_, true);
}

// A rank scatters the chunk before its own first, and gathers its own first.
Bytes RingPhases::exact_bytes(std::uint32_t number, std::uint32_t rank, std::uint32_t index,
                              Bytes bytes) const {
  const Phase& phase = phases_[number];
  const std::uint32_t n = phase.size, step = index % (n - 1);
  const std::uint32_t place = rank / phase.stride % n;
  const std::uint32_t chunk = (place + 2 * n - (phase.gathers ? 0 : 1) - step) % n;
  std::int64_t first = index / (n - 1) * piece_units_ + chunk * phase.units;
  for (std::uint32_t dim = 0; dim < dims_.size(); ++dim) {
    if (dim == phase.dim || phase.weight[dim] == 0) continue;
    first += rank / stride_[dim] % dims_[dim] * phase.weight[dim];
  }
  return share_of(bytes, first + phase.units, denominator_, false) -
         share_of(bytes, first, denominator_, false);
}

}  // namespace astra_sim::model
