#include "formats/traces/graph.h"

#include <map>
#include <tuple>

#include "formats/traces/costs.h"
#include "formats/traces/custom.h"
#include "model/base/input_error.h"
#include "model/collective/schedule.h"
#include "model/graph/graph_builder.h"

namespace astra_sim::traces {

using chakra::NodeFields;
using chakra::NodeType;
using model::InputError;
using model::kNone;
using model::NodeIndex;
using model::Stream;

namespace {

class Translator {
 public:
  Translator(const Workload& workload, const Matching& matching, Recipes& recipes,
             const Costs& costs)
      : workload_(workload),
        matching_(matching),
        recipes_(recipes),
        costs_(costs),
        builder_(workload.npus()),
        custom_(builder_) {
    builder_.serve_by_readiness();
  }

  Translation translate() {
    out_.begin.assign(workload_.nodes.size(), kNone);
    out_.end.assign(workload_.nodes.size(), kNone);
    for (std::uint32_t npu = 0; npu < workload_.npus(); ++npu) {
      for (std::uint32_t node = workload_.first[npu]; node < workload_.first[npu + 1]; ++node) {
        if (!matching_.ends[node]) continue;
        out_.begin[node] = count_;
        try {
          add(npu, node);
        } catch (const model::EngineError& error) {
          throw InputError(workload_.name(node) + ": " + error.what());
        }
        out_.end[node] = count_ - 1;
      }
    }
    out_.graph = builder_.build();
    return std::move(out_);
  }

 private:
  std::span<const std::uint64_t> parents_of(std::uint32_t node) {
    parents_.clear();
    for (std::uint32_t at = workload_.parent_begin[node]; at < workload_.parent_begin[node + 1];
         ++at) {
      parents_.push_back(out_.end[workload_.parents[at]]);
    }
    if (matching_.previous[node] != kNobody) parents_.push_back(out_.end[matching_.previous[node]]);
    return parents_;
  }

  void span(std::uint32_t npu, std::uint32_t node, model::Ps duration, Stream stream) {
    count_ = builder_.compute(npu, duration, parents_of(node), stream) + 1;
  }

  void add(std::uint32_t npu, std::uint32_t node) {
    const NodeFields& one = workload_.nodes[node];
    const bool roofline = costs_.system.roofline && !costs_.system.replay_only && !one.on_cpu;
    switch (one.type) {
      case NodeType::kInvalid:
      case NodeType::kMetadata:
        return span(npu, node, 0, Stream::kNone);
      case NodeType::kComp:
        return span(npu, node, roofline ? traces::roofline(one, costs_.system) : duration_of(one),
                    one.stream != Stream::kNone ? one.stream
                    : one.on_cpu                ? Stream::kHost
                                                : Stream::kCompute);
      default:
        break;
    }
    if (costs_.system.replay_only) return span(npu, node, duration_of(one), one.stream);
    switch (one.type) {
      case NodeType::kMemLoad:
      case NodeType::kMemStore:
        return memory(npu, node);
      case NodeType::kCommColl:
        return collective(npu, node);
      default:
        return message(npu, node);
    }
  }

  void memory(std::uint32_t npu, std::uint32_t node) {
    const NodeFields& one = workload_.nodes[node];
    if (one.duration_ps >= 0) return span(npu, node, one.duration_ps, one.stream);
    if (costs_.memory == nullptr) {
      throw InputError("it accesses remote memory, and memory-type is NO_MEMORY_EXPANSION");
    }
    const model::Tier& tier = costs_.memory->tiers()[one.tier];
    if (one.bytes > tier.capacity_bytes) {
      throw InputError("it accesses " + std::to_string(one.bytes) + " bytes, but memory tier \"" +
                       tier.name + "\" has " + std::to_string(tier.capacity_bytes));
    }
    const bool loads = one.type == NodeType::kMemLoad;
    count_ = builder_.add(loads ? model::NodeKind::kMemoryLoad : model::NodeKind::kMemoryStore,
                          one.stream, npu, one.bytes, one.tier, kNone, parents_of(node)) +
             1;
  }

