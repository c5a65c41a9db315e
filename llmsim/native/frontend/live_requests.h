// Requests that clients ask while the simulation runs, and what their clients see.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "frontend/clients.h"

namespace llmsim {

struct LiveConfig {
  std::int32_t rows = 0;          // requests that are remembered at a time
  std::int32_t granularity = 16;  // tokens that a content key names
};

struct LiveRequest {
  Ps arrival = 0;
  std::int32_t input_tokens = 0, output_tokens = 0, priority = 0;
  std::int16_t model = 0;
  std::int32_t adapter = 0;  // Sequence::adapter
  std::vector<Key> keys;     // of the leading full blocks of prompt and answer
};

// In order of time: a request has so many tokens in all, or has got this status instead.
struct LiveEvents {
  std::vector<RequestId> request;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> status;
  std::vector<Ps> time;
};

// The workload of a simulation whose rows are filled in when somebody asks.
class LiveRequests {
 public:
  explicit LiveRequests(const LiveConfig& config);

  std::shared_ptr<const Source> source() const { return source_; }
  void fill(RequestId row, LiveRequest request);

  void received(RequestId row, std::int32_t tokens, Ps now);
  void ended(RequestId row, Status status, Ps now);
  LiveEvents take() { return std::exchange(events_, {}); }

 private:
  void note(RequestId row, std::int32_t tokens, Status status, Ps now);

  std::shared_ptr<Source> source_;
  std::vector<std::int32_t> tokens_;  // that were noted, by row
  LiveEvents events_;
};

}  // namespace llmsim
