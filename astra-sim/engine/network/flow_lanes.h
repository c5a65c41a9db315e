// Which flows have equal fair shares whatever else is in motion.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/base/types.h"

namespace astra_sim::engine {

// A flow over links, of a bundle.
struct ColouredFlow {
  std::uint32_t bundle;
  std::span<const model::LinkId> route;
};

// A number for each flow, from 0; flows of equal numbers are of one bundle.
//
// Links start with their capacities as colours, flows with their bundles. Then each link is told
// apart by the colours of the flows that cross it, and each flow by those of its links, until
// nothing changes (colour refinement). Level filling treats links of one colour alike at each of
// its levels, so flows of one colour have equal rates, as long as all flows of a colour are in
// motion or none is.
std::vector<std::uint32_t> lanes_of(std::span<const model::BytesPerSecond> capacities,
                                    std::span<const ColouredFlow> flows);

}  // namespace astra_sim::engine
