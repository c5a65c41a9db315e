// Nodes of a radix tree in the order in which a part of them was last used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llmsim {

// A ring of nodes through the root, which is never in it itself.
class UseOrder {
 public:
  using NodeId = std::int32_t;
  static constexpr NodeId kRoot = 0;

  // Right behind a newer node, or as the newest one.
  void add(NodeId node, NodeId newer = kRoot) {
    if (at(node) >= links_.size()) links_.resize(at(node) + 1);
    const NodeId older = links_[at(newer)].older;
    links_[at(node)] = {newer, older};
    links_[at(newer)].older = links_[at(older)].newer = node;
  }
  void remove(NodeId node) {
    const auto [newer, older] = links_[at(node)];
    links_[at(newer)].older = older;
    links_[at(older)].newer = newer;
    links_[at(node)] = {kNone, kNone};
  }
  bool holds(NodeId node) const {
    return at(node) < links_.size() && node != kRoot && links_[at(node)].newer != kNone;
  }
  // kRoot where there is none.
  NodeId oldest() const { return links_[kRoot].newer; }
  NodeId newer_than(NodeId node) const { return links_[at(node)].newer; }

 private:
  static constexpr NodeId kNone = -1;
  struct Links {
    NodeId newer = kNone, older = kNone;
  };
  static std::size_t at(NodeId node) { return static_cast<std::size_t>(node); }

  std::vector<Links> links_ = std::vector<Links>{{kRoot, kRoot}};
};

}  // namespace llmsim
