// What a user's file or option can get wrong; one sentence that names the place and what would have
// worked.
#pragma once

#include "model/base/errors.h"

namespace astra_sim::model {

struct InputError : EngineError {
  using EngineError::EngineError;
};

}  // namespace astra_sim::model
