// When every token was emitted, rebuilt from step ends and emission runs instead of stored.
#pragma once

#include <cstdint>
#include <vector>

#include "base/histogram.h"
#include "loop/simulation.h"
#include "request/emission_spans.h"

namespace llmsim {

// A view of a simulation that outlives neither it nor its next run.
class TokenTimes {
 public:
  explicit TokenTimes(const Simulation& simulation);

  // All gaps between consecutive tokens of the same finished request: each value with how often it
  // occurred, ascending, unique. Costs O(steps + requests + runs), not O(tokens).
  WeightedValues inter_token_latencies() const;
  // The gaps of one request, in order; empty when it emitted fewer than two tokens.
  std::vector<Ps> inter_token_latencies_of(RequestId request) const;

 private:
  const std::vector<Ps>& times_of(RequestId request, std::int16_t group) const;

  const Simulation& simulation_;
  EmissionSpans runs_;
  std::vector<RequestLog::Burst> bursts_;  // by request
};

}  // namespace llmsim
