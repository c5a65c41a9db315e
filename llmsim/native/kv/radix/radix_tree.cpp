#include "kv/radix/radix_tree.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace llmsim {

namespace {

// How much earlier than a node its parent counts as used by a match.
constexpr double kParentEarlier = 0.00001;

}  // namespace

Key RadixTree::key_at(const Node& node, std::int32_t page) const {
  const std::int32_t offset = page - node.first;
  if (offset < static_cast<std::int32_t>(node.keys.size())) return node.keys[at(offset)];
  return kOwnKey | (static_cast<Key>(node.owner) << 28) | static_cast<Key>(page);
}

// Keys are chained: where two differ, all behind them do.
std::int32_t RadixTree::common(const Node& node, const PageKeys::Of& keys,
                               std::int32_t pages) const {
  std::int32_t equal = 1, most = std::min(node.length, pages - node.first);
  if (key_at(node, node.first + most - 1) == keys[node.first + most - 1]) return most;
  while (most - equal > 1) {
    const std::int32_t middle = equal + (most - equal) / 2;
    if (key_at(node, node.first + middle - 1) == keys[node.first + middle - 1]) {
      equal = middle;
    } else {
      most = middle;
    }
  }
  return equal;
}

RadixTree::NodeId RadixTree::child(const PageKeys::Of& keys, std::int32_t page) const {
  const auto found = by_first_.find(keys[page]);
  return found == by_first_.end() ? kRoot : found->second;
}

RadixTree::NodeId RadixTree::create() {
  NodeId id = static_cast<NodeId>(nodes_.size());
  if (unused_.empty()) {
    nodes_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
    nodes_[at(id)] = Node{};
  }
  nodes_[at(id)].used = tick();
  tick();  // the time of its creation, which other orders of eviction read
  return id;
}

void RadixTree::use(NodeId node, double when) {
  const bool listed = device_leaf(node) || host_leaf(node);
  if (listed) leave(node);
  nodes_[at(node)].used = when;
  if (listed) enter(node);
}

// The first part becomes a node of its own above the rest, which keeps its id.
RadixTree::NodeId RadixTree::split(NodeId id, std::int32_t length) {
  const NodeId above = create();
  leave(id);
  Node& rest = nodes_[at(id)];
  Node& head = nodes_[at(above)];
  const auto cut = std::min<std::ptrdiff_t>(length, std::ssize(rest.keys));
  head.keys.assign(rest.keys.begin(), rest.keys.begin() + cut);
  rest.keys.erase(rest.keys.begin(), rest.keys.begin() + cut);
  head.owner = rest.owner;
  head.first = rest.first;
  head.length = length;
  head.parent = rest.parent;
  head.branch = rest.branch;
  head.children = 1;
  head.device_children = rest.on_device ? 1 : 0;
  head.locks = rest.locks;
  head.on_device = rest.on_device;
  head.on_host = rest.on_host;
  head.host_locks = rest.host_locks;
  head.hits = rest.hits;
  head.pin_top = std::exchange(rest.pin_top, 0);
  head.writing = rest.writing;
  head.loading = rest.loading;
  rest.parent = above;
  rest.first += length;
  rest.length -= length;
  by_first_[key_at(head, head.first)] = above;
  by_first_[key_at(rest, rest.first)] = id;
  rest.used = tick();
  split_window(above, id);
  enter(id);
  note_duplicate(above);
  return above;
}

// A node of a request's pages behind another node, whose leaves nobody has entered yet.
RadixTree::NodeId RadixTree::grow(NodeId parent, RequestId request, std::int32_t first,
                                  std::int32_t end) {
  const PageKeys::Of keys = keys_.of(request);
  const NodeId id = create();
  leave(parent);
  Node& node = nodes_[at(id)];
  node.owner = request;
  node.first = first;
  node.length = end - first;
  node.parent = parent;
  node.branch = branches_++;
  const std::int32_t shareable = std::min(end, keys.shareable());
  for (std::int32_t page = first; page < shareable; ++page) {
    node.keys.push_back(keys[page]);
    if (log_ != nullptr) log_->added(keys[page]);
  }
  by_first_[key_at(node, first)] = id;
  ++nodes_[at(parent)].children;
  return id;
}

