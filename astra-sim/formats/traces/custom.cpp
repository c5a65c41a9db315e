#include "formats/traces/custom.h"

#include <algorithm>

#include "formats/traces/costs.h"
#include "model/base/input_error.h"

namespace astra_sim::traces {

using chakra::NodeType;
using model::InputError;
using model::Stream;

const CustomCollectives::Pattern& CustomCollectives::pattern(const std::string& prefix,
                                                             std::uint32_t ranks) {
  std::unique_ptr<Pattern>& found = patterns_[{prefix, ranks}];
  if (found != nullptr) return *found;
  chakra::FieldRules rules;
  rules.upstream = false;
  rules.custom = true;
  rules.npus = ranks;
  auto made = std::make_unique<Pattern>();
  made->ranks = load_workload(prefix, rules);
  made->message.assign(made->ranks.nodes.size(), kNobody);
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::int64_t>;
  std::map<Key, std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>>
      ends;  // sends, receives
  for (std::uint32_t at = 0; at < made->ranks.nodes.size(); ++at) {
    const chakra::NodeFields& node = made->ranks.nodes[at];
    const std::uint32_t rank = made->ranks.npu_of(at);
    if (node.type == NodeType::kCommSend)
      ends[{rank, node.peer, node.tag, node.bytes}].first.push_back(at);
    if (node.type == NodeType::kCommRecv)
      ends[{node.peer, rank, node.tag, node.bytes}].second.push_back(at);
  }
  for (const auto& [key, both] : ends) {
    if (both.first.size() != both.second.size()) {
      throw InputError(prefix + ": rank " + std::to_string(std::get<0>(key)) + " sends " +
                       std::to_string(both.first.size()) + " messages of " +
                       std::to_string(std::get<3>(key)) + " bytes with tag " +
                       std::to_string(std::get<2>(key)) + " to rank " +
                       std::to_string(std::get<1>(key)) + ", which receives " +
                       std::to_string(both.second.size()) + "; as many were expected");
    }
    for (std::size_t k = 0; k < both.first.size(); ++k) {
      made->message[both.first[k]] = made->message[both.second[k]] = made->messages++;
    }
  }
  found = std::move(made);
  return *found;
}

model::NodeIndex CustomCollectives::add(const std::string& prefix, std::uint32_t npu,
                                        const std::vector<std::uint32_t>& members,
                                        std::uint32_t call,
                                        std::span<const std::uint64_t> parents) {
  const Pattern& steps = pattern(prefix, static_cast<std::uint32_t>(members.size()));
  const auto [place, fresh] = first_message_.try_emplace(call, next_message_);
  if (fresh) {
    if (model::kNone - next_message_ <= steps.messages) {
      throw InputError("custom collectives of more than 2^31 messages in all are too many");
    }
    next_message_ += steps.messages;
  }
  const auto rank =
      static_cast<std::uint32_t>(std::find(members.begin(), members.end(), npu) - members.begin());
  const std::uint32_t first = steps.ranks.first[rank], last = steps.ranks.first[rank + 1];
  const model::NodeIndex start = builder_.compute(npu, 0, parents, Stream::kNone);
  std::vector<std::uint64_t> all{start};
  for (std::uint32_t at = first; at < last; ++at) {
    std::vector<std::uint64_t> before;
    for (std::uint32_t k = steps.ranks.parent_begin[at]; k < steps.ranks.parent_begin[at + 1];
         ++k) {
      before.push_back(start + 1 + (steps.ranks.parents[k] - first));
    }
    if (before.empty()) before.push_back(start);
    step(steps, at, npu, members, place->second, before);
    all.push_back(start + 1 + (at - first));
  }
  return builder_.compute(npu, 0, all, Stream::kNone) + 1;
}

void CustomCollectives::step(const Pattern& pattern, std::uint32_t at, std::uint32_t npu,
                             const std::vector<std::uint32_t>& members, model::CallId first_message,
                             std::span<const std::uint64_t> parents) {
  const chakra::NodeFields& node = pattern.ranks.nodes[at];
  if (node.type == NodeType::kComp) {
    builder_.compute(npu, duration_of(node), parents, Stream::kNone);
    return;
  }
  const auto kind =
      node.type == NodeType::kCommSend ? model::NodeKind::kSend : model::NodeKind::kRecv;
  builder_.add(kind, Stream::kNone, npu, node.bytes, members[node.peer],
               first_message + pattern.message[at], parents);
}

}  // namespace astra_sim::traces
