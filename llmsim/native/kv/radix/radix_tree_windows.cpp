// The part of a radix tree's nodes that layers with a window keep (SGLang:
// mem_cache/unified_cache/components/swa.py, unified_tree_core.py).
#include <algorithm>
#include <utility>

#include "kv/radix/radix_tree.h"

namespace llmsim {

RadixTree::WindowTop RadixTree::lock_windows(NodeId id, Side side) {
  WindowTop top = 0;
  std::int32_t covered = 0;
  for (; id != kRoot && covered < window_pages_; id = nodes_[at(id)].parent) {
    if (side == Side::kDevice) {
      change_locks(id, windows_, +1);
    } else {
      change_host_locks(id, windows_, +1);
    }
    covered += nodes_[at(id)].length;
    if (covered < window_pages_) continue;
    Part& window = nodes_[at(id)].window;
    WindowTop& name = side == Side::kDevice ? window.top : window.host_top;
    if (name == 0) name = ++window_tops_;
    top = name;
  }
  return top;
}

void RadixTree::unlock_windows(NodeId node, WindowTop top) {
  unlock_windows(node, top, Side::kDevice);
}

void RadixTree::unlock_windows(NodeId id, WindowTop top, Side side) {
  if (!keeps_windows() || top == kNoWindow) return;
  for (; id != kRoot; id = nodes_[at(id)].parent) {
    if (side == Side::kDevice) {
      change_locks(id, windows_, -1);
    } else {
      change_host_locks(id, windows_, -1);
    }
    const Part& window = nodes_[at(id)].window;
    if (top != 0 && (side == Side::kDevice ? window.top : window.host_top) == top) return;
  }
}

// The node is the first of the used ones, and those of its window follow it.
void RadixTree::use_windows(NodeId id) {
  NodeId newer = kRoot;
  std::int32_t covered = 0;
  for (; id != kRoot && covered <= window_pages_; id = nodes_[at(id)].parent) {
    covered += nodes_[at(id)].length;
    if (!nodes_[at(id)].window.on_device) continue;
    windows_.used.remove(id);
    windows_.used.add(id, newer);
    newer = id;
  }
}

// A node is no more used than the rest that was split off; a lock that ended with its upper edge
// ends there still.
void RadixTree::split_window(NodeId above, NodeId rest) {
  Part &head = nodes_[at(above)].window, &tail = nodes_[at(rest)].window;
  head = tail;
  tail.top = tail.host_top = 0;
  if (head.on_device) windows_.used.add(above, rest);
  const bool alone = windows_.host_used.holds(rest) && head.host_locks == 0;
  if (alone) windows_.host_used.add(above, rest);
}

// Pages of a request from `start` on were there before in a node. Where it has lost its window, and
// the request has it still, the node gets the request's.
void RadixTree::take_windows(NodeId id, std::int32_t start, const Handover& given, Taken& taken) {
  const std::int32_t end = start + nodes_[at(id)].length;
  if (given.own >= end) return;
  const std::int32_t live_from = std::max(start, given.window_from);
  std::int32_t taken_from = end;
  if (!nodes_[at(id)].window.on_device && live_from < end) {
    if (live_from > start) split(id, live_from - start);
    add_part(id, windows_);
    taken_from = live_from;
  }
  taken.window_copies += std::max(0, taken_from - std::max(live_from, given.own));
}

// Pages of a request from `start` on came back to the device in a node, with the window that the
// request has of them.
void RadixTree::return_windows(NodeId id, std::int32_t start, const Handover& given) {
  const std::int32_t live_from = std::max(start, given.window_from);
  if (live_from >= start + nodes_[at(id)].length) return;
  if (live_from > start) split(id, live_from - start);
  add_part(id, windows_);
}

// A new leaf has the window that the request has. What is not its last window is a node of its own,
// so that a lock of the leaf holds no more than that.
void RadixTree::begin_windows(NodeId id, const Handover& given) {
  const std::int32_t start = nodes_[at(id)].first;
  const std::int32_t live_from = std::max(start, given.window_from);
  if (live_from >= given.pages) return;
  if (live_from > start) split(id, live_from - start);
  const std::int32_t length = given.pages - live_from;
  if (length > window_pages_) add_part(split(id, length - window_pages_), windows_);
  add_part(id, windows_);
}

RadixTree::Freed RadixTree::evict_window() {
  const NodeId id = part_victim(Kind::kWindows, {});
  if (id == kRoot) return {};
  if (!device_leaf(id)) return drop_part(Kind::kWindows, id);
  const Freed freed = device_parts(id);
  remove(id);
  return freed;
}

}  // namespace llmsim
