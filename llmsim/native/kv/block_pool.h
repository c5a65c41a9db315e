// The paged KV cache of one group: reference counts, vLLM's free order, and the index of cached
// blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "kv/block_map.h"
#include "kv/eviction.h"
#include "kv/tiers/key_log.h"

namespace llmsim {

// Where a freed block goes: behind all others (least recently used first), or, in vLLM 0.24 and
// later, in front when it carries no key, because nothing can hit it.
enum class FreeOrder : std::uint8_t { kAppend, kUnkeyedFirst };

// Owns the blocks of one group; only that group's KvCache changes it. Block 0 is the null block and
// never handed out. A block is referenced (by `references` sequences) or free; a free block keeps
// its key until it is handed out again.
class BlockPool {
 public:
  BlockPool(std::int32_t num_blocks, FreeOrder order, std::shared_ptr<Eviction> eviction = nullptr);

  std::int32_t total() const { return total_; }
  std::int32_t num_free() const { return num_free_; }
  std::int32_t num_free_keyed() const { return num_free_keyed_; }
  bool is_free(BlockId block) const { return block >= virgin_ || blocks_[block].references == 0; }

  // Takes the head of the free order, dropping its key. Requires num_free() > 0.
  BlockId allocate();
  // Drops one reference; at zero the block joins the free order.
  void release(BlockId block);
  // The same for all blocks of a sequence, which come in its order: its end is handed out again
  // before its beginning, as by vLLM's free_blocks, among blocks with keys and among those without.
  void release(std::span<const BlockId> sequence);
  // Adds a reference to a block found by `find`, taking it out of the free order when it was free.
  void touch(BlockId block);

  // Tells the eviction policy, if there is one, what was given back and taken again since the last
  // call.
  void tell() {
    if (eviction_ != nullptr) tell_policy();
  }

  bool keyed(BlockId block) const { return blocks_[block].key != 0 || blocks_[block].has_tails; }
  Key key(BlockId block) const { return blocks_[block].key; }
  // Gives a referenced block the key of its content. `findable` enters it into the index: keys that
  // nobody else can ask for stay out until `make_findable`. `told`: the log of keys hears of it.
  void set_key(BlockId block, Key key, bool findable, bool told = true);
  // Tails: prefixes that end inside of a block, under keys of their own. A block may have several;
  // they leave with its content, and do not change its key.
  void add_tail(BlockId block, Key key);
  // The block keeps its content, and nobody finds it any more, under its key or its tails.
  void forget(BlockId block);
  void drop_tails(BlockId block);
  // All that is found in one block is found in the other, which has no keys, from now on.
  void move_keys(BlockId from, BlockId to);
  // The block that was entered first with this tail, or 0.
  BlockId find_tail(Key key) const {
    const auto found = tails_.find(key);
    return found == tails_.end() ? 0 : found->second.front();
  }
  bool has_tail(BlockId block, Key key) const;
  // Its key, or that of its first tail; 0: it has neither.
  Key first_key(BlockId block) const {
    if (blocks_[block].key != 0) return blocks_[block].key;
    return blocks_[block].has_tails ? tails_of_.at(block).front() : 0;
  }
  // The block ends a chunk of KV tiers, with this place among its sequence's chunks.
  void end_chunk(BlockId block, std::int32_t chunk) { blocks_[block].chunk = chunk; }
  // From now on tells `dropped` which findable ends of chunks lose their content.
  using Dropped = std::function<void(Key, std::int32_t chunk)>;
  void on_drop(Dropped dropped) { dropped_ = std::move(dropped); }
  void make_findable(BlockId block);
  // The cached block that was entered first under this key, or 0.
  BlockId find(Key key) const { return index_.find(key); }

  // From now on tells `log` which keys enter and leave the index; null: nobody.
  void log_keys(KeyLog* log) { key_log_ = log; }

  // Recounts everything (invariant 4); false when a counter or a list is wrong.
  bool consistent() const;

 private:
  struct Block {
    Key key = 0;
    BlockId prev = 0, next = 0;            // neighbours in a free list
    BlockId same_prev = 0, same_next = 0;  // blocks with the same key, in order of entry
    std::int32_t references = 0;
    std::int32_t chunk = -1;  // that it ends, if any
    bool findable = false, told = true, has_tails = false;
  };
  // Sentinels of the two free lists live behind the pool: blocks before the never-used range, and
  // blocks after it.
  struct List {
    BlockId head = 0, tail = 0;
  };

  void tell_policy();
  BlockId next_victim();

  bool joins_front(BlockId block) const {
    return order_ == FreeOrder::kUnkeyedFirst && !keyed(block);
  }
  void link_front(BlockId block);
  void link_back(BlockId block);
  void unlink(BlockId block);
  void drop_key(BlockId block);

  std::int32_t total_, num_free_, num_free_keyed_ = 0;
  BlockId virgin_ =
      1;  // blocks from here to the end were never used and are free, between the two lists
  FreeOrder order_;
  List front_, back_;
  std::vector<Block> blocks_;  // grows with use, so an untouched pool costs nothing
  BlockMap index_;
  std::unordered_map<Key, std::vector<BlockId>> tails_;     // looked up, never walked
  std::unordered_map<BlockId, std::vector<Key>> tails_of_;  // the same by block
  KeyLog* key_log_ = nullptr;
  Dropped dropped_;
  std::shared_ptr<Eviction> eviction_;  // with one, only blocks without a key leave by the lists
  std::deque<BlockId> victims_;         // chosen by it, not evicted yet
  std::vector<BlockId> freed_, reused_, chosen_;
};

}  // namespace llmsim
