// Algorithms as system files, cluster files and command lines name them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/collective/algorithm.h"

namespace astra_sim::model {

struct AlgorithmChoice {
  Algorithm algorithm = Algorithm::kRing;
  bool flat = false;         // "oneRing": one group over all NPUs, whatever the dimensions
  std::uint32_t window = 0;  // "direct4": messages in flight at most; 0: no limit
  bool operator==(const AlgorithmChoice&) const = default;
};

// Nothing where no algorithm is called so.
std::optional<AlgorithmChoice> parse_algorithm(std::string_view word);
// Every word, without windows.
std::vector<std::string> algorithm_words();
// The words as an error lists them, those that only default rules have at the end.
std::string expected_algorithms();

}  // namespace astra_sim::model
