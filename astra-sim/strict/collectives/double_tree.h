// The two binary trees of the double-binary-tree all-reduce, and the steps that a member takes in
// one.
#pragma once

#include <cstdint>

namespace astra_sim::strict {

enum class TreeStep : std::uint32_t { kLeafSend, kLeafEnd, kChildrenDone, kParentDone };
// The receiving side of a message: which neighbour it came from.
enum class TreePort : std::uint32_t { kLeft, kRight, kParent };

inline constexpr std::uint32_t kNoNeighbour = 0xffffffff;

struct TreeNode {
  std::uint32_t parent = kNoNeighbour;
  std::uint32_t left = kNoNeighbour;
  std::uint32_t right = kNoNeighbour;
};

// Position in a tree over n = 2^k ranks: n - 1 of them numbered in order in a complete tree, and
// one root above it: the last rank (the tree is its left child), or the first (`root_first`; the
// tree is its right child).
TreeNode double_tree_node(std::uint32_t position, std::uint32_t n, bool root_first);

}  // namespace astra_sim::strict
