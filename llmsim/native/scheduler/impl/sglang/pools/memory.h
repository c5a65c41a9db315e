// The KV cache of SGLang as its scheduler counts it: free slots, the radix tree, and rows of the
// table from requests to slots. Layers with a window may have slots of their own
// (mem_cache/allocator/swa.py): a request takes both, and gives those back that its window has
// left. Layers that keep states have a pool of these (states.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "kv/radix/radix_tree.h"
#include "request/sequence_table.h"
#include "scheduler/impl/sglang/hicache/host_cache.h"
#include "scheduler/impl/sglang/pools/states.h"
#include "scheduler/window_pool_config.h"

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
  // On a decode group: the turn that has first seen what is to happen to it; -1: none.
  std::int64_t seen = -1;
  std::int64_t joined_at = 0;  // tokens of prompts that had been launched when it last did
  // Of a request whose client gave up: tokens that are not counted as computed again, and whether
  // its next output ends it.
  std::int64_t settled = 0;
  bool leaving = false;
  bool stranded = false;  // it was alone, and found no room beside what others hold without running
  RadixTree::NodeId found = RadixTree::kRoot, locked = RadixTree::kRoot;
  // The last node of its prefix anywhere, and tokens behind `found` that the host holds.
  RadixTree::NodeId last = RadixTree::kRoot;
  std::int32_t on_host = 0;
  // Up to the end of that prefix; and what of its window and its state only the host holds.
  std::int32_t last_end = 0, host_windows = 0;
  bool host_state = false;
  bool row = false;
  // With a pool for windows: leading tokens whose slots there are free again, or the tree's; and up
  // to where others had computed its prompt when it was admitted, as far as its windows were gone
  // (0: nobody had).
  std::int32_t behind_window = 0, branch = 0;
  std::int32_t chunks = 0, decodes = 0;  // steps that it has been in since it was admitted
  RadixTree::WindowTop window_top = 0;   // of its lock
  SglangHeldStates states;
};

// Slots come in pages. A page is free, in the tree, or a request's own.
class SglangMemory {
 public:
  SglangMemory(std::int32_t pages, std::int32_t page_size, std::int32_t rows, bool caching,
               const SequenceTable& sequences, std::int32_t lookahead,
               const WindowPoolConfig& windows, const StatePoolConfig& states,
               const HostCacheConfig& host, HostCacheCounters& counters)
      : page_(page_size),
        pages_(pages),
        free_(pages),
        window_(windows.window),
        window_pages_(windows.pages),
        window_free_(windows.pages),
        rows_(rows),
        all_rows_(rows),
        caching_(caching),
        sequences_(sequences),
        keys_(page_size, sequences, lookahead),
        tree_(keys_),
        states_(SglangStates::make(states)) {
    if (states_) tree_.keep_states();
    if (windows.on()) tree_.keep_windows((windows.window + page_size - 1) / page_size);
    if (!host.on()) return;
    const auto make_room = [this](const RadixTree::Freed& parts) {
      return this->make_room(parts.pages * page_, 0) &&
             this->make_room(0, parts.window_pages * page_) &&
             (!states_ || make_room_for_states(parts.states));
    };
    host_ = std::make_unique<SglangHostCache>(host, page_size, tree_, make_room, counters);
  }
  SglangMemory(const SglangMemory&) = delete;  // the host cache refers to the tree
  SglangMemory& operator=(const SglangMemory&) = delete;

