#include "formats/traces/collectives/matching.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "model/base/input_error.h"

namespace astra_sim::traces {

using chakra::NodeType;
using model::InputError;

namespace {

std::string described(const chakra::NodeFields& node) {
  return std::string(chakra::kCollectiveNames[static_cast<std::size_t>(node.collective)]) + " of " +
         std::to_string(node.bytes) + " bytes";
}

class Matcher {
 public:
  Matcher(const Workload& workload, Recipes& recipes, Matching& out)
      : workload_(workload), recipes_(recipes), out_(out) {}

  void collectives() {
    std::map<std::pair<ScopeId, std::uint32_t>, std::uint32_t> call_of;  // scope, number -> call
    for (std::uint32_t npu = 0; npu < workload_.npus(); ++npu) {
      struct Last {
        std::uint32_t count = 0;
        std::uint32_t node = kNobody;
      };
      std::map<ScopeId, Last> last;
      for (std::uint32_t node = workload_.first[npu]; node < workload_.first[npu + 1]; ++node) {
        if (workload_.nodes[node].type != NodeType::kCommColl) continue;
        const ScopeId scope = scope_of(node, npu);
        Last& before = last[scope];
        const auto next = static_cast<std::uint32_t>(out_.calls.size());
        const auto [place, fresh] = call_of.try_emplace({scope, before.count++}, next);
        if (fresh) out_.calls.push_back({scope, {}});
        Call& call = out_.calls[place->second];
        call.nodes.push_back(node);
        agree(call.nodes.front(), node);
        out_.call[node] = place->second;
        out_.previous[node] = before.node;
        before.node = node;
      }
    }
  }

  void messages() {
    using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::int64_t>;
    struct Ends {
      std::vector<std::uint32_t> sends, receives;
    };
    std::map<Key, Ends> ends;
    for (std::uint32_t npu = 0; npu < workload_.npus(); ++npu) {
      for (std::uint32_t node = workload_.first[npu]; node < workload_.first[npu + 1]; ++node) {
        const chakra::NodeFields& one = workload_.nodes[node];
        if (one.type == NodeType::kCommSend)
          ends[{npu, one.peer, one.tag, one.bytes}].sends.push_back(node);
        else if (one.type == NodeType::kCommRecv)
          ends[{one.peer, npu, one.tag, one.bytes}].receives.push_back(node);
      }
    }
    for (const auto& [key, both] : ends) {
      for (std::size_t k = 0; k < std::min(both.sends.size(), both.receives.size()); ++k) {
        out_.partner[both.sends[k]] = both.receives[k];
        out_.partner[both.receives[k]] = both.sends[k];
      }
    }
  }

 private:
  ScopeId scope_of(std::uint32_t node, std::uint32_t npu) {
    try {
      return recipes_.scope_of(workload_.nodes[node], npu);
    } catch (const InputError& error) {
      throw InputError(workload_.name(node) + ": " + error.what());
    }
  }

  void agree(std::uint32_t a, std::uint32_t b) const {
    const chakra::NodeFields &one = workload_.nodes[a], &other = workload_.nodes[b];
    if (one.collective == other.collective && one.bytes == other.bytes && one.root == other.root)
      return;
    throw InputError(workload_.name(b) + " is " + described(other) + ", but " + workload_.name(a) +
                     " at the same " + "place of the same NPUs' collectives is " + described(one) +
                     (one.root == other.root ? "" : " with another root") +
                     "; NPUs that communicate issue the same collectives in the same order");
  }

  const Workload& workload_;
  Recipes& recipes_;
  Matching& out_;
};

// Runs the graph without times: whatever can start, starts.
class Reach {
 public:
  Reach(const Workload& workload, const Recipes& recipes, Matching& out, bool replay_only)
      : workload_(workload),
        recipes_(recipes),
        out_(out),
        replay_only_(replay_only),
        open_(workload.nodes.size(), 0),
        arrived_(out.calls.size(), 0),
        started_(workload.nodes.size(), false) {}

  void run() {
    link();
    for (std::uint32_t node = 0; node < open_.size(); ++node) {
      if (open_[node] == 0) ready_.push_back(node);
    }
    while (!ready_.empty()) {
      const std::uint32_t node = ready_.back();
      ready_.pop_back();
      start(node);
    }
  }

