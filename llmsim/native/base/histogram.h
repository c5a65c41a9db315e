// How often each of many values occurs, ascending.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

struct WeightedValues {
  std::vector<Ps> value;
  std::vector<std::int64_t> count;
};

// Memory grows with the different values, not with how many there are; what comes often is counted
// in a small table.
class Histogram {
 public:
  Histogram() : table_(kSlots) {}

  // `count` is positive.
  void add(Ps value, std::int64_t count);
  // All that was added, each value once; then it is empty.
  WeightedValues take();

 private:
  struct Entry {
    Ps value = 0;
    std::int64_t count = 0;  // 0: a free slot
  };
  using Sorted = std::vector<Entry>;  // by value, each once

  static constexpr int kBits = 16;
  static constexpr std::size_t kSlots = std::size_t{1} << kBits;

  void drain();
  // The last two of `sorted_` become one.
  void merge();

  std::vector<Entry> table_;
  std::size_t used_ = 0;
  std::vector<Sorted>
      sorted_;  // each more than twice as long as the next one, so that merging costs O(n log n)
};

}  // namespace llmsim