  std::int64_t page_size() const { return page_; }
  std::int64_t capacity() const { return pages_ * page_; }
  std::int64_t available() const { return free_ * page_; }
  std::int64_t used_pages() const { return pages_ - free_ - tree_.evictable(); }
  std::int64_t evictable() const { return tree_.evictable() * page_; }
  bool windowed() const { return window_ > 0; }
  std::int64_t window() const { return window_; }
  std::int64_t window_capacity() const { return window_pages_ * page_; }
  std::int64_t window_available() const { return window_free_ * page_; }
  std::int64_t window_evictable() const { return tree_.window_evictable() * page_; }
  // Tokens that layers of either kind have slots for.
  std::int64_t available_in_both() const {
    return windowed() ? std::min(available(), window_available()) : available();
  }
  // More was taken than there is.
  bool overdrawn() const { return free_ < 0 || window_free_ < 0; }
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
    held.on_host = held.last_end = held.host_windows = held.branch = 0;
    held.host_state = false;
    if (!caching_) return 0;
    const RadixTree::Match match = tree_.match(request, keys_.whole_pages(tokens));
    const auto page = static_cast<std::int32_t>(page_);
    held.found = match.node;
    held.last = match.last;
    held.on_host = match.host_pages * page;
    held.last_end = match.last_pages * page;
    held.host_windows = match.host_window_pages * page;
    held.host_state = match.host_state;
    const std::int32_t prefix = match.pages * page + held.on_host;
    if (states_) states_->found(held.states, prefix, match.held_pages * page);
    if (windowed() && match.held_pages * page > prefix) held.branch = match.held_pages * page;
    return match.pages * page;
  }
  // A request holds a prefix in the tree, and no longer the one before.
  void lock(SglangHeld& held, RadixTree::NodeId node) {
    const RadixTree::WindowTop top = tree_.lock(node);
    unlock(held);
    held.locked = node;
    held.window_top = top;
  }
  void unlock(SglangHeld& held) {
    tree_.unlock(held.locked, held.window_top);
    held.locked = RadixTree::kRoot;
    held.window_top = 0;
  }
  // The prefix stays, and its windows may go.
  void unlock_window(SglangHeld& held) {
    tree_.unlock_windows(held.locked, held.window_top);
    held.window_top = RadixTree::kNoWindow;
  }
  // Null: no layer keeps one.
  SglangStates* states() { return states_.get(); }
  // -1: there is no pool of them.
  std::int32_t free_states() const {
    return states_ ? static_cast<std::int32_t>(states_->available()) : -1;
  }
  // A request that is tried takes a copy of the state that its prefix ends with; or gives it back.
  void copy_state(SglangHeld& held);
  void return_state(SglangHeld& held) {
    if (states_) states_->release(held.states);
  }
  // Requests of a step of prompts have slots for their states.
  void take_states(std::span<const RequestId> requests, std::vector<SglangHeld>& all);
  // Whether a request finds the slots for its states that it lacks, for which the tree gives up
  // what it can; and takes them.
  bool make_room_for_states_of(const SglangHeld& held);
  void take_states(SglangHeld& held) {
    if (states_) states_->take(held.states, states_->of_request());
  }
  // Brings what only the host holds of a request's prefix to the device; returns how many tokens
  // longer it is there, 0 where that is too little, or finds no room.
  std::int32_t load_back(SglangHeld& held);
  // Leaves of the tree leave the device until so many tokens are free, or none can; then windows.
  bool make_room(std::int64_t tokens) { return make_room(tokens, tokens); }
  bool make_room(std::int64_t tokens, std::int64_t window_tokens) {
    if (host_) host_->begin_walk();
    while (available() < tokens) {
      const RadixTree::Freed freed = host_ ? host_->evict() : tree_.evict();
      if (freed.pages == 0) break;
      take_back(freed);
    }
    if (host_) host_->begin_walk();
    while (windowed() && window_available() < window_tokens) {
      const RadixTree::Freed freed =
          host_ ? host_->evict_part(RadixTree::Kind::kWindows) : tree_.evict_window();
      if (freed.window_pages == 0) break;
      take_back(freed);
    }
    return available() >= tokens && (!windowed() || window_available() >= window_tokens);
  }
  // The request's slots reach to `end`.
  void grow(SglangHeld& held, std::int32_t end) {
    if (end > held.paged) {
      const auto paged = static_cast<std::int32_t>(ceil(end));
      free_ -= (paged - held.paged) / page_;
      if (windowed()) window_free_ -= (paged - held.paged) / page_;
      held.paged = paged;
    }
    held.slots = end;
  }
  // Of what it has just grown by, layers with a window need what is behind `start` alone.
  void leave_out_windows(SglangHeld& held, std::int64_t start) {
    if (!windowed() || start <= held.kept) return;
    window_free_ += (start - held.kept) / page_;
    held.behind_window = static_cast<std::int32_t>(start);
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
  // The tree takes over what the request has computed, as far as its tokens count. One that goes on
  // gives back what its window has left.
  // kCancelled: a verification may have computed tokens behind the end of its answer, which stay.
  enum class Then : std::uint8_t { kGoesOn, kEnds, kCancelled };
  void checkpoint(RequestId request, SglangHeld& held, std::int32_t computed, Then then);
  // So many tokens are computed: slots that the window has left are free, once they are `interval`.
  void slide_window(SglangHeld& held, std::int64_t computed, std::int64_t interval);
  // The request gives everything back that is its own.
  void release(SglangHeld& held);
  bool consistent(std::span<const SglangHeld> all) const;

 private:
  bool make_room_for_states(std::int64_t slots);
  // One more, which the prefix cache gets from a request; false where there is none.
  bool make_room_for_given_state(const SglangHeld& held);
  // The prefix cache has taken the state of a request, which goes on or has ended; or had one.
  void hand_over_state(SglangHeld& held, Then then, bool taken);
  void take_back(const RadixTree::Freed& freed) {
    free_ += freed.pages;
    if (states_) states_->take_back(freed.states);
    if (windowed()) window_free_ += freed.window_pages;
  }
  // Pages that are the request's own, and those of layers with a window.
  std::int64_t own_pages(const SglangHeld& held) const { return (held.paged - held.kept) / page_; }
  std::int64_t own_window_pages(const SglangHeld& held) const {
    return (held.paged - std::max(held.kept, held.behind_window)) / page_;
  }

  std::int64_t page_, pages_, free_;
  std::int64_t window_, window_pages_, window_free_;
  std::int64_t rows_ = 0, all_rows_ = 0;
  bool caching_;
  const SequenceTable& sequences_;
  PageKeys keys_;
  RadixTree tree_;
  std::unique_ptr<SglangStates> states_;
  std::unique_ptr<SglangHostCache> host_;
};

}  // namespace llmsim
