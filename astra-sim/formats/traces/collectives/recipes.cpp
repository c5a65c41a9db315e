#include "formats/traces/collectives/recipes.h"

#include <algorithm>
#include <set>

#include "model/base/input_error.h"

namespace astra_sim::traces {

using model::Algorithm;
using model::AlgorithmChoice;
using model::InputError;
using Kind = chakra::CollectiveKind;

namespace {

// The four kinds that a system file gives implementations for; kNobody otherwise.
std::size_t configured(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return 0;
    case Kind::kAllGather:
      return 1;
    case Kind::kReduceScatter:
    case Kind::kReduceScatterBlock:
      return 2;
    case Kind::kAllToAll:
      return 3;
    default:
      return config::kCollectives;
  }
}

}  // namespace

model::CollectiveKind engine_kind(Kind kind) {
  using To = model::CollectiveKind;
  constexpr std::array<To, 10> kinds = {
      To::kAllReduce, To::kReduce,   To::kAllGather,     To::kGather,        To::kScatter,
      To::kBroadcast, To::kAllToAll, To::kReduceScatter, To::kReduceScatter, To::kBarrier};
  return kinds[static_cast<std::size_t>(kind)];
}

Recipes::Recipes(const config::NetworkConfig& network, const config::SystemConfig& system,
                 const config::Groups& groups)
    : network_(network), system_(system), groups_(groups), npus_(network.npus()) {
  std::uint32_t stride = 1;
  for (const config::NetworkDimension& dimension : network.dimensions) {
    strides_.push_back(stride);
    stride *= dimension.npus;
  }
}

model::Bytes Recipes::engine_bytes(const chakra::NodeFields& node, std::size_t ranks) {
  if (node.collective != Kind::kAllGather) return node.bytes;
  if (node.bytes > model::kMaxBytes / static_cast<model::Bytes>(ranks)) {
    throw InputError("comm_size is " + std::to_string(node.bytes) + " for each of " +
                     std::to_string(ranks) + " NPUs; at most 2^60 bytes in all were expected");
  }
  return node.bytes * static_cast<model::Bytes>(ranks);
}

const std::vector<AlgorithmChoice>* Recipes::choices(Kind kind) const {
  const std::size_t at = configured(kind);
  if (at == config::kCollectives) return nullptr;
  if (system_.algorithms[at].empty()) {
    throw InputError(system_.path + ": " + config::kCollectiveKeys[at] +
                     "-implementation is missing, and the workload has such a collective");
  }
  return &system_.algorithms[at];
}

const std::string& Recipes::custom(const chakra::NodeFields& node) const {
  static const std::string none;
  if (const auto found = system_.custom_by_node.find(node.id);
      found != system_.custom_by_node.end()) {
    return found->second;
  }
  const std::size_t at = configured(node.collective);
  return at == config::kCollectives ? none : system_.custom[at];
}

ScopeId Recipes::scope_of(const chakra::NodeFields& node, std::uint32_t npu) {
  if (node.group != 0) {
    const ScopeId id = group_scope(node.group);
    const std::vector<std::uint32_t>& members = scopes_[id].members;
    if (members.size() < npus_) {
      if (std::find(members.begin(), members.end(), npu) == members.end()) {
        throw InputError("group " + std::to_string(node.group) + " does not hold NPU " +
                         std::to_string(npu));
      }
      return id;
    }
  }
  std::size_t dimensions = network_.dimensions.size();
  if (custom(node).empty()) {
    if (const auto* given = choices(node.collective); given != nullptr) {
      // A list shorter than the network: only the first dimensions take part, as upstream.
      if (!(*given)[0].flat) dimensions = std::min(dimensions, given->size());
    }
  }
  std::vector<std::uint32_t> axes;  // none: the NPU is alone in the dimensions that take part
  bool any = false;
  for (std::uint32_t axis = 0; axis < dimensions; ++axis) {
    const bool involved = axis >= 32 || ((node.dimensions >> axis) & 1u) != 0;
    any = any || involved;
    if (involved && network_.dimensions[axis].npus > 1) axes.push_back(axis);
  }
  if (!any) throw InputError("no dimension takes part in it (involved_dim)");
  return line_of(npu, axes);
}

