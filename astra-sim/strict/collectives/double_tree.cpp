#include "strict/collectives/double_tree.h"

#include <bit>

#include "strict/collectives/collectives.h"

namespace astra_sim::strict {

TreeNode double_tree_node(std::uint32_t position, std::uint32_t n, bool root_first) {
  const std::uint32_t shift =
      root_first ? 0 : 1;  // in-order numbers 1 .. n - 1 make the bit pattern of the tree plain
  const std::uint32_t top = n / 2 - shift;
  TreeNode node;
  if (position == (root_first ? 0 : n - 1)) {
    (root_first ? node.right : node.left) = top;
    return node;
  }
  const std::uint32_t number = position + shift;
  const std::uint32_t low = number & -number;  // the height: a leaf has 1
  if (low > 1) {
    node.left = number - low / 2 - shift;
    node.right = number + low / 2 - shift;
  }
  const bool is_top = low == n / 2;
  // The parent of a node at height `low` is the multiple of 2 * low beside it that is an odd
  // multiple.
  const std::uint32_t up = (number & (2 * low)) != 0 ? number - low : number + low;
  node.parent = is_top ? (root_first ? 0 : n - 1) : up - shift;
  return node;
}

TreeNode Collectives::tree_node(const Member& member) const {
  const Instance& instance = instances_[member.instance];
  return double_tree_node(member.position, instance.size, instance.smaller_tree);
}

void Collectives::begin_tree(std::uint32_t at) {
  const Member& member = members_[at];
  const TreeNode node = tree_node(member);
  if (node.left == kNoNeighbour && node.right == kNoNeighbour) {
    clock_.local(member.npu, instances_[member.instance].delay_ns,
                 {EventKind::kTree, at, static_cast<std::uint32_t>(TreeStep::kLeafSend)});
    return;
  }
  if (node.left != kNoNeighbour) tree_post(at, node.left, TreePort::kLeft);
  if (node.right != kNoNeighbour) tree_post(at, node.right, TreePort::kRight);
}

void Collectives::tree_post(std::uint32_t at, std::uint32_t position, TreePort port) {
  const Instance& instance = instances_[members_[at].instance];
  const std::uint32_t channel =
      instance.first_channel + 3 * members_[at].position + static_cast<std::uint32_t>(port);
  post(at, instance.first_member + position, channel);
}

// `port`: where the receiver sees this member.
void Collectives::tree_send(std::uint32_t at, std::uint32_t position, TreePort port) {
  const Instance& instance = instances_[members_[at].instance];
  const std::uint32_t channel =
      instance.first_channel + 3 * position + static_cast<std::uint32_t>(port);
  send(at, instance.first_member + position, channel, instance.chunk_bytes);
}

// Messages come up as often as there are children, then one comes down.
void Collectives::tree_arrival(std::uint32_t at, std::uint32_t) {
  Member& member = members_[at];
  const Instance& instance = instances_[member.instance];
  const TreeNode node = tree_node(member);
  const int children = (node.left != kNoNeighbour ? 1 : 0) + (node.right != kNoNeighbour ? 1 : 0);
  const bool from_child = member.received++ < children;
  if (children == 0) {
    clock_.local(member.npu, instance.delay_ns,
                 {EventKind::kTree, at, static_cast<std::uint32_t>(TreeStep::kLeafEnd)});
  } else {
    const TreeStep step = from_child ? TreeStep::kChildrenDone : TreeStep::kParentDone;
    clock_.local(member.npu, instance.delay_ns,
                 {EventKind::kTreeReduce, at, static_cast<std::uint32_t>(step)});
  }
}

void Collectives::tree_reduce(std::uint32_t at, TreeStep step) {
  const Member& member = members_[at];
  clock_.local(member.npu, reduction_ns(instances_[member.instance].chunk_bytes),
               {EventKind::kTree, at, static_cast<std::uint32_t>(step)});
}

void Collectives::tree(std::uint32_t at, TreeStep step) {
  Member& member = members_[at];
  const TreeNode node = tree_node(member);
  const auto up = [&] {
    const TreeNode parent = double_tree_node(node.parent, instances_[member.instance].size,
                                             instances_[member.instance].smaller_tree);
    tree_send(at, node.parent, parent.left == member.position ? TreePort::kLeft : TreePort::kRight);
    tree_post(at, node.parent, TreePort::kParent);
  };
  switch (step) {
    case TreeStep::kLeafSend:
      up();
      return;
    case TreeStep::kLeafEnd:
      finish_phase(at);
      return;
    case TreeStep::kChildrenDone: {
      const bool both = node.left != kNoNeighbour && node.right != kNoNeighbour;
      if (++member.credits < (both ? 2 : 1)) return;
      if (node.parent != kNoNeighbour) {
        up();
        return;
      }
      break;  // the root turns round
    }
    case TreeStep::kParentDone:
      break;
  }
  if (node.left != kNoNeighbour) tree_send(at, node.left, TreePort::kParent);
  if (node.right != kNoNeighbour) tree_send(at, node.right, TreePort::kParent);
  finish_phase(at);
}

}  // namespace astra_sim::strict
