// States at the ends of a radix tree's nodes, of layers that keep one for a whole prefix (SGLang:
// mem_cache/unified_cache/components/mamba.py).
#include "kv/radix/radix_tree.h"

namespace llmsim {

// Of a matched prefix only the state at its end is used.
void RadixTree::use_state(NodeId id) {
  if (!nodes_[at(id)].state.on_device) return;
  states_.used.remove(id);
  states_.used.add(id);
}

// False where the node has one already. An older node counts as used in either case.
bool RadixTree::take_state(NodeId id, bool is_new) {
  if (!is_new) use(id, tick());
  if (nodes_[at(id)].state.on_device) {
    use_state(id);
    return false;
  }
  add_part(id, states_);
  return true;
}

RadixTree::Freed RadixTree::evict_state() {
  const NodeId id = part_victim(Kind::kStates, {});
  if (id == kRoot) return {};
  if (!device_leaf(id)) return drop_part(Kind::kStates, id);
  const Freed freed = device_parts(id);
  remove(id);
  return freed;
}

}  // namespace llmsim
