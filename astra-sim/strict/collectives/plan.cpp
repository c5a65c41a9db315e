#include "strict/collectives/plan.h"

#include <algorithm>
#include <bit>

#include "model/base/input_error.h"
#include "strict/base/events.h"

namespace astra_sim::strict {

using config::Collective;

namespace {

constexpr std::size_t kMostDirect = 16384;  // the square of it, and of its steps, fits 31 bits

std::string alone(std::uint32_t group) {
  return (group == 0 ? std::string("its dimensions have one NPU")
                     : "group " + std::to_string(group) + " has one NPU") +
         ", and ASTRA-sim would wait for ever in a collective of one; --rules default ends it at "
         "once";
}

}  // namespace

Plans::Plans(const config::NetworkConfig& network, const config::SystemConfig& system,
             const config::Groups& groups)
    : network_(network), system_(system), npus_(network.npus()) {
  for (std::uint32_t npu = 0; npu < npus_; ++npu) everyone_.push_back(npu);
  rings_.push_back({everyone_, false});  // ring 0 is the flat one
  add_dimension_rings();
  for (const auto& [id, npus] : groups) {
    GroupInfo info{npus, {}, static_cast<std::uint32_t>(rings_.size())};
    for (std::uint32_t at = 0; at < npus.size(); ++at) info.positions.emplace_back(npus[at], at);
    std::sort(info.positions.begin(), info.positions.end());
    if (npus.size() < npus_) rings_.push_back({npus, true});
    groups_.emplace(id, std::move(info));
  }
}

void Plans::add_dimension_rings() {
  std::uint32_t stride = 1;
  for (const config::NetworkDimension& dimension : network_.dimensions) {
    strides_.push_back(stride);
    first_ring_.push_back(static_cast<std::uint32_t>(rings_.size()));
    // Rings of one dimension in the order of their first NPU, which is also the order of `ring_of`.
    for (std::uint32_t outer = 0; outer < npus_ / (stride * dimension.npus); ++outer) {
      for (std::uint32_t inner = 0; inner < stride; ++inner) {
        Ring ring;
        for (std::uint32_t at = 0; at < dimension.npus; ++at) {
          ring.npus.push_back(outer * stride * dimension.npus + at * stride + inner);
        }
        rings_.push_back(std::move(ring));
      }
    }
    stride *= dimension.npus;
  }
}

bool Plans::smaller(std::uint32_t group) const {
  return group != 0 && groups_.at(group).npus.size() < npus_;
}

std::uint32_t Plans::place_in(std::uint32_t group, std::uint32_t npu) const {
  if (group == 0) return npu;
  const auto& positions = groups_.at(group).positions;
  const auto found = std::lower_bound(positions.begin(), positions.end(), std::pair{npu, 0u});
  return found == positions.end() || found->first != npu ? kNone : found->second;
}

const std::vector<std::uint32_t>& Plans::members(std::uint32_t group) const {
  return group == 0 ? everyone_ : groups_.at(group).npus;
}

std::uint32_t Plans::ring_of(std::uint32_t npu, std::uint32_t group, const Plan& plan,
                             const Phase& phase) const {
  if (smaller(group)) return groups_.at(group).ring;
  if (plan.flat) return 0;
  const std::uint32_t stride = strides_[phase.dimension];
  const std::uint32_t span = stride * network_.dimensions[phase.dimension].npus;
  return first_ring_[phase.dimension] + npu / span * stride + npu % stride;
}

std::uint32_t Plans::position(std::uint32_t npu, std::uint32_t group, const Plan& plan,
                              const Phase& phase) const {
  if (smaller(group)) return place_in(group, npu);
  if (plan.flat) return npu;
  return npu / strides_[phase.dimension] % network_.dimensions[phase.dimension].npus;
}

const Plan& Plans::plan(Collective kind, std::uint32_t group, std::uint32_t dimensions) {
  const std::uint32_t scope = smaller(group) ? group : 0;
  if (group != 0) dimensions = scope != 0 ? 0 : ~0u;  // involved_dim counts without a group only
  const std::uint64_t key = (static_cast<std::uint64_t>(scope) << 34) |
                            (static_cast<std::uint64_t>(kind) << 32) | dimensions;
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  Plan made = make(kind, scope, dimensions);
  // Upstream's tree knows nothing but an all-reduce, which leaves the size of a chunk as it is.
  for (Phase& phase : made.phases) {
    if (phase.algorithm.algorithm == config::Algorithm::kDoubleBinaryTree)
      phase.operation = Collective::kAllReduce;
  }
  check(made, kind, scope);
  return plans_.emplace(key, std::move(made)).first->second;
}

// What upstream hangs, crashes or computes something else on.
void Plans::check(const Plan& plan, Collective kind, std::uint32_t group) const {
  for (const Phase& phase : plan.phases) {
    const std::uint32_t npu = members(group).front();
    const std::size_t size = rings_[ring_of(npu, group, plan, phase)].npus.size();
    const std::string name = config::kCollectiveKeys[static_cast<std::size_t>(kind)];
    if (size < 2) throw model::InputError(alone(group));
    const model::AlgorithmEntry& entry = model::entry_of(phase.algorithm.algorithm);
    if (!entry.upstream) {
      throw model::InputError(std::string(entry.word) +
                              " is not ASTRA-sim's; it runs under --rules default");
    }
    if (phase.algorithm.algorithm == config::Algorithm::kDirect && size > kMostDirect) {
      throw model::InputError("direct takes up to " + std::to_string(kMostDirect) +
                              " NPUs under strict rules (a channel per pair), not " +
                              std::to_string(size));
    }
    const bool tree = phase.algorithm.algorithm == config::Algorithm::kDoubleBinaryTree;
    if (!tree && phase.algorithm.algorithm != config::Algorithm::kHalvingDoubling) continue;
    const std::string algorithm = entry.word;
    if (!std::has_single_bit(size)) {
      throw model::InputError(algorithm + " needs a power of two of NPUs, not " +
                              std::to_string(size));
    }
    if (!tree && phase.operation == Collective::kAllToAll)
      throw model::InputError(algorithm + " cannot carry out " + name);
  }
}

Plan Plans::make(Collective kind, std::uint32_t group, std::uint32_t dimensions) const {
  const auto& given = system_.algorithms[static_cast<std::size_t>(kind)];
  if (given.empty()) {
    throw model::InputError(system_.path + ": " +
                            config::kCollectiveKeys[static_cast<std::size_t>(kind)] +
                            "-implementation is missing, and the workload has such a collective");
  }
  const bool aware = kind == Collective::kAllReduce && system_.local_bandwidth_aware;
  const QueueRule rule = aware ? QueueRule::kFirstHalf : QueueRule::kAll;
  if (group != 0) {
    // More than one implementation: a smaller group falls back to a ring.
    config::AlgorithmChoice algorithm = given.size() == 1 ? given[0] : config::AlgorithmChoice{};
    return {{{0, kind, algorithm, rule, 0}}, false};
  }
  if (given[0].flat) return {{{0, kind, given[0], rule, 0}}, true};
  std::vector<std::uint32_t> used;
  bool any = false;
  for (std::uint32_t d = 0; d < std::min(given.size(), network_.dimensions.size()); ++d) {
    const bool involved = ((dimensions >> d) & 1u) != 0;
    any = any || involved;
    if (involved && network_.dimensions[d].npus > 1) used.push_back(d);
  }
  const auto flat =
      std::find_if(used.begin(), used.end(), [&](std::uint32_t d) { return given[d].flat; });
  if (flat != used.end()) {
    throw model::InputError(system_.path + ": " +
                            config::kCollectiveKeys[static_cast<std::size_t>(kind)] +
                            "-implementation has an algorithm over all NPUs (one...) in place " +
                            std::to_string(*flat) + " of the list; it has to come first");
  }
  if (!any) throw model::InputError("no dimension takes part in it (involved_dim)");
  if (used.empty()) throw model::InputError(alone(0));
  if (kind == Collective::kAllGather) std::reverse(used.begin(), used.end());
  Plan plan;
  for (const std::uint32_t d : used) plan.phases.push_back({d, kind, given[d], rule, 0});
  if (!aware) return plan;
  for (std::size_t at = 0; at + 1 < used.size(); ++at)
    plan.phases[at].operation = Collective::kReduceScatter;
  for (std::size_t at = used.size() - 1; at-- > 0;) {
    plan.phases.push_back(
        {used[at], Collective::kAllGather, given[used[at]], QueueRule::kSecondHalf, 1});
  }
  return plan;
}

}  // namespace astra_sim::strict
