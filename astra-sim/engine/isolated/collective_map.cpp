// Max-plus maps of isolated collectives: circulant by closed form for rings, measured column by
// column otherwise.
#include "engine/isolated/collective_map.h"

#include <algorithm>
#include <string>

#include "model/base/arithmetic.h"

namespace astra_sim::engine {

using model::Algorithm;

namespace {

// Above this a matrix costs more to obtain (n simulations of n^2 messages) than applying the
// simulation will.
constexpr std::size_t kMaxMatrixRanks = 128;

// M(d) of a ring with step time `step` and per-message port time `port`, all other ranks ready long
// ago. A path from rank j to rank j + d makes m = d (mod n) moves of `step` each among the T steps;
// a step that is not a move costs the port time on a FIFO link (the sender's next message waits for
// its port), and nothing but the last message's own port time on a network without waiting. step >=
// port, so the most moves win.
Ps ring_weight(std::int64_t distance, std::int64_t num_ranks, std::int64_t steps, Ps step, Ps port,
               bool aware) {
  const std::int64_t moves = distance + num_ranks * ((steps - distance) / num_ranks);
  const std::int64_t waits = aware ? steps - moves : std::min<std::int64_t>(1, steps - moves);
  return model::repeated_ps(moves, step) + model::repeated_ps(waits, port);
}

std::vector<Ps> ring_weights(const CollectiveSite& site, Bytes bytes, Ps simultaneous) {
  const auto n = static_cast<std::int64_t>(site.group.size());
  const std::int64_t steps = model::ring_steps(site.kind, n);
  const Ps port = model::serialisation_ps(model::timing_chunk(bytes, n),
                                          site.topology->dimensions()[0].bandwidth_bytes_per_s);
  const bool aware = site.options.network == NetworkKind::kCongestionAware;
  std::vector<Ps> weights;
  for (std::int64_t distance = 0; distance < n; ++distance) {
    weights.push_back(ring_weight(distance, n, steps, simultaneous / steps, port, aware));
  }
  return weights;
}

bool all_equal(std::span<const Ps> values) {
  return std::all_of(values.begin(), values.end(), [&](Ps value) { return value == values[0]; });
}

Ps latest(std::span<const Ps> starts, std::span<const Ps> weights, std::size_t n, std::size_t end,
          bool circulant) {
  Ps out = -1;
  for (std::size_t j = 0; j < n; ++j) {
    const Ps weight = circulant ? weights[end >= j ? end - j : end + n - j] : weights[end * n + j];
    if (weight >= 0 && starts[j] + weight > out) out = starts[j] + weight;
  }
  return out;
}

}  // namespace

CollectiveMap CollectiveMap::isolated(const CollectiveSite& site, Bytes bytes) {
  check_site(site);
  CollectiveMap map;
  map.num_ranks_ = site.group.size();
  map.bytes_ = bytes;
  const std::optional<Ps> closed = closed_form(site, bytes);
  if (map.num_ranks_ == 1 || site.algorithm == Algorithm::kMeasured) {
    map.simultaneous_ = *closed;
    map.weights_ = {*closed};
    return map;
  }
  const bool maps = site.topology->is_plain() && site.options.network != NetworkKind::kFairShare;
  if (closed && maps && site.algorithm == Algorithm::kRing && !site.scheduled()) {
    map.simultaneous_ = *closed;
    map.form_ = Form::kCirculant;
    map.weights_ = ring_weights(site, bytes, *closed);
    return map;
  }
  map.simulation_ = std::make_shared<IsolatedSimulation>(site);
  map.form_ = Form::kSimulated;
  std::vector<Ps> ends(map.num_ranks_);
  map.simulation_->run(bytes, std::vector<Ps>(map.num_ranks_, 0), ends);
  map.simultaneous_ = *std::max_element(ends.begin(), ends.end());
  map.ends_together_ = all_equal(ends);
  if (is_linear(site) && map.num_ranks_ <= kMaxMatrixRanks) map.fill_matrix();
  return map;
}

// Column j: rank j starts later than all others could have ended without it, so every end that
// waits for j shows M_ij.
void CollectiveMap::fill_matrix() {
  const std::size_t n = num_ranks_;
  const Ps late = simultaneous_ + 1;
  std::vector<Ps> starts(n, 0);
  std::vector<Ps> ends(n);
  weights_.assign(n * n, -1);
  for (std::size_t j = 0; j < n; ++j) {
    starts[j] = late;
    simulation_->run(bytes_, starts, ends);
    starts[j] = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (ends[i] >= late) weights_[i * n + j] = ends[i] - late;
    }
  }
  form_ = Form::kMatrix;
  simulation_.reset();
  if (weights_[0] >= 0 && all_equal(weights_)) {
    weights_.resize(1);
    form_ = Form::kScalar;
  }
}

Ps CollectiveMap::weight_ps(std::size_t end_rank, std::size_t start_rank) const {
  const std::size_t n = num_ranks_;
  switch (form_) {
    case Form::kScalar:
      return weights_[0];
    case Form::kCirculant:
      return weights_[end_rank >= start_rank ? end_rank - start_rank : end_rank + n - start_rank];
    case Form::kMatrix:
      return weights_[end_rank * n + start_rank];
    case Form::kSimulated:
      break;
  }
  throw model::NotFoldable(
      "this collective shares links between its ranks, so its ends are not a max-plus linear "
      "function of its starts and it has no weights");
}

void CollectiveMap::apply(std::span<const Ps> starts_ps, std::span<Ps> ends_ps) const {
  const auto [first, last] = std::minmax_element(starts_ps.begin(), starts_ps.end());
  if (*first < 0 || *last > model::kHorizon - model::kMaxSpan) {
    throw model::OutOfRange("a collective starts at " +
                            std::to_string(*first < 0 ? *first : *last) +
                            " ps: 0 to 2^62 - 2^60 is possible");
  }
  if (form_ == Form::kSimulated) return simulation_->run(bytes_, starts_ps, ends_ps);
  if (form_ == Form::kScalar) {
    std::fill(ends_ps.begin(), ends_ps.end(), *last + weights_[0]);
    return;
  }
  for (std::size_t i = 0; i < num_ranks_; ++i) {
    ends_ps[i] = latest(starts_ps, weights_, num_ranks_, i, form_ == Form::kCirculant);
  }
}

}  // namespace astra_sim::engine
