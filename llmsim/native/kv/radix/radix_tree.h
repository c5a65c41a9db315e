// A prefix cache as a tree of token runs, whose least recently used leaves go first (L. Zheng et
// al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kv/radix/page_keys.h"
#include "kv/radix/use_order.h"
#include "kv/tiers/key_log.h"

namespace llmsim {

// Holds pages of computed KV by their content. A node is a run of pages behind its parent's; a
// locked node and those above it stay. Slots have no identity here: the owner of the tree counts
// the free ones. A node's pages are on the device, in host memory, or in both (`HostPages`); those
// above a node on the device are there, too. Layers with a window may keep their part of a node
// for a shorter time than the other layers (`keep_windows`), and a node may have the state that its
// prefix ends with, or have lost it (`keep_states`).
class RadixTree {
 public:
  using NodeId = std::int32_t;
  static constexpr NodeId kRoot = 0;

  // The last node on the device and its pages; and the last node anywhere, with the pages between
  // the two that are in host memory. With windows or states, the last nodes whose prefixes end with
  // one, how many pages the other layers hold, and what of windows and states at the last one is in
  // host memory alone.
  struct Match {
    NodeId node;
    std::int32_t pages;
    NodeId last = kRoot;
    std::int32_t last_pages = 0, host_pages = 0;
    std::int32_t held_pages = 0;
    std::int32_t host_window_pages = 0;
    bool host_state = false;
  };
  // What a request hands to the tree: its first `pages` pages. The tree has `own` of them from it
  // already, `inserted` of them count as no hits, and of `window_from` of them layers with a window
  // have given up their part. With states, it gives the one behind the last page.
  struct Handover {
    std::int32_t pages, own = 0, inserted = 0, window_from = 0;
  };
  // The last node of them, and how many pages were there before. Those of them that are not `own`
  // are copies, for which nobody has a use; so are the parts of layers with a window, unless the
  // tree lacked them. Whether it took the state, which it had not.
  struct Taken {
    Match end;
    std::int32_t copies = 0, window_copies = 0;
    bool state = false;
  };
  // Pages that are free again, those of layers with a window, and states.
  struct Freed {
    std::int32_t pages = 0, window_pages = 0, states = 0;
  };
  // What layers with a window, or those that keep states, have of nodes.
  enum class Kind : std::uint8_t { kWindows, kStates };
  // What a copy of a node takes to host memory: its pages, unless they are there, what is not there
  // of the window that it ends with, and its state.
  struct Unwritten {
    std::int32_t pages = 0, window_pages = 0;
    std::vector<NodeId> windows;
    bool state = false;
    bool empty() const { return pages == 0 && windows.empty() && !state; }
  };
  // What is in host memory alone of a prefix that ends with a node, the deepest nodes first.
  struct Missing {
    std::vector<NodeId> nodes, windows;
    std::int32_t pages = 0, window_pages = 0;
    bool state = false;
  };
  // The name of the uppermost node whose window a lock holds; 0: it holds all up to the root.
  using WindowTop = std::int64_t;
  static constexpr WindowTop kNoWindow = -1;  // its windows have been unlocked before it
  // Hears that another request has inserted a node's pages, or begun with them; and that a request
  // has come to a node's end that was there before.
  class Hits {
   public:
    virtual void hit(NodeId node) = 0;
    virtual void inserted(NodeId node) = 0;

   protected:
    ~Hits() = default;
  };
  // A pin of one node's pages in host memory, which follows the node when it is split; of its
  // state, and of the window that it ends with.
  struct HostPin {
    NodeId node = kRoot;
    std::int64_t top = 0;      // name of the pin's uppermost node; 0: no pages are pinned
    WindowTop window_top = 0;  // likewise of its windows; 0: up to the root
  };

  explicit RadixTree(const PageKeys& keys) : keys_(keys) { nodes_.emplace_back(); }

