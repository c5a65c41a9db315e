#include "scheduler/impl/sglang/hicache/host_cache.h"

#include <limits>
#include <stdexcept>
#include <utility>

namespace llmsim {

namespace {

constexpr std::int32_t kHitsOfSelective = 2;

}  // namespace

SglangHostCache::SglangHostCache(const HostCacheConfig& config, std::int32_t page_size,
                                 RadixTree& tree, MakeRoom make_room, HostCacheCounters& counters)
    : config_(config),
      page_size_(page_size),
      tree_(tree),
      make_room_(std::move(make_room)),
      pages_{config.pages, config.pages},
      windows_{config.window_pages, config.window_pages},
      states_{config.states, config.states},
      writes_(config.copy_latency,
              {config.write_ps_per_token * page_size, config.write_ps_per_window_token * page_size,
               config.write_ps_per_state}),
      loads_(config.copy_latency,
             {config.load_ps_per_token * page_size, config.load_ps_per_window_token * page_size,
              config.load_ps_per_state}),
      counters_(counters) {
  if (config.layers < 1) throw std::invalid_argument("a host cache has at least one layer");
  tree_.report_hits_to(this);
  if (!config.storage.on()) return;
  const auto evict = [this](std::int32_t pages) { evict_host(pages); };
  storage_ = std::make_unique<SglangStorage>(config.storage, page_size, back(), tree, pages_, evict,
                                             counters);
}

void SglangHostCache::begin_pass(Ps now) {
  now_ = now;
  if (storage_) storage_->begin_pass(now);
}

void SglangHostCache::poll(Ps now) {
  flush(now);
  std::size_t loads = 0;  // as of before the writes end
  while (loads < loading_.size() && loading_[loads].end <= now) ++loads;
  for (; !writing_.empty() && writing_.front().end <= now; writing_.pop_front())
    end_writes(writing_.front());
  for (; loads > 0; --loads) {
    for (const Load& load : loading_.front().loads) end_load(load);
    loading_.pop_front();
  }
  if (storage_) storage_->drain();
}

void SglangHostCache::flush(Ps now) {
  now_ = now;
  if (asked_writes_.empty()) return;
  const Ps end = writes_.copy(earliest());
  writing_.push_back({end, std::exchange(asked_writes_, {})});
}

HostLoad SglangHostCache::start_loads() {
  if (asked_loads_.empty()) return {};
  const Ps end = loads_.copy(earliest());
  loading_.push_back({end, std::exchange(asked_loads_, {})});
  return {loads_.begins(), end, config_.layers};
}

Ps SglangHostCache::next_copy() const {
  Ps next = std::numeric_limits<Ps>::max();
  if (!writing_.empty()) next = std::min(next, writing_.front().end);
  if (!loading_.empty()) next = std::min(next, loading_.front().end);
  if (storage_) next = std::min(next, storage_->next(now_));
  return next;
}

void SglangHostCache::hit(NodeId node) {
  if (back() || tree_.on_host(node)) return;
  const std::int32_t hits = config_.write == HostCacheWrite::kThrough ? 1 : kHitsOfSelective;
  if (tree_.hits_of(node) >= hits) write_with_ancestors(node);
}

// What a node on both sides has got on the device since its pages were copied is copied, too.
void SglangHostCache::inserted(NodeId node) {
  if (back() || !tree_.on_host(node) || tree_.writing(node) != RadixTree::kRoot) return;
  write(node);
}

// Those above go first, and none where one of them finds no room.
void SglangHostCache::write_with_ancestors(NodeId node) {
  std::vector<NodeId> chain;
  for (; node != RadixTree::kRoot && !tree_.on_host(node); node = tree_.parent_of(node))
    chain.push_back(node);
  for (std::size_t i = chain.size(); i-- > 0;)
    if (!write(chain[i])) return;
}

bool SglangHostCache::take_host(Kind kind, HostPages& pool, std::int32_t amount) {
  if (pool.free < amount) evict_host(tree_.evict_host_parts(kind, amount));
  if (pool.free < amount) return false;
  pool.free -= amount;
  return true;
}

bool SglangHostCache::take_host(const RadixTree::Unwritten& copied) {
  const std::int32_t states = copied.state ? 1 : 0;
  if (pages_.free < copied.pages) {
    const auto missing = static_cast<std::int32_t>(copied.pages - pages_.free);
    if (evict_host(missing) < missing) return false;
  }
  pages_.free -= copied.pages;
  if (take_host(Kind::kStates, states_, states)) {
    if (take_host(Kind::kWindows, windows_, copied.window_pages)) return true;
    states_.free += states;
  }
  pages_.free += copied.pages;
  return false;
}

void SglangHostCache::free_host(const RadixTree::Freed& parts) {
  pages_.free += parts.pages;
  windows_.free += parts.window_pages;
  states_.free += parts.states;
}

void SglangHostCache::evict_host(const RadixTree::Freed& parts) {
  free_host(parts);
  counters_.evicted += std::int64_t{parts.pages} * page_size_;
}

bool SglangHostCache::write(NodeId node) {
  const RadixTree::Unwritten copied = tree_.unwritten(node);
  if (copied.empty()) return true;
  if (!take_host(copied)) return false;
  tree_.add_host_copies(node, copied);
  asked_writes_.push_back({node, back() ? 0 : tree_.lock(node)});
  tree_.set_writing(node, node);
  for (const NodeId one : copied.windows) tree_.set_writing(one, node);
  writes_.ask({copied.pages, copied.window_pages, copied.state ? 1 : 0});
  counters_.written += std::int64_t{copied.pages} * page_size_;
  return true;
}

// A node that was split meanwhile ends in pieces, the upper ones first.
void SglangHostCache::end_writes(const Writes& writes) {
  for (const auto& [node, top] : writes.writes) {
    std::vector<NodeId> pieces;
    for (NodeId piece = node; piece != RadixTree::kRoot; piece = tree_.parent_of(piece))
      if (tree_.writing(piece) == node) pieces.push_back(piece);
    for (std::size_t i = pieces.size(); i-- > 0;) {
      tree_.set_writing(pieces[i], RadixTree::kRoot);
      tree_.note_duplicate(pieces[i]);
    }
    if (!back()) tree_.unlock(node, top);
    for (std::size_t i = pieces.size(); storage_ && i-- > 0;)
      storage_->write(pieces[i], std::max(now_, blocked_));
  }
}

void SglangHostCache::end_load(const Load& load) {
  tree_.unlock(load.node, load.top);
  unpin(load.pin);
  for (NodeId node = load.node; node != RadixTree::kRoot; node = tree_.parent_of(node)) {
    if (back() && tree_.loading(node) != load.node) continue;
    tree_.set_loading(node, RadixTree::kRoot);
    tree_.note_duplicate(node);
  }
}

RadixTree::Freed SglangHostCache::evict() {
  while (true) {
    const NodeId node = tree_.device_victim(declined_);
    if (node == RadixTree::kRoot) return {};
    const RadixTree::Freed freed = evict_leaf(node);
    if (freed.pages > 0) return freed;
    declined_.push_back(node);
  }
}

RadixTree::Freed SglangHostCache::evict_leaf(NodeId node) {
  const RadixTree::Freed freed = tree_.device_parts(node);
  if (tree_.on_host(node) || (back() && write_and_wait(node))) {
    tree_.leave_device(node);
    return freed;
  }
  if (back()) return drop(node) ? freed : RadixTree::Freed{};
  counters_.dropped += std::int64_t{freed.pages} * page_size_;
  free_host(tree_.host_parts(node));
  tree_.remove(node);
  return freed;
}

RadixTree::Freed SglangHostCache::evict_part(Kind kind) {
  while (true) {
    const NodeId node = tree_.part_victim(kind, declined_);
    if (node == RadixTree::kRoot) return {};
    if (tree_.is_device_leaf(node)) {
      const RadixTree::Freed freed = evict_leaf(node);
      if (freed.pages > 0) return freed;
    } else if (!back() || back_up(kind, node)) {
      return tree_.drop_part(kind, node);
    }
    declined_.push_back(node);
  }
}

// It leaves also without a copy, but a state stays while its node is being loaded.
bool SglangHostCache::back_up(Kind kind, NodeId node) {
  if (tree_.part_on_host(kind, node) || tree_.on_host(node)) return true;
  const RadixTree::Unwritten copied = tree_.unwritten(node);
  const bool windows = kind == Kind::kWindows;
  const std::int32_t amount = windows ? copied.window_pages : 1;
  if ((windows ? windows_ : states_).free < amount)
    evict_host(tree_.evict_host_parts(kind, amount));
  write_and_wait(node);
  return windows || tree_.loading(node) == RadixTree::kRoot;
}

bool SglangHostCache::write_and_wait(NodeId node) {
  if (!write(node)) return false;
  const Ps end = writes_.copy(earliest());
  blocked_ = std::max(blocked_, end);
  end_writes({end, std::exchange(asked_writes_, {})});
  return true;
}

bool SglangHostCache::drop(NodeId node) {
  const std::vector<NodeId> below = tree_.below(node);
  const auto in_use = [this](NodeId one) {
    return tree_.pinned(one) || tree_.writing(one) != RadixTree::kRoot ||
           tree_.loading(one) != RadixTree::kRoot;
  };
  if (in_use(node) || std::ranges::any_of(below, in_use)) return false;
  for (std::size_t i = below.size(); i-- > 0;) {
    free_host(tree_.host_parts(below[i]));
    tree_.remove(below[i]);
  }
  counters_.dropped += std::int64_t{tree_.pages_of(node)} * page_size_;
  free_host(tree_.host_parts(node));
  tree_.remove(node);
  return true;
}

std::int32_t SglangHostCache::evict_host(std::int32_t pages) {
  std::int32_t freed = back() ? drop_duplicates(pages) : 0;
  while (freed < pages) {
    const NodeId node = tree_.host_victim();
    if (node == RadixTree::kRoot) break;
    freed += tree_.pages_of(node);
    evict_host(tree_.host_parts(node));
    tree_.remove(node);
  }
  return freed;
}

// Leaves of the device are spared at first: they would be freed without another copy.
std::int32_t SglangHostCache::drop_duplicates(std::int32_t pages) {
  std::int32_t freed = 0;
  std::vector<NodeId> none_any_more;
  for (const bool spares_leaves : {true, false}) {
    if (freed >= pages) break;
    for (const auto& [name, node] : tree_.duplicates()) {
      if (freed >= pages) break;
      if (!tree_.on_device(node) || !tree_.on_host(node)) {
        none_any_more.push_back(node);
        continue;
      }
      if (spares_leaves && tree_.is_device_leaf(node)) continue;
      if (tree_.writing(node) != RadixTree::kRoot || tree_.loading(node) != RadixTree::kRoot ||
          tree_.host_pinned(node))
        continue;
      tree_.drop_host_copy(node);
      freed += tree_.pages_of(node);
      pages_.free += tree_.pages_of(node);
      none_any_more.push_back(node);
    }
  }
  for (const NodeId node : none_any_more) tree_.forget_duplicate(node);
  return freed;
}

std::optional<RadixTree::Freed> SglangHostCache::load_back(NodeId node, bool has_own_slot) {
  const RadixTree::Missing missing = tree_.missing(node);
  const auto is_taken = [&](NodeId one) {
    return tree_.loading(one) != RadixTree::kRoot && tree_.loading(one) != node;
  };
  if (std::ranges::any_of(missing.nodes, is_taken)) return {};
  if (std::ranges::any_of(missing.windows, is_taken)) return {};
  if (missing.state && is_taken(node)) return {};
  const RadixTree::Freed parts{missing.pages, missing.window_pages, missing.state ? 1 : 0};
  const std::int64_t tokens = std::int64_t{parts.pages} * page_size_;
  const bool only_pages = parts.window_pages == 0 && parts.states == 0;
  if (only_pages && tokens < std::max(1, config_.load_back_tokens)) return {};
  if (!make_room_(parts)) return {};
  tree_.return_to_device(node, missing);
  if (back())
    for (const NodeId one : missing.nodes) tree_.set_loading(one, node);
  const RadixTree::WindowTop top = tree_.lock(node);
  asked_loads_.push_back({node, top, pin(node)});
  loads_.ask({parts.pages, parts.window_pages, parts.states + (has_own_slot ? parts.states : 0)});
  counters_.loaded += tokens;
  return parts;
}

}  // namespace llmsim
