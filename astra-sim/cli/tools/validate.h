// Checks of one trace file, each problem with the node it is in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace astra_sim::cli {

struct Verdict {
  std::uint64_t nodes = 0;
  std::uint64_t dependencies = 0;
  std::vector<std::string> problems;  // the first 20
};

// Repeated numbers, absent parents, cycles, attributes that are missing or of a wrong type. The NPU
// of PREFIX.<npu>.et is taken from the name. Throws model::InputError where the file cannot be read
// at all.
Verdict validate(const std::string& path);

}  // namespace astra_sim::cli
