// How long the nodes of a trace take that do not communicate: picoseconds from the units of the
// files.
#pragma once

#include "formats/chakra/node_fields.h"
#include "formats/config/system.h"
#include "model/base/types.h"

namespace astra_sim::traces {

// A real number of `unit_ps` (1000 for ns) as whole picoseconds, rounded to the nearest. Throws
// model::InputError, naming `what`, beyond 2^60 ps.
model::Ps to_ps(double value, double unit_ps, const char* what);

// duration_ps, else duration_micros.
model::Ps duration_of(const chakra::NodeFields& node);

// max(num_ops / peak, tensor_size / bandwidth), rounded up.
model::Ps roofline(const chakra::NodeFields& node, const config::SystemConfig& system);

}  // namespace astra_sim::traces
