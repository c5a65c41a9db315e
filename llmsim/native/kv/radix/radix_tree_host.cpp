// The tree's pages in host memory (SGLang's HiCache: mem_cache/unified_cache/unified_tree_core.py
// and components/full.py).
#include <algorithm>

#include "kv/radix/radix_tree.h"

namespace llmsim {

void RadixTree::add_host_copy(NodeId id) {
  Node& node = nodes_[at(id)];
  node.on_host = true;
  host_held_ += node.length;
}

// Windows up to the first node of which a copy is under way, or whose part is gone.
RadixTree::Unwritten RadixTree::unwritten(NodeId id) const {
  Unwritten missing;
  if (!nodes_[at(id)].on_host) missing.pages = nodes_[at(id)].length;
  const Part& state = nodes_[at(id)].state;
  missing.state = state.on_device && !state.on_host;
  std::int32_t covered = 0;
  for (; id != kRoot && covered < window_pages_; id = nodes_[at(id)].parent) {
    const Node& node = nodes_[at(id)];
    if (node.writing != kRoot || !(node.window.on_device || node.window.on_host)) break;
    covered += node.length;
    if (!node.window.on_device || node.window.on_host) continue;
    missing.windows.push_back(id);
    missing.window_pages += node.length;
  }
  return missing;
}

void RadixTree::add_host_copies(NodeId id, const Unwritten& copied) {
  if (copied.pages > 0) add_host_copy(id);
  for (const NodeId node : copied.windows) add_part_on_host(node, windows_);
  if (copied.state) add_part_on_host(id, states_);
}

RadixTree::Missing RadixTree::missing(NodeId id) const {
  Missing found;
  const Part& state = nodes_[at(id)].state;
  found.state = keeps_states() && !state.on_device && state.on_host;
  for (NodeId one = id; one != kRoot && !nodes_[at(one)].on_device; one = nodes_[at(one)].parent) {
    found.nodes.push_back(one);
    found.pages += nodes_[at(one)].length;
  }
  std::int32_t covered = 0;
  for (; id != kRoot && covered < window_pages_; id = nodes_[at(id)].parent) {
    covered += nodes_[at(id)].length;
    if (nodes_[at(id)].window.on_device) continue;
    if (!nodes_[at(id)].window.on_host) break;
    found.windows.push_back(id);
    found.window_pages += nodes_[at(id)].length;
  }
  return found;
}

void RadixTree::return_to_device(NodeId id, const Missing& missing) {
  for (std::size_t i = missing.nodes.size(); i-- > 0;) return_to_device(missing.nodes[i]);
  for (std::size_t i = missing.windows.size(); i-- > 0;) add_part(missing.windows[i], windows_);
  if (missing.state) add_part(id, states_);
}

// With windows, those that the last node ends with.
void RadixTree::find_on_host(Match& found) const {
  for (NodeId id = found.last; id != found.node; id = nodes_[at(id)].parent)
    if (nodes_[at(id)].on_host) found.host_pages += nodes_[at(id)].length;
  if (found.last == kRoot) return;
  const Part& state = nodes_[at(found.last)].state;
  found.host_state = keeps_states() && !state.on_device && state.on_host;
  std::int32_t covered = 0;
  for (NodeId id = found.last; id != kRoot && covered < window_pages_; id = nodes_[at(id)].parent) {
    const Node& node = nodes_[at(id)];
    if (!node.window.on_device && !node.window.on_host) break;
    if (!node.window.on_device) found.host_window_pages += node.length;
    covered += node.length;
  }
}

void RadixTree::drop_host_copy(NodeId id) {
  Node& node = nodes_[at(id)];
  node.on_host = false;
  host_held_ -= node.length;
}

RadixTree::NodeId RadixTree::device_victim(std::span<const NodeId> spared) const {
  for (const auto& [used, leaf] : leaves_)
    if (std::ranges::find(spared, leaf) == spared.end()) return leaf;
  return kRoot;
}

void RadixTree::leave_device(NodeId id) {
  leave(id);
  Node& node = nodes_[at(id)];
  node.on_device = false;
  if (node.locks == 0) evictable_ -= node.length;
  held_ -= node.length;
  --nodes_[at(node.parent)].device_children;
  drop_part(id, windows_);
  drop_part(id, states_);
  enter(id);
  enter(node.parent);
}

void RadixTree::return_to_device(NodeId id) {
  Node& node = nodes_[at(id)];
  leave(id);
  leave(node.parent);
  node.on_device = true;
  if (node.locks == 0) evictable_ += node.length;
  held_ += node.length;
  ++nodes_[at(node.parent)].device_children;
  enter(id);
  enter(node.parent);
}

std::vector<RadixTree::NodeId> RadixTree::below(NodeId node) const {
  std::vector<NodeId> found;
  for (NodeId id = 1; id < std::ssize(nodes_); ++id) {
    if (!nodes_[at(id)].alive) continue;
    NodeId above = nodes_[at(id)].parent;
    while (above != kRoot && above != node) above = nodes_[at(above)].parent;
    if (above == node && node != kRoot) found.push_back(id);
  }
  std::ranges::sort(found, {}, [this](NodeId id) { return nodes_[at(id)].first; });
  return found;
}

std::vector<Key> RadixTree::page_keys(NodeId id) const {
  const Node& node = nodes_[at(id)];
  std::vector<Key> keys;
  for (std::int32_t page = node.first; page < node.first + node.length; ++page)
    keys.push_back(key_at(node, page));
  return keys;
}

std::int32_t RadixTree::graft(NodeId anchor, RequestId request, std::int32_t first,
                              std::int32_t end, bool fills) {
  use(anchor, tick());
  const PageKeys::Of keys = keys_.of(request);
  NodeId above = anchor;
  std::int32_t reached = first, there = 0;
  while (reached < end) {
    NodeId next = child(keys, reached);
    if (next == kRoot) break;
    use(next, tick());
    const std::int32_t equal = common(nodes_[at(next)], keys, end);
    if (equal < nodes_[at(next)].length) next = split(next, equal);
    reached += equal;
    above = next;
    if (!fills || nodes_[at(next)].on_host) {
      there += equal;
    } else {
      add_host_copy(next);
      note_duplicate(next);
    }
  }
  if (reached == end) return there;
  const NodeId id = grow(above, request, reached, end);
  nodes_[at(id)].on_device = false;
  add_host_copy(id);
  enter(id);
  enter(above);
  return there;
}

RadixTree::HostPin RadixTree::pin_host(NodeId id, bool even_without_copy) {
  HostPin pin{id};
  Node& node = nodes_[at(id)];
  if (node.on_host || even_without_copy) {
    leave(id);
    if (node.pin_top == 0) node.pin_top = ++pin_tops_;
    ++node.host_locks;
    enter(id);
    pin.top = node.pin_top;
  }
  if (keeps_windows()) pin.window_top = lock_windows(id, Side::kHost);
  if (keeps_states()) change_host_locks(id, states_, +1);
  return pin;
}

// A split has moved the pin's top to the upper piece.
void RadixTree::unpin_host(const HostPin& pin, bool even_without_copy) {
  if (pin.node == kRoot) return;
  if (keeps_states()) change_host_locks(pin.node, states_, -1);
  unlock_windows(pin.node, pin.window_top, Side::kHost);
  if (pin.top == 0) return;
  for (NodeId id = pin.node; id != kRoot; id = nodes_[at(id)].parent) {
    Node& node = nodes_[at(id)];
    if (!node.on_host && !even_without_copy) return;
    --node.host_locks;
    enter(id);
    if (node.pin_top == pin.top) return;
  }
}

void RadixTree::note_duplicate(NodeId id) {
  Node& node = nodes_[at(id)];
  const bool both = node.on_device && node.on_host;
  if (!both || node.writing != kRoot || node.loading != kRoot) return forget_duplicate(id);
  if (node.duplicate != 0) return;
  node.duplicate = ++duplicates_noted_;
  duplicates_.emplace(node.duplicate, id);
}

void RadixTree::forget_duplicate(NodeId id) {
  Node& node = nodes_[at(id)];
  if (node.duplicate != 0) duplicates_.erase(node.duplicate);
  node.duplicate = 0;
}

}  // namespace llmsim