  // A send without a receive ends when its message is there, as upstream.
  void message(std::uint32_t npu, std::uint32_t node) {
    const NodeFields& one = workload_.nodes[node];
    const std::uint32_t partner = matching_.partner[node];
    const std::span<const std::uint64_t> parents = parents_of(node);
    const bool sends = one.type == NodeType::kCommSend;
    if (partner == kNobody || !matching_.ends[partner]) {
      count_ = builder_.transfer(npu, one.peer, one.bytes, parents, Stream::kNone) + 1;
      return;
    }
    const auto number = calls_.try_emplace(sends ? node : partner, calls_.size()).first->second;
    count_ = builder_.add(sends ? model::NodeKind::kSend : model::NodeKind::kRecv, Stream::kNone,
                          npu, one.bytes, one.peer, message_call(number), parents) +
             1;
  }

  static model::CallId message_call(std::size_t number) {
    return static_cast<model::CallId>(number);
  }

  void collective(std::uint32_t npu, std::uint32_t node) {
    const NodeFields& one = workload_.nodes[node];
    const ScopeId scope = matching_.calls[matching_.call[node]].scope;
    if (const std::string& prefix = recipes_.custom(one); !prefix.empty()) {
      count_ = custom_.add(prefix, npu, recipes_.scope(scope).members, matching_.call[node],
                           parents_of(node));
      return;
    }
    std::vector<std::uint64_t> before(parents_of(node).begin(), parents_of(node).end());
    for (const Stage& stage : recipes_.stages(one, scope, npu)) {
      const std::size_t ranks = recipes_.scope(stage.scope).members.size();
      const auto key = std::tuple(matching_.call[node], stage.scope);
      const auto call = static_cast<model::CallId>(
          stage_calls_.try_emplace(key, stage_calls_.size()).first->second);
      const NodeIndex at =
          builder_.collective(npu, plan(stage, one.root, ranks), call,
                              Recipes::engine_bytes(one, ranks), before, Stream::kNone);
      before.assign(1, at);
      count_ = at + 1;
    }
  }

  model::PlanId plan(const Stage& stage, std::uint32_t root, std::size_t ranks) {
    const auto [place, fresh] = plans_.try_emplace(
        std::tuple(stage.scope, stage.kind, stage.algorithm, stage.dims, root), 0);
    if (!fresh) return place->second;
    model::CollectivePlan plan{stage.kind, stage.algorithm, 0, nullptr, {}, nullptr};
    plan.shape.dims = stage.dims;
    plan.shape.algorithms = stage.algorithms;
    plan.shape.windows = stage.windows;
    plan.shape.root = root;
    plan.shape.topology = costs_.topology;
    const bool cut = ranks > 1 && stage.kind != model::CollectiveKind::kBarrier &&
                     costs_.system.dataset_splits > 1;
    if (cut) plan.shape.pieces = pieces();
    model::Schedule::check(plan, ranks);
    plan.group = builder_.add_group(recipes_.scope(stage.scope).members);
    place->second = builder_.add_plan(plan);
    return place->second;
  }

  std::uint32_t pieces() const {
    constexpr std::int64_t kMost = 4096;
    if (costs_.system.dataset_splits > kMost) {
      throw InputError(costs_.system.path + ": preferred-dataset-splits is " +
                       std::to_string(costs_.system.dataset_splits) +
                       "; 1 to 4096 run under --rules default");
    }
    return static_cast<std::uint32_t>(costs_.system.dataset_splits);
  }

  const Workload& workload_;
  const Matching& matching_;
  Recipes& recipes_;
  const Costs& costs_;
  model::GraphBuilder builder_;
  CustomCollectives custom_;
  Translation out_;
  NodeIndex count_ = 0;  // nodes of the graph so far
  std::vector<std::uint64_t> parents_;
  std::map<std::uint32_t, std::size_t> calls_;  // by send
  std::map<std::tuple<std::uint32_t, ScopeId>, std::size_t> stage_calls_;
  std::map<std::tuple<ScopeId, model::CollectiveKind, model::Algorithm, std::vector<std::uint32_t>,
                      std::uint32_t>,
           model::PlanId>
      plans_;
};

}  // namespace

Translation translate(const Workload& workload, const Matching& matching, Recipes& recipes,
                      const Costs& costs) {
  return Translator(workload, matching, recipes, costs).translate();
}

}  // namespace astra_sim::traces
