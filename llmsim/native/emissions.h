// When every token was emitted, rebuilt from step ends and emission runs instead of stored.
#pragma once

#include <cstdint>
#include <vector>

#include "simulation.h"

namespace llmsim {

struct WeightedValues {
  std::vector<Ps> value;
  std::vector<std::int64_t> count;
};

// A view of a simulation that outlives neither it nor its next run(); building it costs O(requests + runs).
class Emissions {
 public:
  explicit Emissions(const Simulation& simulation);

  // All gaps between consecutive tokens of the same finished request: each value with how often it occurred, ascending,
  // unique. Costs O(steps + runs), not O(tokens).
  WeightedValues inter_token_latencies() const;
  // The gaps of one request, in order; empty when it emitted fewer than two tokens.
  std::vector<Ps> inter_token_latencies_of(RequestId request) const;

 private:
  struct Span {
    std::int32_t first, last;  // outputs of a run, inclusive; or an output and its extra tokens
  };
  // Values grouped by request: those of request r are values[offsets[r] .. offsets[r + 1]).
  struct ByRequest {
    std::vector<std::int64_t> offsets;
    std::vector<Span> values;
  };

  const std::vector<Ps>& times_of(RequestId request) const;

  const Simulation& simulation_;
  ByRequest runs_, bursts_;
};

}  // namespace llmsim
