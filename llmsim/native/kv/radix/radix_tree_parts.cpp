// What layers with a window, or those that keep states, have of a radix tree's nodes, on the device
// and in host memory (SGLang: mem_cache/unified_cache/components, unified_tree_core.py).
#include <algorithm>

#include "kv/radix/radix_tree.h"

namespace llmsim {

// What comes to the device is the most recently used there.
void RadixTree::add_part(NodeId id, Parts& all) {
  Part& one = part(id, all);
  one.on_device = true;
  all.held += size(id, all);
  if (one.locks == 0) all.evictable += size(id, all);
  if (all.host_used.holds(id)) all.host_used.remove(id);
  all.used.add(id);
}

void RadixTree::drop_part(NodeId id, Parts& all) {
  Part& one = part(id, all);
  if (!one.on_device) return;
  all.used.remove(id);
  one.on_device = false;
  all.held -= size(id, all);
  if (one.locks == 0) all.evictable -= size(id, all);
  if (one.on_host && !all.host_used.holds(id)) all.host_used.add(id);
}

void RadixTree::add_part_on_host(NodeId id, Parts& all) {
  part(id, all).on_host = true;
  all.host_held += size(id, all);
}

void RadixTree::drop_part_on_host(NodeId id, Parts& all) {
  Part& one = part(id, all);
  if (!one.on_host) return;
  one.on_host = false;
  all.host_held -= size(id, all);
  if (all.host_used.holds(id)) all.host_used.remove(id);
}

void RadixTree::change_locks(NodeId id, Parts& all, std::int32_t change) {
  if (id == kRoot) return;
  Part& one = part(id, all);
  if (one.on_device && one.locks == 0) all.evictable -= size(id, all);
  one.locks += change;
  if (one.on_device && one.locks == 0) all.evictable += size(id, all);
}

// Who is locked there is not in the order of use, and comes back as the most recent one.
void RadixTree::change_host_locks(NodeId id, Parts& all, std::int32_t change) {
  if (id == kRoot) return;
  leave(id);
  Part& one = part(id, all);
  if (one.host_locks == 0 && all.host_used.holds(id)) all.host_used.remove(id);
  one.host_locks += change;
  const bool alone = one.on_host && !one.on_device && one.host_locks == 0;
  if (alone && !all.host_used.holds(id)) all.host_used.add(id);
  enter(id);
}

RadixTree::NodeId RadixTree::part_victim(Kind kind, std::span<const NodeId> spared) const {
  const Parts& all = parts(kind);
  for (NodeId id = all.used.oldest(); id != kRoot; id = all.used.newer_than(id))
    if (part(id, all).locks == 0 && std::ranges::find(spared, id) == spared.end()) return id;
  return kRoot;
}

RadixTree::Freed RadixTree::drop_part(Kind kind, NodeId id) {
  const std::int32_t amount = size(id, parts(kind));
  drop_part(id, parts(kind));
  return kind == Kind::kWindows ? Freed{.window_pages = amount} : Freed{.states = amount};
}

RadixTree::Freed RadixTree::evict_host_parts(Kind kind, std::int32_t amount) {
  Parts& all = parts(kind);
  const auto unlocked = [&](NodeId id) {
    while (id != kRoot && part(id, all).host_locks > 0) id = all.host_used.newer_than(id);
    return id;
  };
  Freed freed;
  std::int32_t gone = 0;
  NodeId id = unlocked(all.host_used.oldest());
  while (gone < amount && id != kRoot) {
    const NodeId next = unlocked(all.host_used.newer_than(id));
    gone += size(id, all);
    if (host_leaf(id)) {
      const Freed whole = host_parts(id);
      freed.pages += whole.pages;
      freed.window_pages += whole.window_pages;
      freed.states += whole.states;
      remove(id);
    } else {
      (kind == Kind::kWindows ? freed.window_pages : freed.states) += size(id, all);
      drop_part_on_host(id, all);
    }
    id = next;
  }
  return freed;
}

RadixTree::Freed RadixTree::device_parts(NodeId id) const {
  const Node& node = nodes_[at(id)];
  return {node.on_device ? node.length : 0, node.window.on_device ? node.length : 0,
          node.state.on_device ? 1 : 0};
}

RadixTree::Freed RadixTree::host_parts(NodeId id) const {
  const Node& node = nodes_[at(id)];
  return {node.on_host ? node.length : 0, node.window.on_host ? node.length : 0,
          node.state.on_host ? 1 : 0};
}

bool RadixTree::parts_consistent(const Parts& all) const {
  std::int64_t evictable = 0, held = 0, on_host = 0;
  for (NodeId id = 1; id < std::ssize(nodes_); ++id) {
    if (!nodes_[at(id)].alive) continue;
    const Part& one = part(id, all);
    if (one.on_device) held += size(id, all);
    if (one.on_device && one.locks == 0) evictable += size(id, all);
    if (one.on_host) on_host += size(id, all);
    if (one.on_device != all.used.holds(id)) return false;
    if (all.host_used.holds(id) && (one.on_device || !one.on_host)) return false;
  }
  return evictable == all.evictable && held == all.held && on_host == all.host_held;
}

}  // namespace llmsim
