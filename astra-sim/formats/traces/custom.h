// Collectives that the user gives as Chakra files, laid into the graph: sends, receives and compute
// of each rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "formats/traces/workload.h"
#include "model/graph/graph_builder.h"

namespace astra_sim::traces {

class CustomCollectives {
 public:
  explicit CustomCollectives(model::GraphBuilder& builder) : builder_(builder) {}

  // One NPU's part of a call: PREFIX.<rank>.et, its rank being its place in `members`; sizes are
  // those of the file. Returns the number of nodes that the graph has then; the last of them ends
  // when all of the part has ended. Throws model::InputError.
  model::NodeIndex add(const std::string& prefix, std::uint32_t npu,
                       const std::vector<std::uint32_t>& members, std::uint32_t call,
                       std::span<const std::uint64_t> parents);

 private:
  // The files of all ranks and which receive belongs to which send.
  struct Pattern {
    Workload ranks;
    std::vector<std::uint32_t> message;  // by node: its number, or kNobody
    std::uint32_t messages = 0;
  };
  const Pattern& pattern(const std::string& prefix, std::uint32_t ranks);
  void step(const Pattern& pattern, std::uint32_t at, std::uint32_t npu,
            const std::vector<std::uint32_t>& members, model::CallId first_message,
            std::span<const std::uint64_t> parents);

  model::GraphBuilder& builder_;
  std::map<std::pair<std::string, std::uint32_t>, std::unique_ptr<Pattern>> patterns_;
  std::map<std::uint32_t, model::CallId> first_message_;  // by call
  model::CallId next_message_ = model::CallId{1} << 31;   // numbers below are the workload's own
};

}  // namespace astra_sim::traces