RadixTree::Match RadixTree::match(RequestId request, std::int32_t pages) {
  if (pages <= 0) return {kRoot, 0};
  const PageKeys::Of keys = keys_.of(request);
  Match found{kRoot, 0};
  std::int32_t reached = 0;
  std::int32_t here = window_pages_, anywhere = window_pages_;  // of windows, in a row up to there
  while (reached < pages) {
    NodeId next = child(keys, reached);
    if (next == kRoot) break;
    const std::int32_t equal = common(nodes_[at(next)], keys, pages);
    const bool whole = equal == nodes_[at(next)].length;
    if (!whole) next = split(next, equal);
    reached += equal;
    const Node& node = nodes_[at(next)];
    here = node.window.on_device ? here + equal : 0;
    anywhere = node.window.on_device || node.window.on_host ? anywhere + equal : 0;
    if (can_begin(anywhere, node.state.on_device || node.state.on_host)) {
      found.last = next;
      found.last_pages = reached;
    }
    if (node.on_device && can_begin(here, node.state.on_device)) {
      found.node = next;
      found.pages = reached;
    }
    if (!whole) break;
  }
  found.held_pages = reached;
  find_on_host(found);
  if (keeps_windows()) use_windows(found.last);
  if (keeps_states()) use_state(found.last);
  double when = tick();
  for (NodeId node = found.last; node != kRoot; node = nodes_[at(node)].parent) {
    use(node, when);
    when -= kParentEarlier;
  }
  return found;
}

// Pages that another request has inserted, or found there.
void RadixTree::note_hit(NodeId node) {
  ++nodes_[at(node)].hits;
  if (hits_ != nullptr) hits_->hit(node);
}

RadixTree::Taken RadixTree::insert(RequestId request, const Handover& given) {
  tick();  // the root
  Taken taken{.end = {kRoot, 0}};
  const PageKeys::Of keys = keys_.of(request);
  Match& found = taken.end;
  while (found.pages < given.pages) {
    NodeId next = child(keys, found.pages);
    if (next == kRoot) break;
    use(next, tick());
    const std::int32_t equal = common(nodes_[at(next)], keys, given.pages);
    if (equal < nodes_[at(next)].length) next = split(next, equal);
    const std::int32_t end = found.pages + equal;
    if (nodes_[at(next)].on_device) {
      taken.copies += std::max(0, end - std::max(given.own, found.pages));
      if (keeps_windows()) take_windows(next, found.pages, given, taken);
    } else {
      return_to_device(next);
      note_duplicate(next);
      if (keeps_windows()) return_windows(next, found.pages, given);
    }
    if (end > given.inserted) note_hit(next);
    found = {next, end};
  }
  const bool grows = found.pages < given.pages;
  if (grows) {
    const NodeId id = grow(found.node, request, found.pages, given.pages);
    const Node& node = nodes_[at(id)];
    ++nodes_[at(found.node)].device_children;
    evictable_ += node.length;
    held_ += node.length;
    enter(id);
    found.node = id;
    if (keeps_windows()) begin_windows(id, given);
  }
  if (keeps_windows()) use_windows(found.node);
  if (keeps_states() && found.node != kRoot) taken.state = take_state(found.node, grows);
  if (!grows && found.node != kRoot && hits_ != nullptr) hits_->inserted(found.node);
  if (grows && given.pages > given.inserted) note_hit(found.node);
  return taken;
}

