// Lays the places of a step out as nodes on the streams of a domain's units.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/offload.h"

namespace llmsim {

// Used once per graph, while an OffloadDomain is made.
class OffloadDomain::GraphBuilder {
 public:
  GraphBuilder(const OffloadDomain& owner, std::int32_t lanes);
  StreamGraph build();

 private:
  using Nodes = std::vector<std::int32_t>;
  // A member's part of the batch on its way through the step.
  struct Lane {
    std::int32_t number = 0;  // of its prices
    Nodes ready;              // what its next operator waits for
    NodeLabel hosted;  // what the host has run last; without an operator: its activations are on
                       // the device
  };
  std::int32_t add(std::int32_t stream, std::size_t price, const Nodes& after,
                   const NodeLabel& label);
  std::int32_t stream(std::size_t member, std::size_t place, DeviceStream kind) const;
  void bring_back(Lane& lane, std::size_t member, std::size_t place);
  void run(std::size_t number, std::size_t place, std::size_t first, std::size_t last);
  void run_on_host(Lane& lane, std::size_t member, std::size_t place, std::int32_t op,
                   std::int32_t execution);
  void attend(std::size_t number, std::size_t place);
  void attend_in_memory(Lane& lane, std::size_t member, std::size_t place, std::int32_t op,
                        std::int32_t execution);
  void together(std::size_t place);
  void hand_over(std::size_t place);
  void load(Nodes& after, std::size_t member, std::size_t place, std::int32_t op,
            std::int32_t execution, const Nodes& gate);
  std::size_t attention_at(std::size_t place) const;
  bool copies(std::size_t place) const;
  std::size_t num_members() const { return owner_.members_.size(); }
  std::size_t kept(std::size_t member, std::size_t place) const;

  const OffloadDomain& owner_;
  StreamGraph graph_;
  std::vector<std::vector<Lane>> lanes_;  // by number and member; the last number: the whole batch
  std::size_t halves_;                    // how many of them go through the layers
  std::vector<std::int32_t> computed_;    // last node of each member and place, so far
  std::vector<std::int32_t> layer_;       // of each place; -1: no attention
  std::vector<std::vector<std::int32_t>> copied_;  // by stage: places with copies, in order
  std::vector<std::int32_t> copied_rank_;          // of each place among them; -1: none
};

}  // namespace llmsim
