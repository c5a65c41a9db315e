// States at the ends of a radix tree's nodes, of layers that keep one for a whole prefix (SGLang:
// mem_cache/unified_cache/components/mamba.py).
#include "kv/radix/radix_tree.h"

namespace llmsim {

void RadixTree::change_state_locks(NodeId id, std::int32_t change) {
  if (id == kRoot) return;
  Node& node = nodes_[at(id)];
  if (node.has_state && node.state_locks == 0) --states_evictable_;
  node.state_locks += change;
  if (node.has_state && node.state_locks == 0) ++states_evictable_;
}

// Of a matched prefix only the state at its end is used.
void RadixTree::use_state(NodeId id) {
  if (!nodes_[at(id)].has_state) return;
  states_.remove(id);
  states_.add(id);
}

// False where the node has one already. An older node counts as used in either case.
bool RadixTree::take_state(NodeId id, bool is_new) {
  if (!is_new) use(id, tick());
  if (nodes_[at(id)].has_state) {
    use_state(id);
    return false;
  }
  nodes_[at(id)].has_state = true;
  states_.add(id);
  ++states_held_;
  if (nodes_[at(id)].state_locks == 0) ++states_evictable_;
  return true;
}

void RadixTree::drop_state(NodeId id) {
  Node& node = nodes_[at(id)];
  if (!node.has_state) return;
  states_.remove(id);
  node.has_state = false;
  --states_held_;
  if (node.state_locks == 0) --states_evictable_;
}

RadixTree::Freed RadixTree::evict_state() {
  NodeId id = states_.oldest();
  while (id != kRoot && nodes_[at(id)].state_locks > 0) id = states_.newer_than(id);
  if (id == kRoot) return {};
  if (device_leaf(id)) {
    const std::int32_t pages = nodes_[at(id)].length;
    remove(id);
    return {.pages = pages, .states = 1};
  }
  drop_state(id);
  return {.states = 1};
}

}  // namespace llmsim
