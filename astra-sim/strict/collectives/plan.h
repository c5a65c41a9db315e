// Who takes part in a collective, in which order of phases, with which algorithm: the same for
// every chunk.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "formats/chakra/node.h"
#include "formats/config/groups.h"
#include "formats/config/network.h"
#include "formats/config/system.h"

namespace astra_sim::strict {

// How a phase picks its queue among those of its dimension; each rule has its own round robin per
// NPU.
enum class QueueRule : std::uint8_t { kAll, kFirstHalf, kSecondHalf };

struct Phase {
  std::uint32_t dimension = 0;  // whose queues it uses
  config::Collective operation = config::Collective::kAllReduce;
  config::AlgorithmChoice algorithm;
  QueueRule queue_rule = QueueRule::kAll;
  std::uint8_t visit = 0;  // 1: the second time that the plan comes to this dimension
};

struct Plan {
  std::vector<Phase> phases;
  bool flat = false;  // one phase over all NPUs
};

// NPUs in the order of their logical ring.
struct Ring {
  std::vector<std::uint32_t> npus;
  bool sub_group = false;
};

class Plans {
 public:
  Plans(const config::NetworkConfig& network, const config::SystemConfig& system,
        const config::Groups& groups);

  // `group` 0 is all NPUs; `dimensions` has a bit per dimension. Throws model::InputError where no
  // algorithm is given or no dimension is left. The reference stays valid.
  const Plan& plan(config::Collective kind, std::uint32_t group, std::uint32_t dimensions);

  // The ring on which `npu` carries out a phase, and its position there.
  std::uint32_t ring_of(std::uint32_t npu, std::uint32_t group, const Plan& plan,
                        const Phase& phase) const;
  std::uint32_t position(std::uint32_t npu, std::uint32_t group, const Plan& plan,
                         const Phase& phase) const;
  const Ring& ring(std::uint32_t index) const { return rings_[index]; }
  std::uint32_t ring_count() const { return static_cast<std::uint32_t>(rings_.size()); }

  // Whether a group exists; 0 does.
  bool known(std::uint32_t group) const { return group == 0 || groups_.contains(group); }
  // Whether the group is smaller than the whole system.
  bool smaller(std::uint32_t group) const;
  // Position of `npu` in a group; groups without it: kNone.
  std::uint32_t place_in(std::uint32_t group, std::uint32_t npu) const;
  const std::vector<std::uint32_t>& members(std::uint32_t group) const;

 private:
  struct GroupInfo {
    std::vector<std::uint32_t> npus;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> positions;  // (NPU, position) by NPU
    std::uint32_t ring;
  };
  void check(const Plan& plan, config::Collective kind, std::uint32_t group) const;
  Plan make(config::Collective kind, std::uint32_t group, std::uint32_t dimensions) const;
  void add_dimension_rings();

  const config::NetworkConfig& network_;
  const config::SystemConfig& system_;
  std::uint32_t npus_;
  std::vector<std::uint32_t> strides_;
  std::vector<std::uint32_t> first_ring_;  // per dimension
  std::vector<Ring> rings_;
  std::vector<std::uint32_t> everyone_;
  std::map<std::uint32_t, GroupInfo> groups_;
  std::map<std::uint64_t, Plan> plans_;
};

}  // namespace astra_sim::strict