 private:
  void link() {
    begin_.assign(workload_.nodes.size() + 1, 0);
    each_edge([&](std::uint32_t parent, std::uint32_t child) {
      ++begin_[parent + 1];
      ++open_[child];
    });
    for (std::size_t node = 0; node + 1 < begin_.size(); ++node) begin_[node + 1] += begin_[node];
    children_.resize(begin_.back());
    std::vector<std::uint32_t> fill(begin_.begin(), begin_.end() - 1);
    each_edge(
        [&](std::uint32_t parent, std::uint32_t child) { children_[fill[parent]++] = child; });
  }

  template <class Edge>
  void each_edge(Edge edge) const {
    for (std::uint32_t node = 0; node < workload_.nodes.size(); ++node) {
      for (std::uint32_t at = workload_.parent_begin[node]; at < workload_.parent_begin[node + 1];
           ++at) {
        edge(workload_.parents[at], node);
      }
      if (out_.previous[node] != kNobody) edge(out_.previous[node], node);
    }
  }

  void start(std::uint32_t node) {
    started_[node] = true;
    const NodeType type = workload_.nodes[node].type;
    if (replay_only_) return end(node);
    if (type == NodeType::kCommColl) {
      const Call& call = out_.calls[out_.call[node]];
      if (++arrived_[out_.call[node]] < recipes_.scope(call.scope).members.size()) return;
      for (const std::uint32_t part : call.nodes) end(part);
    } else if (type == NodeType::kCommRecv) {
      const std::uint32_t send = out_.partner[node];
      if (send != kNobody && started_[send]) end(node);
    } else {
      end(node);
      const std::uint32_t receive = type == NodeType::kCommSend ? out_.partner[node] : kNobody;
      if (receive != kNobody && started_[receive]) end(receive);
    }
  }

  void end(std::uint32_t node) {
    out_.ends[node] = true;
    for (std::uint32_t at = begin_[node]; at < begin_[node + 1]; ++at) {
      if (--open_[children_[at]] == 0) ready_.push_back(children_[at]);
    }
  }

  const Workload& workload_;
  const Recipes& recipes_;
  Matching& out_;
  bool replay_only_;
  std::vector<std::uint32_t> open_, begin_, children_, ready_;
  std::vector<std::size_t> arrived_;
  std::vector<bool> started_;
};

}  // namespace

Matching match(const Workload& workload, Recipes& recipes, bool replay_only) {
  Matching matching;
  matching.call.assign(workload.nodes.size(), kNobody);
  matching.previous.assign(workload.nodes.size(), kNobody);
  matching.partner.assign(workload.nodes.size(), kNobody);
  matching.ends.assign(workload.nodes.size(), false);
  if (!replay_only) {
    Matcher matcher(workload, recipes, matching);
    matcher.collectives();
    matcher.messages();
  }
  Reach(workload, recipes, matching, replay_only).run();
  return matching;
}

std::vector<std::string> explain(const Workload& workload, const Recipes& recipes,
                                 const Matching& matching, std::uint64_t& left) {
  constexpr std::size_t kSentences = 20;
  std::vector<std::string> causes, effects;
  left = 0;
  for (std::uint32_t node = 0; node < workload.nodes.size(); ++node) {
    if (matching.ends[node]) continue;
    ++left;
    const chakra::NodeFields& one = workload.nodes[node];
    const std::string name =
        "NPU " + std::to_string(workload.npu_of(node)) + ": node " + std::to_string(one.id);
    if (one.type == NodeType::kCommRecv && matching.partner[node] == kNobody) {
      causes.push_back(name + " waits for " + std::to_string(one.bytes) + " bytes with tag " +
                       std::to_string(one.tag) + " from NPU " + std::to_string(one.peer) +
                       ", which are never sent");
    } else if (one.type == NodeType::kCommColl &&
               matching.calls[matching.call[node]].nodes.size() <
                   recipes.scope(matching.calls[matching.call[node]].scope).members.size()) {
      causes.push_back(name + " waits in " + described(one) + " for other NPUs that never join it");
    } else if (effects.size() < kSentences) {
      effects.push_back(name + " waits for nodes that never end, or that wait for it");
    }
    if (causes.size() > kSentences) causes.pop_back();
  }
  for (std::string& sentence : effects) {
    if (causes.size() < kSentences) causes.push_back(std::move(sentence));
  }
  return causes;
}

}  // namespace astra_sim::traces
