// What ends a run of an engine whose pool of states is too small.
#pragma once

#include "base/types.h"

namespace llmsim {

// The engine that is simulated would end with an error for lack of slots for states.
class OutOfStates : public OutOfKvMemory {
 public:
  using OutOfKvMemory::OutOfKvMemory;
};

}  // namespace llmsim
