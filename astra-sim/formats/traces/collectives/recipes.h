// What the collectives of a trace become on the engine: who takes part, with which algorithm, in
// which dimensions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "formats/chakra/node_fields.h"
#include "formats/config/groups.h"
#include "formats/config/network.h"
#include "formats/config/system.h"
#include "model/collective/collective.h"

namespace astra_sim::traces {

using ScopeId = std::uint32_t;

// NPUs that communicate, in rank order. `axes` are the dimensions of the network in which they
// differ and that they fill; without axes they are a flat list.
struct Scope {
  std::vector<std::uint32_t> members;
  std::vector<std::uint32_t> axes;
  std::uint32_t group = 0;
};

// One collective of the engine; a collective of the trace is one of them, or several one after
// another.
struct Stage {
  ScopeId scope;
  model::CollectiveKind kind;
  model::Algorithm algorithm;
  std::vector<std::uint32_t> dims;  // as in model::CollectiveShape
  std::vector<model::Algorithm> algorithms;
  std::vector<std::uint32_t> windows;
};

class Recipes {
 public:
  Recipes(const config::NetworkConfig& network, const config::SystemConfig& system,
          const config::Groups& groups);

  // Who takes part in a collective of `npu`. Throws model::InputError without a place: an unknown
  // group, an NPU that is not in it, no dimension left, no implementation given.
  ScopeId scope_of(const chakra::NodeFields& node, std::uint32_t npu);
  const Scope& scope(ScopeId id) const { return scopes_[id]; }
  // Prefix of the files of a custom collective, or "".
  const std::string& custom(const chakra::NodeFields& node) const;
  std::vector<Stage> stages(const chakra::NodeFields& node, ScopeId scope, std::uint32_t npu);
  // What the engine calls the size of a collective, from comm_size: for an all-gather that is one
  // NPU's input.
  static model::Bytes engine_bytes(const chakra::NodeFields& node, std::size_t ranks);

 private:
  const std::vector<config::AlgorithmChoice>* choices(chakra::CollectiveKind kind) const;
  ScopeId line_of(std::uint32_t npu, const std::vector<std::uint32_t>& axes);
  ScopeId group_scope(std::uint32_t group);
  bool fills_box(Scope& scope) const;

  const config::NetworkConfig& network_;
  const config::SystemConfig& system_;
  const config::Groups& groups_;
  std::uint32_t npus_;
  std::vector<std::uint32_t> strides_;
  std::vector<Scope> scopes_;
  std::map<std::pair<std::vector<std::uint32_t>, std::uint32_t>, ScopeId>
      lines_;  // axes, first member
  std::map<std::uint32_t, ScopeId> of_group_;
};

model::CollectiveKind engine_kind(chakra::CollectiveKind kind);

}  // namespace astra_sim::traces
