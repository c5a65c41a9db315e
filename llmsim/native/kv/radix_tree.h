// A prefix cache as a tree of token runs, whose least recently used leaves go first (L. Zheng et
// al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024).
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kv/key_log.h"
#include "kv/page_keys.h"

namespace llmsim {

// Holds pages of computed KV by their content. A node is a run of pages behind its parent's; a
// locked node and those above it stay. Slots have no identity here: the owner of the tree counts
// the free ones.
class RadixTree {
 public:
  using NodeId = std::int32_t;
  static constexpr NodeId kRoot = 0;

  struct Match {
    NodeId node;
    std::int32_t pages;
  };

  explicit RadixTree(const PageKeys& keys) : keys_(keys) { nodes_.emplace_back(); }

  // The longest cached prefix among a request's first `pages` pages, which counts as used. A node
  // is split where the match ends.
  Match match(RequestId request, std::int32_t pages);
  // Takes over a request's first `pages` pages; the match is their last node, with how many of
  // them were there before. Pages from `own` on that were there before are the request's copies,
  // for which nobody has a use: their number is returned in `copies`.
  Match insert(RequestId request, std::int32_t pages, std::int32_t own, std::int32_t& copies);
  void lock(NodeId node);
  void unlock(NodeId node);
  // Removes the least recently used leaf; returns its pages, 0 where every leaf is locked.
  std::int32_t evict();

  // Walks the tree in depth, the branch with most of these nodes first, and equal branches by age;
  // a node comes behind all below it. Returns the places of `nodes` in that order.
  std::vector<std::size_t> depth_first(std::span<const NodeId> nodes) const;

  // Pages of nodes that nobody has locked.
  std::int64_t evictable() const { return evictable_; }
  std::int64_t held() const { return held_; }
  // Recounts it from the nodes.
  bool consistent() const;
  void log_keys(KeyLog* log) { log_ = log; }

 private:
  struct Node {
    std::vector<Key> keys;  // of its pages that somebody else may have; the others are the owner's
    RequestId owner = 0;
    std::int32_t first = 0, length = 0;  // pages
    NodeId parent = kRoot;
    std::int32_t children = 0, locks = 0;
    double used = 0;
    std::int64_t branch = 0;  // when its branch was grown
    bool alive = true;
  };

  Key key_at(const Node& node, std::int32_t page) const;
  std::int32_t common(const Node& node, const PageKeys::Of& keys, std::int32_t pages) const;
  NodeId child(const PageKeys::Of& keys, std::int32_t page) const;
  NodeId create();
  NodeId split(NodeId node, std::int32_t length);
  void use(NodeId node, double when);
  double tick() { return clock_++; }
  bool leaf(NodeId node) const {
    const Node& n = nodes_[at(node)];
    return node != kRoot && n.locks == 0 && n.children == 0;
  }
  void enter(NodeId node) {
    if (leaf(node)) leaves_.insert({nodes_[at(node)].used, node});
  }
  void leave(NodeId node) { leaves_.erase({nodes_[at(node)].used, node}); }
  static std::size_t at(NodeId node) { return static_cast<std::size_t>(node); }

  const PageKeys& keys_;
  std::vector<Node> nodes_;
  std::vector<NodeId> unused_;
  std::unordered_map<Key, NodeId> by_first_;    // by the key of a node's first page
  std::set<std::pair<double, NodeId>> leaves_;  // unlocked, by when they were used
  std::int64_t evictable_ = 0, held_ = 0;
  double clock_ = 1;
  std::int64_t branches_ = 0;
  KeyLog* log_ = nullptr;
};

}  // namespace llmsim
