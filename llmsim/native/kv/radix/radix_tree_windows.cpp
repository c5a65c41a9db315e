// The part of a radix tree's nodes that layers with a window keep (SGLang:
// mem_cache/unified_cache/components/swa.py, unified_tree_core.py).
#include <algorithm>
#include <utility>

#include "kv/radix/radix_tree.h"

namespace llmsim {

RadixTree::WindowTop RadixTree::lock_windows(NodeId id) {
  WindowTop top = 0;
  std::int32_t covered = 0;
  for (; id != kRoot && covered < window_pages_; id = nodes_[at(id)].parent) {
    Node& node = nodes_[at(id)];
    if (node.window_locks++ == 0 && node.has_window) window_evictable_ -= node.length;
    covered += node.length;
    if (covered < window_pages_) continue;
    if (node.window_top == 0) node.window_top = ++window_tops_;
    top = node.window_top;
  }
  return top;
}

void RadixTree::unlock_windows(NodeId id, WindowTop top) {
  if (!keeps_windows() || top == kNoWindow) return;
  for (; id != kRoot; id = nodes_[at(id)].parent) {
    Node& node = nodes_[at(id)];
    if (--node.window_locks == 0 && node.has_window) window_evictable_ += node.length;
    if (top != 0 && node.window_top == top) return;
  }
}

// The node is the first of the used ones, and those of its window follow it.
void RadixTree::use_windows(NodeId id) {
  NodeId newer = kRoot;
  std::int32_t covered = 0;
  for (; id != kRoot && covered <= window_pages_; id = nodes_[at(id)].parent) {
    covered += nodes_[at(id)].length;
    if (!nodes_[at(id)].has_window) continue;
    windows_.remove(id);
    windows_.add(id, newer);
    newer = id;
  }
}

void RadixTree::add_window(NodeId id) {
  Node& node = nodes_[at(id)];
  node.has_window = true;
  window_held_ += node.length;
  if (node.window_locks == 0) window_evictable_ += node.length;
  windows_.add(id);
}

void RadixTree::drop_window(NodeId id) {
  Node& node = nodes_[at(id)];
  if (!node.has_window) return;
  windows_.remove(id);
  node.has_window = false;
  window_held_ -= node.length;
  if (node.window_locks == 0) window_evictable_ -= node.length;
}

// A node is no more used than the rest that was split off; a lock that ended with its upper edge
// ends there still.
void RadixTree::split_window(NodeId above, NodeId rest) {
  Node &head = nodes_[at(above)], &tail = nodes_[at(rest)];
  head.window_locks = tail.window_locks;
  head.window_top = std::exchange(tail.window_top, 0);
  head.has_window = tail.has_window;
  if (head.has_window) windows_.add(above, rest);
}

// Pages of a request from `start` on were there before in a node. Where it has lost its window, and
// the request has it still, the node gets the request's.
void RadixTree::take_windows(NodeId id, std::int32_t start, const Handover& given, Taken& taken) {
  const std::int32_t end = start + nodes_[at(id)].length;
  if (given.own >= end) return;
  const std::int32_t live_from = std::max(start, given.window_from);
  std::int32_t taken_from = end;
  if (!nodes_[at(id)].has_window && live_from < end) {
    if (live_from > start) split(id, live_from - start);
    add_window(id);
    taken_from = live_from;
  }
  taken.window_copies += std::max(0, taken_from - std::max(live_from, given.own));
}

// A new leaf has the window that the request has. What is not its last window is a node of its own,
// so that a lock of the leaf holds no more than that.
void RadixTree::begin_windows(NodeId id, const Handover& given) {
  const std::int32_t start = nodes_[at(id)].first;
  const std::int32_t live_from = std::max(start, given.window_from);
  if (live_from >= given.pages) return;
  if (live_from > start) split(id, live_from - start);
  const std::int32_t length = given.pages - live_from;
  if (length > window_pages_) add_window(split(id, length - window_pages_));
  add_window(id);
}

RadixTree::Freed RadixTree::evict_window() {
  NodeId id = windows_.oldest();
  while (id != kRoot && nodes_[at(id)].window_locks > 0) id = windows_.newer_than(id);
  if (id == kRoot) return {};
  const std::int32_t pages = nodes_[at(id)].length;
  if (device_leaf(id)) {
    const std::int32_t states = nodes_[at(id)].has_state ? 1 : 0;
    remove(id);
    return {pages, pages, states};
  }
  drop_window(id);
  return {0, pages};
}

}  // namespace llmsim
