// What belongs together across NPUs: the parts of a collective, and sends with their receives; and
// what can ever end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/traces/collectives/recipes.h"
#include "formats/traces/workload.h"

namespace astra_sim::traces {

struct Call {
  ScopeId scope;
  std::vector<std::uint32_t> nodes;  // one per NPU that makes it
};

// The k-th collective of an NPU among the same members joins the others' k-th; they run in that
// order on every NPU. The k-th send of a (sender, receiver, tag, size) joins the k-th receive.
struct Matching {
  std::vector<Call> calls;
  std::vector<std::uint32_t> call;  // by node; kNobody where it is no collective
  std::vector<std::uint32_t>
      previous;  // by node: the collective before it among the same members, or kNobody
  std::vector<std::uint32_t> partner;  // by node: of a send or receive, or kNobody
  std::vector<bool> ends;              // by node: false where no order of events lets it end
};

// Throws model::InputError naming both nodes where parts of a collective differ.
Matching match(const Workload& workload, Recipes& recipes, bool replay_only);

// A sentence for each of the first 20 nodes that never end, causes first; the number of all of them
// in `left`.
std::vector<std::string> explain(const Workload& workload, const Recipes& recipes,
                                 const Matching& matching, std::uint64_t& left);

}  // namespace astra_sim::traces
