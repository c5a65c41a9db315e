#include "formats/chakra/dependencies.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace astra_sim::chakra {

void Dependencies::add(const Node& node) {
  ids_.push_back(node.id);
  const auto first = static_cast<std::ptrdiff_t>(named_.size());
  named_.insert(named_.end(), node.data_deps.begin(), node.data_deps.end());
  named_.insert(named_.end(), node.ctrl_deps.begin(), node.ctrl_deps.end());
  if (static_cast<std::ptrdiff_t>(named_.size()) - first > 1) {
    std::sort(named_.begin() + first, named_.end());
    named_.erase(std::unique(named_.begin() + first, named_.end()), named_.end());
  }
  begin_.push_back(static_cast<std::uint32_t>(named_.size()));
}

void Dependencies::resolve() {
  by_id_.resize(ids_.size());
  for (std::uint32_t node = 0; node < by_id_.size(); ++node) by_id_[node] = node;
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return ids_[a] < ids_[b]; };
  if (!std::is_sorted(by_id_.begin(), by_id_.end(), before))
    std::stable_sort(by_id_.begin(), by_id_.end(), before);
  parents_.clear();
  parents_.reserve(named_.size());
  for (const std::uint64_t id : named_) {
    const auto found = std::lower_bound(
        by_id_.begin(), by_id_.end(), id,
        [&](std::uint32_t node, std::uint64_t value) { return ids_[node] < value; });
    parents_.push_back(found == by_id_.end() || ids_[*found] != id ? kAbsent : *found);
  }
}

std::vector<std::string> Dependencies::problems(std::size_t most) const {
  std::vector<std::string> found;
  for (std::size_t at = 1; at < by_id_.size() && found.size() < most; ++at) {
    if (ids_[by_id_[at]] != ids_[by_id_[at - 1]]) continue;
    found.push_back("node " + std::to_string(ids_[by_id_[at]]) +
                    " appears twice; numbers are unique in a file");
  }
  for (std::uint32_t node = 0; node < size(); ++node) {
    for (std::uint32_t at = begin_[node]; at < begin_[node + 1] && found.size() < most; ++at) {
      if (parents_[at] != kAbsent) continue;
      found.push_back("node " + std::to_string(ids_[node]) + " depends on node " +
                      std::to_string(named_[at]) + ", which is not in the file");
    }
  }
  if (found.size() >= most) return found;
  const std::vector<std::uint32_t> ordered = order();
  if (ordered.size() < ids_.size()) found.push_back(cycle(ordered));
  return found;
}

std::vector<std::uint32_t> Dependencies::order() const {
  std::vector<std::uint32_t> open(size(), 0), child_begin(ids_.size() + 1, 0);
  for (std::uint32_t node = 0; node < size(); ++node) {
    for (const std::uint32_t parent : parents(node)) {
      if (parent == kAbsent) continue;
      ++open[node];
      ++child_begin[parent + 1];
    }
  }
  for (std::uint32_t node = 0; node < size(); ++node) child_begin[node + 1] += child_begin[node];
  std::vector<std::uint32_t> children(child_begin.back()),
      fill(child_begin.begin(), child_begin.end() - 1);
  for (std::uint32_t node = 0; node < size(); ++node) {
    for (const std::uint32_t parent : parents(node)) {
      if (parent != kAbsent) children[fill[parent]++] = node;
    }
  }
  using Entry = std::pair<std::uint64_t, std::uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> free;
  for (std::uint32_t node = 0; node < size(); ++node) {
    if (open[node] == 0) free.emplace(ids_[node], node);
  }
  std::vector<std::uint32_t> ordered;
  ordered.reserve(ids_.size());
  while (!free.empty()) {
    const std::uint32_t node = free.top().second;
    free.pop();
    ordered.push_back(node);
    for (std::uint32_t at = child_begin[node]; at < child_begin[node + 1]; ++at) {
      if (--open[children[at]] == 0) free.emplace(ids_[children[at]], children[at]);
    }
  }
  return ordered;
}

// Walking from parent to parent among the nodes without a place in the order comes back to a node
// seen before.
std::string Dependencies::cycle(const std::vector<std::uint32_t>& ordered) const {
  constexpr std::size_t kNamed = 8;
  std::vector<bool> placed(ids_.size(), false), seen(ids_.size(), false);
  for (const std::uint32_t node : ordered) placed[node] = true;
  const auto stuck_parent = [&](std::uint32_t node) {
    const auto all = parents(node);
    return *std::find_if(all.begin(), all.end(),
                         [&](auto parent) { return parent != kAbsent && !placed[parent]; });
  };
  auto node =
      static_cast<std::uint32_t>(std::find(placed.begin(), placed.end(), false) - placed.begin());
  for (; !seen[node]; node = stuck_parent(node)) seen[node] = true;
  std::string text = "nodes depend on each other in a cycle: " + std::to_string(ids_[node]);
  std::uint32_t at = stuck_parent(node);
  for (std::size_t named = 1; at != node && named < kNamed; at = stuck_parent(at), ++named) {
    text += " on " + std::to_string(ids_[at]);
  }
  return text + " on " + (at == node ? std::to_string(ids_[node]) : std::string("others"));
}

}  // namespace astra_sim::chakra
