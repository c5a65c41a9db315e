#include "kv/block_pool.h"

#include <algorithm>
#include <ranges>
#include <string>
#include <utility>

#include "base/bad_policy.h"

namespace llmsim {

namespace {
constexpr std::int32_t kVictimsAtOnce = 64;  // so that a policy is not asked for every block
}

BlockPool::BlockPool(std::int32_t num_blocks, FreeOrder order, std::shared_ptr<Eviction> eviction)
    : total_(num_blocks),
      num_free_(num_blocks - 1),
      order_(eviction == nullptr ? order : FreeOrder::kUnkeyedFirst),
      blocks_(1),
      eviction_(std::move(eviction)) {}

void BlockPool::tell_policy() {
  if (!freed_.empty()) eviction_->freed(freed_);
  if (!reused_.empty()) eviction_->reused(reused_);
  freed_.clear();
  reused_.clear();
}

BlockId BlockPool::next_victim() {
  if (victims_.empty()) {
    tell_policy();
    chosen_.clear();
    const std::int32_t count = std::min(kVictimsAtOnce, num_free_keyed_);
    eviction_->evict(count, chosen_);
    if (static_cast<std::int32_t>(chosen_.size()) != count)
      throw BadPolicy("cache eviction chose " + std::to_string(chosen_.size()) + " blocks; " +
                      std::to_string(count) + " are needed");
    for (const BlockId id : chosen_) {
      const bool known = id > 0 && id < virgin_;
      if (!known || blocks_[id].references != 0 || !keyed(id) ||
          std::find(victims_.begin(), victims_.end(), id) != victims_.end())
        throw BadPolicy("cache eviction chose block " + std::to_string(id) +
                        ", which is not a cached block that nobody holds, or twice");
      victims_.push_back(id);
    }
  }
  const BlockId victim = victims_.front();
  victims_.pop_front();
  return victim;
}

BlockId BlockPool::allocate() {
  BlockId block;
  if (front_.head != 0) {
    block = front_.head;
    unlink(block);
  } else if (virgin_ < total_) {
    block = virgin_++;
    blocks_.emplace_back();
  } else {
    block = eviction_ == nullptr ? back_.head : next_victim();
    unlink(block);
  }
  if (keyed(block)) {
    --num_free_keyed_;
    forget(block);
  }
  --num_free_;
  blocks_[block].references = 1;
  return block;
}

void BlockPool::release(BlockId id) {
  Block& block = blocks_[id];
  if (--block.references > 0) return;
  ++num_free_;
  if (keyed(id)) ++num_free_keyed_;
  if (eviction_ != nullptr && keyed(id)) freed_.push_back(id);
  if (joins_front(id)) {
    link_front(id);
  } else {
    link_back(id);
  }
}

// Who joins the front last is the first to be handed out again.
void BlockPool::release(std::span<const BlockId> sequence) {
  for (const BlockId id : sequence | std::views::reverse)
    if (!joins_front(id)) release(id);
  for (const BlockId id : sequence)
    if (joins_front(id)) release(id);
}

void BlockPool::touch(BlockId id) {
  Block& block = blocks_[id];
  if (block.references++ > 0) return;
  unlink(id);
  if (eviction_ != nullptr) {
    reused_.push_back(id);
    std::erase(victims_, id);
  }
  --num_free_;
  --num_free_keyed_;
}

void BlockPool::set_key(BlockId id, Key key, bool findable, bool told) {
  blocks_[id].key = key;
  blocks_[id].told = told;
  if (findable) make_findable(id);
}

void BlockPool::make_findable(BlockId id) {
  Block& block = blocks_[id];
  if (block.findable) return;
  block.findable = true;
  const BlockId first = index_.find(block.key);
  if (first == 0) {
    index_.assign(block.key, id);
    if (key_log_ != nullptr && block.told) key_log_->added(block.key);
    return;
  }
  BlockId last = first;
  while (blocks_[last].same_next != 0) last = blocks_[last].same_next;
  blocks_[last].same_next = id;
  block.same_prev = last;
}

void BlockPool::drop_key(BlockId id) {
  Block& block = blocks_[id];
  if (dropped_ && block.findable && block.chunk >= 0) dropped_(block.key, block.chunk);
  block.chunk = -1;
  if (block.findable) {
    if (block.same_prev != 0) {
      blocks_[block.same_prev].same_next = block.same_next;
    } else if (block.same_next != 0) {
      index_.assign(block.key, block.same_next);
    } else {
      index_.erase(block.key);
      if (key_log_ != nullptr && block.told) key_log_->removed(block.key);
    }
    if (block.same_next != 0) blocks_[block.same_next].same_prev = block.same_prev;
    block.same_prev = block.same_next = 0;
    block.findable = false;
  }
  block.key = 0;
}

void BlockPool::add_tail(BlockId id, Key key) {
  if (has_tail(id, key)) return;
  blocks_[id].has_tails = true;
  tails_[key].push_back(id);
  tails_of_[id].push_back(key);
}

bool BlockPool::has_tail(BlockId id, Key key) const {
  if (!blocks_[id].has_tails) return false;
  const std::vector<Key>& keys = tails_of_.at(id);
  return std::ranges::find(keys, key) != keys.end();
}

void BlockPool::drop_tails(BlockId id) {
  if (!blocks_[id].has_tails) return;
  for (const Key key : tails_of_.at(id)) {
    std::vector<BlockId>& blocks = tails_.at(key);
    std::erase(blocks, id);
    if (blocks.empty()) tails_.erase(key);
  }
  tails_of_.erase(id);
  blocks_[id].has_tails = false;
}

void BlockPool::forget(BlockId id) {
  if (blocks_[id].key != 0) drop_key(id);
  drop_tails(id);
}

void BlockPool::move_keys(BlockId from, BlockId to) {
  const Block block = blocks_[from];
  const std::vector<Key> tails = block.has_tails ? tails_of_.at(from) : std::vector<Key>{};
  forget(from);
  if (block.key != 0) set_key(to, block.key, block.findable, block.told);
  for (const Key key : tails) add_tail(to, key);
}

// A free block's list is known by walking to neither end: heads and tails are compared, inner nodes
// need no list.
void BlockPool::unlink(BlockId id) {
  Block& block = blocks_[id];
  if (block.prev != 0) {
    blocks_[block.prev].next = block.next;
  } else if (front_.head == id) {
    front_.head = block.next;
  } else {
    back_.head = block.next;
  }
  if (block.next != 0) {
    blocks_[block.next].prev = block.prev;
  } else if (front_.tail == id) {
    front_.tail = block.prev;
  } else {
    back_.tail = block.prev;
  }
  block.prev = block.next = 0;
}

void BlockPool::link_front(BlockId id) {
  Block& block = blocks_[id];
  block.next = front_.head;
  if (front_.head != 0) {
    blocks_[front_.head].prev = id;
  } else {
    front_.tail = id;
  }
  front_.head = id;
}

void BlockPool::link_back(BlockId id) {
  Block& block = blocks_[id];
  block.prev = back_.tail;
  if (back_.tail != 0) {
    blocks_[back_.tail].next = id;
  } else {
    back_.head = id;
  }
  back_.tail = id;
}

bool BlockPool::consistent() const {
  std::int32_t listed = 0, keyed = 0;
  for (const List* list : {&front_, &back_}) {
    BlockId previous = 0;
    for (BlockId id = list->head; id != 0; id = blocks_[id].next) {
      if (blocks_[id].prev != previous || blocks_[id].references != 0 || ++listed > total_)
        return false;
      keyed += this->keyed(id);
      previous = id;
    }
    if (list->tail != previous) return false;
  }
  std::int32_t referenced = 0;
  for (BlockId id = 1; id < static_cast<BlockId>(blocks_.size()); ++id) {
    if (blocks_[id].references < 0) return false;
    referenced += blocks_[id].references > 0;
    if (blocks_[id].findable && blocks_[id].key == 0) return false;
  }
  const std::int32_t untouched = total_ - virgin_;
  return keyed == num_free_keyed_ && listed + untouched == num_free_ &&
         referenced + num_free_ + 1 == total_;
}

}  // namespace llmsim