  // The longest cached prefix among a request's first `pages` pages, which counts as used. A node
  // is split where the match ends.
  Match match(RequestId request, std::int32_t pages);
  // Takes over pages of a request. Those that were in host memory alone become the request's.
  Taken insert(RequestId request, const Handover& given);
  // A lock holds a node and all above it, and of windows and states the one that ends with the
  // node.
  WindowTop lock(NodeId node);
  void unlock(NodeId node, WindowTop top);
  // Removes the least recently used leaf; nothing is free where every leaf is locked.
  Freed evict();

  // ---- Layers with a window (radix_tree_windows.cpp).

  // Before anything is inserted: who begins behind a cached prefix needs its last `pages` pages of
  // such layers.
  void keep_windows(std::int32_t pages) { window_pages_ = pages; }
  bool keeps_windows() const { return window_pages_ > 0; }
  // A lock of a node no longer holds windows; its top is `kNoWindow` from then on.
  void unlock_windows(NodeId node, WindowTop top);
  // The least recently used part of such layers that nobody has locked goes: with its node where
  // that is a leaf that nobody has locked, else alone.
  Freed evict_window();
  // Pages of such layers that nobody has locked; and all.
  std::int64_t window_evictable() const { return windows_.evictable; }
  std::int64_t window_held() const { return windows_.held; }

  // ---- States (radix_tree_states.cpp).

  // Before anything is inserted: who begins behind a cached prefix needs the state at its end.
  void keep_states() { keeps_states_ = true; }
  bool keeps_states() const { return keeps_states_; }
  // Of a lock, the state alone.
  void lock_state(NodeId node) { change_locks(node, states_, +1); }
  void unlock_state(NodeId node) { change_locks(node, states_, -1); }
  // The least recently used state that nobody has locked goes: with its node where that is a leaf
  // that nobody has locked, else alone.
  Freed evict_state();
  // States that nobody has locked; and all.
  std::int64_t states_evictable() const { return states_.evictable; }
  std::int64_t states_held() const { return states_.held; }

  // ---- Windows and states (radix_tree_parts.cpp).

  // The least recently used node whose part nobody has locked, of those that are not spared; kRoot
  // where there is none.
  NodeId part_victim(Kind kind, std::span<const NodeId> spared) const;
  // Of a node, this part leaves the device alone.
  Freed drop_part(Kind kind, NodeId node);
  bool part_on_host(Kind kind, NodeId node) const { return part(node, parts(kind)).on_host; }
  // The least recently used parts leave host memory, until it was so much or none can: with their
  // nodes where these are leaves of the host. All that is free there.
  Freed evict_host_parts(Kind kind, std::int32_t amount);
  std::int64_t parts_on_host(Kind kind) const { return parts(kind).host_held; }
  // What a node has on the device; and in host memory.
  Freed device_parts(NodeId node) const;
  Freed host_parts(NodeId node) const;

  // ---- Host memory (radix_tree_host.cpp).

  void report_hits_to(Hits* hits) { hits_ = hits; }
  // The least recently used leaf of those on the device, kRoot where every leaf is locked; and of
  // those in host memory alone. The pages of a leaf on the device have none below them there.
  NodeId device_victim() const { return leaves_.empty() ? kRoot : leaves_.begin()->second; }
  // Likewise, of those that are not spared.
  NodeId device_victim(std::span<const NodeId> spared) const;
  NodeId host_victim() const { return host_leaves_.empty() ? kRoot : host_leaves_.begin()->second; }
  std::int32_t pages_of(NodeId node) const { return nodes_[at(node)].length; }
  NodeId parent_of(NodeId node) const { return nodes_[at(node)].parent; }
  std::int32_t hits_of(NodeId node) const { return nodes_[at(node)].hits; }
  bool on_device(NodeId node) const { return nodes_[at(node)].on_device; }
  bool on_host(NodeId node) const { return nodes_[at(node)].on_host; }
  bool is_device_leaf(NodeId node) const { return device_leaf(node); }
  bool pinned(NodeId node) const {
    const Node& n = nodes_[at(node)];
    return n.locks > 0 || any_host_locks(n);
  }
  bool host_pinned(NodeId node) const { return nodes_[at(node)].host_locks > 0; }
  // The copies under way of its pages to and from host memory, which its pieces inherit; kRoot:
  // none.
  NodeId writing(NodeId node) const { return nodes_[at(node)].writing; }
  NodeId loading(NodeId node) const { return nodes_[at(node)].loading; }
  void set_writing(NodeId node, NodeId copy) { nodes_[at(node)].writing = copy; }
  void set_loading(NodeId node, NodeId copy) { nodes_[at(node)].loading = copy; }

