// CollectiveMap: a collective on links of its own, as a map from the ranks' start times to their
// end times.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/isolated/isolated.h"

namespace astra_sim::engine {

// end_i = max_j(start_j + M_ij) where linear; otherwise the simulation. Immutable apart from the
// simulation's scratch: one thread at a time.
class CollectiveMap {
 public:
  enum class Form : std::uint8_t { kScalar, kCirculant, kMatrix, kSimulated };

  static CollectiveMap isolated(const CollectiveSite& site, Bytes bytes);

  Form form() const { return form_; }
  bool linear() const { return form_ != Form::kSimulated; }
  std::size_t num_ranks() const { return num_ranks_; }
  Ps simultaneous_ps() const { return simultaneous_; }   // the longest duration from equal starts
  bool ends_together() const { return ends_together_; }  // ... and all ranks need it
  // M_ij: how long after rank j's start rank i cannot end; -1 where i does not wait for j. Needs
  // linear().
  Ps weight_ps(std::size_t end_rank, std::size_t start_rank) const;
  // Both have one entry per rank and may not overlap. Throws OutOfRange beyond the horizon.
  void apply(std::span<const Ps> starts_ps, std::span<Ps> ends_ps) const;

 private:
  CollectiveMap() = default;
  void fill_matrix();

  Form form_ = Form::kScalar;
  std::size_t num_ranks_ = 0;
  Bytes bytes_ = 0;
  Ps simultaneous_ = 0;
  bool ends_together_ = true;
  std::vector<Ps>
      weights_;  // scalar: 1; circulant: by (end - start) mod n; matrix: row-major by end
  std::shared_ptr<IsolatedSimulation> simulation_;
};

}  // namespace astra_sim::engine
