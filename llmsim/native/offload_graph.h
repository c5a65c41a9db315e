// Lays the places of a step out as nodes on the streams of a device.
#pragma once

#include <cstdint>
#include <vector>

#include "offload.h"

namespace llmsim {

// Used once per graph, while an OffloadEvaluator is made.
class OffloadEvaluator::Builder {
 public:
  Builder(const OffloadEvaluator& owner, std::int32_t lanes);
  StreamGraph build();

 private:
  struct Lane {
    std::int32_t number = 0;   // of its prices
    std::int32_t last = -1;    // its last compute node
    std::int32_t result = -1;  // what its next operator waits for: attention in memory
  };
  std::int32_t add(DeviceStream stream, std::size_t price, std::array<std::int32_t, 3> after, bool after_start);
  void compute(Lane& lane, std::size_t place, std::size_t first, std::size_t last);
  void attend(Lane& lane, std::size_t place);
  void together(std::size_t place);
  std::int32_t load(std::size_t place, std::int32_t op, std::int32_t execution, std::int32_t gate);
  std::size_t attention_at(std::size_t place) const;
  bool copies(std::size_t place) const;

  const OffloadEvaluator& owner_;
  StreamGraph graph_;
  Lane all_;
  std::vector<Lane> lanes_;
  std::vector<std::int32_t> computed_;     // last compute node of each place, so far
  std::vector<std::int32_t> layer_;        // of each place; -1: no attention
  std::vector<std::int32_t> copied_;       // places with copies, in order
  std::vector<std::int32_t> copied_rank_;  // of each place among them; -1: none
};

}  // namespace llmsim