  Unwritten unwritten(NodeId node) const;
  void add_host_copies(NodeId node, const Unwritten& copied);
  Missing missing(NodeId node) const;
  void return_to_device(NodeId node, const Missing& missing);
  // Its pages are in host memory, too; or no longer.
  void add_host_copy(NodeId node);
  void drop_host_copy(NodeId node);
  // Its pages leave the device, or come back to it.
  void leave_device(NodeId node);
  void return_to_device(NodeId node);
  // Removes a node without children. Its pages are nobody's any more.
  void remove(NodeId node);
  // Nodes below this one, the deepest last.
  std::vector<NodeId> below(NodeId node) const;
  // The names of a node's pages.
  std::vector<Key> page_keys(NodeId node) const;
  // Pages of a request from `first` up to `end` have come to host memory, behind those of `anchor`.
  // Pages that are there make copies on the device alone whole, if `fills`; returns how many pages
  // found another copy on the host instead (without `fills`: any copy), which are nobody's.
  std::int32_t graft(NodeId anchor, RequestId request, std::int32_t first, std::int32_t end,
                     bool fills);
  HostPin pin_host(NodeId node, bool even_without_copy);
  void unpin_host(const HostPin& pin, bool even_without_copy);
  // Nodes with pages on both sides, the first to become so first; some may have ceased to be.
  const std::map<std::int64_t, NodeId>& duplicates() const { return duplicates_; }
  // Enters the node among them where it is one and no copy is under way; else takes it out.
  void note_duplicate(NodeId node);
  void forget_duplicate(NodeId node);
  std::int64_t host_held() const { return host_held_; }

  // Walks the tree in depth, the branch with most of these nodes first, and equal branches by age;
  // a node comes behind all below it. Returns the places of `nodes` in that order.
  std::vector<std::size_t> depth_first(std::span<const NodeId> nodes) const;

  // Pages on the device of nodes that nobody has locked; and of all nodes.
  std::int64_t evictable() const { return evictable_; }
  std::int64_t held() const { return held_; }
  // Recounts it from the nodes.
  bool consistent() const;
  void log_keys(KeyLog* log) { log_ = log; }

 private:
  // On the device, and in host memory; how often it is locked there, and names of the uppermost
  // nodes of locks (0: none).
  struct Part {
    bool on_device = false, on_host = false;
    std::int32_t locks = 0, host_locks = 0;
    WindowTop top = 0, host_top = 0;
  };
  struct Node {
    std::vector<Key> keys;  // of its pages that somebody else may have; the others are the owner's
    RequestId owner = 0;
    std::int32_t first = 0, length = 0;  // pages
    NodeId parent = kRoot;
    std::int32_t children = 0, device_children = 0, locks = 0;
    double used = 0;
    std::int64_t branch = 0;  // when its branch was grown
    bool alive = true, on_device = true, on_host = false;
    std::int32_t host_locks = 0, hits = 0;
    std::int64_t pin_top = 0, duplicate = 0;  // names; 0: none
    NodeId writing = kRoot, loading = kRoot;
    Part window, state;
  };
  // Parts of one kind: nodes that have one on the device, by when that was used, and those that
  // have one in host memory alone; and how much nobody has locked, and all.
  struct Parts {
    Part Node::* part;
    bool by_pages;  // a part is as large as its node, else one
    UseOrder used, host_used;
    std::int64_t evictable = 0, held = 0, host_held = 0;
  };
  enum class Side : std::uint8_t { kDevice, kHost };

