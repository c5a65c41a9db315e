// Collectives that the user gives as Chakra files: per rank sends, receives and compute, without
// slots. Steps that may begin at one instant are issued in upstream's order, that of a hash set.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "strict/base/hash_order.h"
#include "strict/base/trace.h"
#include "strict/collectives/collectives.h"
#include "strict/collectives/plan.h"
#include "strict/network/messages.h"

namespace astra_sim::strict {

class CustomCollectives {
 public:
  static constexpr std::uint32_t kBit =
      0x80000000;  // marks nodes of custom collectives among those of the workload

  CustomCollectives(Clock& clock, Messages& messages, const Plans& plans, NodeSink& sink)
      : clock_(clock), messages_(messages), plans_(plans), sink_(sink) {}

  // One NPU's part: PREFIX.<rank>.et, its rank being its place in the group by ascending number.
  void start(std::uint32_t npu, std::uint32_t node, std::uint32_t group, const std::string& prefix);
  // `at`: with or without kBit.
  void node_done(std::uint32_t at);

 private:
  struct Run {
    const Trace* trace;
    std::uint32_t npu;
    std::uint32_t node;  // of the workload
    std::uint32_t group;
    std::uint32_t first;  // of its nodes in nodes_
    std::uint32_t left;
    std::vector<std::uint32_t> parents_left;
    HashOrder free;  // upstream's set of the steps that wait for nothing; empty between events
  };
  const Trace& trace(const std::string& prefix, std::uint32_t rank, std::uint32_t ranks);
  // Needs steps of the run that wait for nothing any more, in the order in which they became so.
  void issue_all(std::uint32_t run, const std::vector<std::uint32_t>& steps);
  void issue(std::uint32_t run, std::uint32_t node);

  Clock& clock_;
  Messages& messages_;
  const Plans& plans_;
  NodeSink& sink_;
  std::map<std::pair<std::string, std::uint32_t>, std::unique_ptr<Trace>> traces_;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> nodes_;  // the run of each node
};

}  // namespace astra_sim::strict
