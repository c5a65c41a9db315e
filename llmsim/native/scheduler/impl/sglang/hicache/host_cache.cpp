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
      writes_(config.copy_latency, config.write_ps_per_token),
      loads_(config.copy_latency, config.load_ps_per_token),
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
  const Ps end = writes_.copy(std::exchange(asked_write_tokens_, 0), earliest());
  writing_.push_back({end, std::exchange(asked_writes_, {})});
}

HostLoad SglangHostCache::start_loads() {
  if (asked_loads_.empty()) return {};
  const std::int64_t tokens = std::exchange(asked_load_tokens_, 0);
  const Ps end = loads_.copy(tokens, earliest());
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

// Those above go first, and none where one of them finds no room.
void SglangHostCache::write_with_ancestors(NodeId node) {
  std::vector<NodeId> chain;
  for (; node != RadixTree::kRoot && !tree_.on_host(node); node = tree_.parent_of(node))
    chain.push_back(node);
  for (std::size_t i = chain.size(); i-- > 0;) {
    if (!write(chain[i])) return;
    tree_.lock(chain[i]);
  }
}

bool SglangHostCache::write(NodeId node) {
  const std::int32_t pages = tree_.pages_of(node);
  if (pages_.free < pages) {
    const auto missing = static_cast<std::int32_t>(pages - pages_.free);
    if (evict_host(missing) < missing) return false;
  }
  pages_.free -= pages;
  tree_.add_host_copy(node);
  tree_.set_writing(node, node);
  asked_writes_.push_back(node);
  const std::int64_t tokens = std::int64_t{pages} * page_size_;
  asked_write_tokens_ += tokens;
  counters_.written += tokens;
  return true;
}

// A node that was split meanwhile ends in pieces, the upper ones first.
void SglangHostCache::end_writes(const Writes& writes) {
  for (const NodeId node : writes.nodes) {
    std::vector<NodeId> pieces;
    for (NodeId piece = node; piece != RadixTree::kRoot; piece = tree_.parent_of(piece))
      if (tree_.writing(piece) == node) pieces.push_back(piece);
    for (std::size_t i = pieces.size(); i-- > 0;) {
      tree_.set_writing(pieces[i], RadixTree::kRoot);
      tree_.note_duplicate(pieces[i]);
    }
    if (!back()) tree_.unlock(node, 0);
    for (std::size_t i = pieces.size(); storage_ && i-- > 0;)
      storage_->write(pieces[i], std::max(now_, blocked_));
  }
}

void SglangHostCache::end_load(const Load& load) {
  tree_.unlock(load.node, 0);
  unpin(load.pin);
  for (NodeId node = load.node; node != RadixTree::kRoot; node = tree_.parent_of(node)) {
    if (back() && tree_.loading(node) != load.node) continue;
    tree_.set_loading(node, RadixTree::kRoot);
    tree_.note_duplicate(node);
  }
}

std::int32_t SglangHostCache::evict() {
  while (true) {
    const NodeId node = tree_.device_victim(declined_);
    if (node == RadixTree::kRoot) return 0;
    const std::int32_t pages = tree_.pages_of(node);
    if (tree_.on_host(node) || (back() && write_and_wait(node))) {
      tree_.leave_device(node);
      return pages;
    }
    if (!back()) {
      counters_.dropped += std::int64_t{pages} * page_size_;
      tree_.remove(node);
      return pages;
    }
    if (drop(node)) return pages;
    declined_.push_back(node);
  }
}

bool SglangHostCache::write_and_wait(NodeId node) {
  if (!write(node)) return false;
  const Ps end = writes_.copy(std::exchange(asked_write_tokens_, 0), earliest());
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
    pages_.free += tree_.pages_of(below[i]);
    tree_.remove(below[i]);
  }
  counters_.dropped += std::int64_t{tree_.pages_of(node)} * page_size_;
  tree_.remove(node);
  return true;
}

std::int32_t SglangHostCache::evict_host(std::int32_t pages) {
  std::int32_t freed = back() ? drop_duplicates(pages) : 0;
  while (freed < pages) {
    const NodeId node = tree_.host_victim();
    if (node == RadixTree::kRoot) break;
    freed += tree_.pages_of(node);
    pages_.free += tree_.pages_of(node);
    counters_.evicted += std::int64_t{tree_.pages_of(node)} * page_size_;
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

std::int32_t SglangHostCache::load_back(NodeId node) {
  std::vector<NodeId> missing;
  std::int32_t pages = 0;
  for (NodeId one = node; one != RadixTree::kRoot && !tree_.on_device(one);
       one = tree_.parent_of(one)) {
    missing.push_back(one);
    pages += tree_.pages_of(one);
    if (tree_.loading(one) != RadixTree::kRoot && tree_.loading(one) != node) return 0;
  }
  const std::int64_t tokens = std::int64_t{pages} * page_size_;
  if (tokens < std::max(1, config_.load_back_tokens) || !make_room_(pages)) return 0;
  for (std::size_t i = missing.size(); i-- > 0;) {
    tree_.return_to_device(missing[i]);
    if (back()) tree_.set_loading(missing[i], node);
  }
  tree_.lock(node);
  asked_loads_.push_back({node, pin(node)});
  asked_load_tokens_ += tokens;
  counters_.loaded += tokens;
  return pages;
}

}  // namespace llmsim
