// The KV cache of SGLang as its scheduler counts it: free slots, the radix tree, and rows of the
// table from requests to slots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "kv/radix/radix_tree.h"
#include "request/sequence_table.h"
#include "scheduler/impl/sglang/hicache/host_cache.h"

namespace llmsim {

// What a request holds, in tokens of its sequence.
struct SglangHeld {
  std::int32_t prefix = 0;  // computed before its next chunk of a prompt
  std::int32_t end = 0;     // of its last chunk
  std::int32_t slots = 0;   // taken, those of its prefix in the tree included
  std::int32_t paged = 0;   // the same up to the end of its last page
  // With drafts: tokens whose KV is known to be right, and what steps in flight add to its answer.
  std::int32_t committed = 0, ahead = 0, verifying = 0;
  std::int32_t kept = 0;      // leading ones that belong to the tree
  std::int32_t inserted = 0;  // leading ones that it has put there itself, or found there again
  std::int32_t limit = 0;     // of its answer
  std::int32_t flight = 0;    // the last batch that it was in
  std::int32_t filled = 0;    // its tokens when it was last tried
  std::int32_t matched = 0;   // that the cache held when the queue was ordered
  std::int64_t entry = 0;     // its place among all who ever joined the queue
  // Times that it looked in storage again, and tokens that the cache held when it last looked
  // there; -1: it has not.
  std::int64_t retries = 0;
  std::int32_t looked_behind = -1;
  std::int64_t joined_at = 0;  // tokens of prompts that had been launched when it last did
  // Of a request whose client gave up: tokens that are not counted as computed again, and whether
  // its next output ends it.
  std::int64_t settled = 0;
  bool leaving = false;
  bool stranded = false;  // it was alone, and found no room beside what others hold without running
  RadixTree::NodeId found = RadixTree::kRoot, locked = RadixTree::kRoot;
  // The last node of its prefix anywhere, and tokens behind `found` that only the host holds.
  RadixTree::NodeId last = RadixTree::kRoot;
  std::int32_t on_host = 0;
  bool row = false;
};

// Slots come in pages. A page is free, in the tree, or a request's own.
class SglangMemory {
 public:
  SglangMemory(std::int32_t pages, std::int32_t page_size, std::int32_t rows, bool caching,
               const SequenceTable& sequences, std::int32_t lookahead, const HostCacheConfig& host,
               HostCacheCounters& counters)
      : page_(page_size),
        pages_(pages),
        free_(pages),
        rows_(rows),
        all_rows_(rows),
        caching_(caching),
        sequences_(sequences),
        keys_(page_size, sequences, lookahead),
        tree_(keys_) {
    if (!host.on()) return;
    const auto make_room = [this](std::int32_t pages) { return this->make_room(pages * page_); };
    host_ = std::make_unique<SglangHostCache>(host, page_size, tree_, make_room, counters);
  }
  SglangMemory(const SglangMemory&) = delete;  // the host cache refers to the tree
  SglangMemory& operator=(const SglangMemory&) = delete;

  std::int64_t page_size() const { return page_; }
  std::int64_t capacity() const { return pages_ * page_; }
  std::int64_t available() const { return free_ * page_; }
  std::int64_t used_pages() const { return pages_ - free_ - tree_.evictable(); }
  std::int64_t evictable() const { return tree_.evictable() * page_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t taken_rows() const { return all_rows_ - rows_; }
  std::int64_t ceil(std::int64_t tokens) const { return (tokens + page_ - 1) / page_ * page_; }
  const PageKeys& keys() const { return keys_; }
  RadixTree& tree() { return tree_; }
  const RadixTree& tree() const { return tree_; }
  bool caching() const { return caching_; }
  SglangHostCache* host() { return host_.get(); }                          // null: there is none
  SglangStorage* storage() { return host_ ? host_->storage() : nullptr; }  // likewise

  // Cached leading tokens of a request on the device, of the first `tokens`; its node is in
  // `held.found`.
  std::int32_t match(RequestId request, std::int32_t tokens, SglangHeld& held) {
    held.found = held.last = RadixTree::kRoot;
    held.on_host = 0;
    if (!caching_) return 0;
    const RadixTree::Match match = tree_.match(request, keys_.whole_pages(tokens));
    held.found = match.node;
    held.last = match.last;
    held.on_host = match.host_pages * static_cast<std::int32_t>(page_);
    return match.pages * static_cast<std::int32_t>(page_);
  }
  // Brings what only the host holds of a request's prefix to the device; false where it is too
  // little, or finds no room.
  bool load_back(SglangHeld& held);
  // Leaves of the tree leave the device until so many tokens are free, or none can.
  bool make_room(std::int64_t tokens) {
    if (host_) host_->begin_walk();
    while (available() < tokens) {
      const std::int32_t pages = host_ ? host_->evict() : tree_.evict();
      if (pages == 0) return false;
      free_ += pages;
    }
    return true;
  }
  // The request's slots reach to `end`.
  void grow(SglangHeld& held, std::int32_t end) {
    if (end > held.paged) {
      const auto paged = static_cast<std::int32_t>(ceil(end));
      free_ -= (paged - held.paged) / page_;
      held.paged = paged;
    }
    held.slots = end;
  }
  // Slots of the pages that it takes to grow to `end`.
  std::int64_t missing(const SglangHeld& held, std::int64_t end) const {
    return end > held.paged ? ceil(end) - held.paged : 0;
  }
  void take_row(SglangHeld& held) {
    if (held.row) return;
    held.row = true;
    held.slots = held.paged = held.kept;
    --rows_;
  }
  // The tree takes over what the request has computed up to a token.
  void checkpoint(RequestId request, SglangHeld& held, std::int32_t up_to);
  // The request gives everything back that is its own.
  void release(SglangHeld& held);
  bool consistent(std::int64_t own_pages) const {
    return tree_.consistent() && free_ + tree_.held() + own_pages == pages_ &&
           (!host_ || host_->consistent());
  }

 private:
  std::int64_t page_, pages_, free_, rows_, all_rows_;
  bool caching_;
  const SequenceTable& sequences_;
  PageKeys keys_;
  RadixTree tree_;
  std::unique_ptr<SglangHostCache> host_;
};

}  // namespace llmsim