ScopeId Recipes::line_of(std::uint32_t npu, const std::vector<std::uint32_t>& axes) {
  std::uint32_t first = npu;
  std::size_t count = 1;
  for (const std::uint32_t axis : axes) {
    first -= npu / strides_[axis] % network_.dimensions[axis].npus * strides_[axis];
    count *= network_.dimensions[axis].npus;
  }
  const auto [place, fresh] =
      lines_.try_emplace({axes, first}, static_cast<ScopeId>(scopes_.size()));
  if (!fresh) return place->second;
  Scope scope;
  scope.axes = axes;
  scope.members.push_back(first);
  scope.members.reserve(count);
  for (const std::uint32_t axis : axes) {
    const std::size_t below = scope.members.size();
    for (std::uint32_t at = 1; at < network_.dimensions[axis].npus; ++at) {
      for (std::size_t k = 0; k < below; ++k)
        scope.members.push_back(scope.members[k] + at * strides_[axis]);
    }
  }
  scopes_.push_back(std::move(scope));
  return place->second;
}

ScopeId Recipes::group_scope(std::uint32_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) {
    throw InputError("pg_name is \"" + std::to_string(group) +
                     "\", but there is no comm group of that number");
  }
  const auto [place, fresh] = of_group_.try_emplace(group, static_cast<ScopeId>(scopes_.size()));
  if (!fresh) return place->second;
  Scope scope;
  scope.members = found->second;
  scope.group = group;
  if (!fills_box(scope)) scope.axes.clear();
  scopes_.push_back(std::move(scope));
  return place->second;
}

// Whether the members are all NPUs that differ in some dimensions only: then those dimensions'
// algorithms apply. Of more than one dimension the ranks are put in the network's order; in one the
// file's order is the ring's.
bool Recipes::fills_box(Scope& scope) const {
  std::size_t product = 1;
  for (std::uint32_t axis = 0; axis < network_.dimensions.size(); ++axis) {
    std::set<std::uint32_t> seen;
    for (const std::uint32_t npu : scope.members) {
      seen.insert(npu / strides_[axis] % network_.dimensions[axis].npus);
    }
    if (seen.size() == 1) continue;
    if (seen.size() != network_.dimensions[axis].npus) return false;
    product *= seen.size();
    scope.axes.push_back(axis);
  }
  if (product != scope.members.size()) return false;
  if (scope.axes.size() > 1) std::sort(scope.members.begin(), scope.members.end());
  return true;
}

std::vector<Stage> Recipes::stages(const chakra::NodeFields& node, ScopeId id, std::uint32_t npu) {
  const Scope scope = scopes_[id];
  const model::CollectiveKind kind = engine_kind(node.collective);
  const auto* given = choices(node.collective);
  // The others: binomial trees, and a barrier's dissemination.
  if (given == nullptr) return {{id, kind, Algorithm::kHalvingDoubling, {}, {}, {}}};
  const auto flat = [&](ScopeId members, const AlgorithmChoice& choice) {
    Stage stage{members, kind, choice.algorithm, {}, {}, {}};
    if (choice.window != 0) stage.windows.push_back(choice.window);
    return stage;
  };
  const bool fits = !scope.axes.empty() && scope.axes.back() < given->size() && !(*given)[0].flat;
  if (!fits || (given->size() == 1 && scope.group != 0)) {
    const bool same = std::all_of(given->begin(), given->end(), [&](const AlgorithmChoice& choice) {
      return choice.algorithm == given->front().algorithm && choice.window == given->front().window;
    });
    return {flat(id, same ? given->front() : AlgorithmChoice{})};
  }
  if (scope.axes.size() == 1) return {flat(id, (*given)[scope.axes[0]])};
  std::vector<Stage> stages;
  if (kind == model::CollectiveKind::kAllReduce && system_.baseline) {
    for (const std::uint32_t axis : scope.axes)
      stages.push_back(flat(line_of(npu, {axis}), (*given)[axis]));
    return stages;
  }
  Stage stage{id, kind, (*given)[scope.axes.back()].algorithm, {}, {}, {}};
  for (const std::uint32_t axis : scope.axes) {
    stage.dims.push_back(network_.dimensions[axis].npus);
    stage.algorithms.push_back((*given)[axis].algorithm);
    stage.windows.push_back((*given)[axis].window);
  }
  const auto limited = [](std::uint32_t window) { return window != 0; };
  if (std::none_of(stage.windows.begin(), stage.windows.end(), limited)) stage.windows.clear();
  return {stage};
}

}  // namespace astra_sim::traces