std::vector<std::size_t> RadixTree::depth_first(std::span<const NodeId> nodes) const {
  std::unordered_map<NodeId, std::int64_t> weight;
  std::unordered_map<NodeId, std::vector<NodeId>> below;
  std::unordered_map<NodeId, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    places[nodes[i]].push_back(i);
    for (NodeId node = nodes[i]; node != kRoot; node = nodes_[at(node)].parent)
      if (++weight[node] == 1) below[nodes_[at(node)].parent].push_back(node);
  }
  std::vector<std::size_t> order;
  std::vector<std::pair<NodeId, bool>> stack{{kRoot, false}};
  while (!stack.empty()) {
    const auto [node, visited] = stack.back();
    stack.pop_back();
    if (visited) {
      const std::vector<std::size_t>& here = places[node];
      order.insert(order.end(), here.begin(), here.end());
      continue;
    }
    stack.emplace_back(node, true);
    std::vector<NodeId>& children = below[node];
    std::ranges::sort(children, std::greater<>(), [&](NodeId child) {
      return std::pair(weight[child], -nodes_[at(child)].branch);
    });
    for (std::size_t i = children.size(); i-- > 0;) stack.emplace_back(children[i], false);
  }
  return order;
}

RadixTree::WindowTop RadixTree::lock(NodeId node) {
  const WindowTop top = keeps_windows() ? lock_windows(node, Side::kDevice) : 0;
  if (keeps_states()) lock_state(node);
  for (; node != kRoot; node = nodes_[at(node)].parent) {
    leave(node);
    Node& n = nodes_[at(node)];
    if (n.locks++ == 0 && n.on_device) evictable_ -= n.length;
  }
  return top;
}

void RadixTree::unlock(NodeId node, WindowTop top) {
  unlock_windows(node, top);
  if (keeps_states()) unlock_state(node);
  for (; node != kRoot; node = nodes_[at(node)].parent) {
    Node& n = nodes_[at(node)];
    if (--n.locks > 0) continue;
    if (n.on_device) evictable_ += n.length;
    enter(node);
  }
}

RadixTree::Freed RadixTree::evict() {
  const NodeId id = device_victim();
  if (id == kRoot) return {};
  const Freed freed = device_parts(id);
  remove(id);
  return freed;
}

void RadixTree::remove(NodeId id) {
  leave(id);
  forget_duplicate(id);
  for (Parts* parts : {&windows_, &states_}) {
    drop_part_on_host(id, *parts);
    drop_part(id, *parts);
  }
  Node& node = nodes_[at(id)];
  by_first_.erase(key_at(node, node.first));
  if (log_ != nullptr)
    for (const Key key : node.keys) log_->removed(key);
  Node& parent = nodes_[at(node.parent)];
  if (node.on_device) {
    evictable_ -= node.length;
    held_ -= node.length;
    --parent.device_children;
  }
  if (node.on_host) host_held_ -= node.length;
  --parent.children;
  enter(node.parent);
  node.alive = false;
  unused_.push_back(id);
}

bool RadixTree::consistent() const {
  std::int64_t evictable = 0, held = 0, host = 0;
  std::size_t leaves = 0, host_leaves = 0;
  for (NodeId id = 1; id < std::ssize(nodes_); ++id) {
    const Node& node = nodes_[at(id)];
    if (!node.alive) continue;
    const Node& parent = nodes_[at(node.parent)];
    if (node.on_device) held += node.length;
    if (node.on_host) host += node.length;
    if (node.on_device && node.locks == 0) evictable += node.length;
    if (node.window.locks > node.locks || node.state.locks > node.locks) return false;
    if (!node.on_device && (node.window.on_device || node.state.on_device)) return false;
    if (node.parent != kRoot && node.locks > parent.locks) return false;
    if (node.parent != kRoot && node.on_device && !parent.on_device) return false;
    if (!node.on_device && !node.on_host) return false;
    leaves += device_leaf(id);
    host_leaves += host_leaf(id);
  }
  return evictable == evictable_ && held == held_ && host == host_held_ &&
         parts_consistent(windows_) && parts_consistent(states_) && leaves == leaves_.size() &&
         host_leaves == host_leaves_.size();
}

}  // namespace llmsim