  Key key_at(const Node& node, std::int32_t page) const;
  std::int32_t common(const Node& node, const PageKeys::Of& keys, std::int32_t pages) const;
  NodeId child(const PageKeys::Of& keys, std::int32_t page) const;
  NodeId create();
  NodeId split(NodeId node, std::int32_t length);
  NodeId grow(NodeId parent, RequestId request, std::int32_t first, std::int32_t end);
  void use(NodeId node, double when);
  double tick() { return clock_++; }
  bool device_leaf(NodeId node) const {
    const Node& n = nodes_[at(node)];
    return node != kRoot && n.on_device && n.locks == 0 && n.device_children == 0;
  }
  bool host_leaf(NodeId node) const {
    const Node& n = nodes_[at(node)];
    return node != kRoot && !n.on_device && n.locks == 0 && n.children == 0 && !any_host_locks(n);
  }
  static bool any_host_locks(const Node& n) {
    return n.host_locks > 0 || n.window.host_locks > 0 || n.state.host_locks > 0;
  }
  void enter(NodeId node) {
    if (device_leaf(node)) leaves_.insert({nodes_[at(node)].used, node});
    if (host_leaf(node)) host_leaves_.insert({nodes_[at(node)].used, node});
  }
  void leave(NodeId node) {
    const Node& n = nodes_[at(node)];
    (n.on_device ? leaves_ : host_leaves_).erase({n.used, node});
  }
  void note_hit(NodeId node);
  // Whether one may begin behind a node: with so many pages of windows in a row up to there, and a
  // state or none.
  bool can_begin(std::int32_t windows, bool state) const {
    return (!keeps_windows() || windows >= window_pages_) && (!keeps_states() || state);
  }
  void find_on_host(Match& found) const;
  // The parts of nodes.
  const Part& part(NodeId node, const Parts& parts) const { return nodes_[at(node)].*parts.part; }
  Part& part(NodeId node, const Parts& parts) { return nodes_[at(node)].*parts.part; }
  const Parts& parts(Kind kind) const { return kind == Kind::kWindows ? windows_ : states_; }
  Parts& parts(Kind kind) { return kind == Kind::kWindows ? windows_ : states_; }
  std::int32_t size(NodeId node, const Parts& parts) const {
    return parts.by_pages ? nodes_[at(node)].length : 1;
  }
  void add_part(NodeId node, Parts& parts);
  void drop_part(NodeId node, Parts& parts);
  void add_part_on_host(NodeId node, Parts& parts);
  void drop_part_on_host(NodeId node, Parts& parts);
  void change_locks(NodeId node, Parts& parts, std::int32_t change);
  void change_host_locks(NodeId node, Parts& parts, std::int32_t change);
  bool parts_consistent(const Parts& parts) const;
  // The windows of nodes.
  WindowTop lock_windows(NodeId node, Side side);
  void unlock_windows(NodeId node, WindowTop top, Side side);
  void use_windows(NodeId node);
  void split_window(NodeId above, NodeId rest);
  void take_windows(NodeId node, std::int32_t start, const Handover& given, Taken& taken);
  void return_windows(NodeId node, std::int32_t start, const Handover& given);
  void begin_windows(NodeId leaf, const Handover& given);
  // The states of nodes.
  void use_state(NodeId node);
  bool take_state(NodeId node, bool is_new);
  static std::size_t at(NodeId node) { return static_cast<std::size_t>(node); }

  const PageKeys& keys_;
  std::vector<Node> nodes_;
  std::vector<NodeId> unused_;
  std::unordered_map<Key, NodeId> by_first_;                  // by the key of a node's first page
  std::set<std::pair<double, NodeId>> leaves_, host_leaves_;  // unlocked, by when they were used
  std::map<std::int64_t, NodeId> duplicates_;
  std::int64_t evictable_ = 0, held_ = 0, host_held_ = 0;
  double clock_ = 1;
  std::int64_t branches_ = 0, pin_tops_ = 0, duplicates_noted_ = 0;
  std::int32_t window_pages_ = 0;  // 0: no layer has a window
  WindowTop window_tops_ = 0;
  bool keeps_states_ = false;
  Parts windows_{.part = &Node::window, .by_pages = true};
  Parts states_{.part = &Node::state, .by_pages = false};
  KeyLog* log_ = nullptr;
  Hits* hits_ = nullptr;
};

}  // namespace llmsim
