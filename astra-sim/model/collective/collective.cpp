// Measured durations and the message counts of the algorithms.
#include "model/collective/collective.h"

#include <algorithm>
#include <string>
#include <utility>

#include "model/base/errors.h"

namespace astra_sim::model {

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

MeasuredTable::MeasuredTable(std::vector<Bytes> bytes, std::vector<Ps> ps)
    : bytes_(std::move(bytes)), ps_(std::move(ps)) {
  if (bytes_.empty() || bytes_.size() != ps_.size()) {
    throw InvalidTopology(
        "a measured collective needs as many durations as sizes, at least one: it has " +
        std::to_string(bytes_.size()) + " sizes and " + std::to_string(ps_.size()) + " durations");
  }
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    const bool ascends = i == 0 ? bytes_[0] >= 0 : bytes_[i] > bytes_[i - 1];
    if (!ascends || bytes_[i] > kMaxBytes || ps_[i] < 0 || ps_[i] > kMaxSpan) {
      throw InvalidTopology(
          "row " + std::to_string(i) + " of a measured collective (" + std::to_string(bytes_[i]) +
          " bytes, " + std::to_string(ps_[i]) +
          " ps) is not usable: sizes have to ascend and durations to lie in 0..2^60 ps");
    }
  }
}

Ps MeasuredTable::at(Bytes bytes) const {
  if (bytes <= bytes_.front() || bytes_.size() == 1) return ps_.front();
  const auto above = std::upper_bound(bytes_.begin(), bytes_.end(), bytes);
  const std::size_t right =
      std::min<std::size_t>(static_cast<std::size_t>(above - bytes_.begin()), bytes_.size() - 1);
  const std::size_t left = right - 1;
  using Wide = __int128;
  const Wide span = bytes_[right] - bytes_[left];
  const Wide rise = static_cast<Wide>(ps_[right] - ps_[left]) * (bytes - bytes_[left]);
  const Wide doubled = 2 * rise + span;  // floor(rise / span + 1/2), also for a falling table
  const Wide steps =
      doubled >= 0 ? doubled / (2 * span) : -((-doubled + 2 * span - 1) / (2 * span));
  const Wide value = std::max<Wide>(0, ps_[left] + steps);
  if (value > kMaxSpan) {
    throw OutOfRange("a measured collective extrapolated to " + std::to_string(bytes) +
                     " bytes takes longer than the engine's limit of 2^60 ps (13 days)");
  }
  return static_cast<Ps>(value);
}

// All-to-all relays block after block around the ring: a block at distance d needs d hops, 1 + ...
// + (n - 1) in all.
std::int64_t ring_steps(CollectiveKind kind, std::int64_t num_ranks) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (num_ranks - 1);
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return num_ranks - 1;
    case CollectiveKind::kAllToAll:
      return num_ranks * (num_ranks - 1) / 2;
    default:
      break;  // scheduled
  }
  return 0;
}

bool is_scheduled(CollectiveKind kind, Algorithm algorithm, const CollectiveShape& shape) {
  if (algorithm == Algorithm::kMeasured) return false;
  return kind > CollectiveKind::kAllToAll || !entry_of(algorithm).reacts || !shape.dims.empty() ||
         !shape.windows.empty() || shape.pieces != 1 || shape.pair_units != nullptr;
}

CollectiveShape shape_of(const AlgorithmChoice& choice, std::shared_ptr<const Topology> topology) {
  CollectiveShape shape;
  if (choice.window != 0) shape.windows = {choice.window};
  if (entry_of(choice.algorithm).on_switch) shape.topology = std::move(topology);
  return shape;
}

std::int64_t direct_phases(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce ? 2 : 1;
}

}  // namespace astra_sim::model
