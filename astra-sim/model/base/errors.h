// What can go wrong, as types; every message is one sentence that names the place.
#pragma once

#include <stdexcept>

namespace astra_sim::model {

struct EngineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A graph is malformed, or does not fit the engine that it was given to.
struct InvalidGraph : EngineError {
  using EngineError::EngineError;
};

// A topology, group, collective or table cannot exist as described.
struct InvalidTopology : EngineError {
  using EngineError::EngineError;
};

// A time left the clock's range (kHorizon), or a span or byte count its own (kMaxSpan, kMaxBytes).
struct OutOfRange : EngineError {
  using EngineError::EngineError;
};

// Space in a memory tier is used up.
struct OutOfMemory : EngineError {
  using EngineError::EngineError;
};

// No event is pending and a graph is unfinished; the message names waiting nodes.
struct Stalled : EngineError {
  using EngineError::EngineError;
};

// A folded evaluation would not be exact: evaluate the expanded graph instead.
struct NotFoldable : EngineError {
  using EngineError::EngineError;
};

}  // namespace astra_sim::model
