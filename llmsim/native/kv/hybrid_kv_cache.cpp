#include "kv/hybrid_kv_cache.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>

namespace llmsim {

namespace {

// Equal content has another key in each table (vLLM: make_block_hash_with_group_id).
Key key_in(Key key, std::size_t table) {
  if (table == 0) return key;
  Key mixed = key + 0x9E3779B97F4A7C15u * static_cast<Key>(table);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return mixed ^ (mixed >> 31);
}

}  // namespace

KvTables::KvTables(const KvTablesConfig& config, std::int32_t block_size,
                   std::int32_t max_model_len, bool prefix_caching, bool drops_last_hit)
    : block_size_(block_size),
      alignment_(block_size),
      max_model_len_(max_model_len),
      step_tokens_(config.step_tokens),
      retention_(config.retention),
      held_behind_(config.held_behind),
      drops_last_hit_(drops_last_hit),
      frees_processed_(config.frees_processed),
      states_(config.states, block_size, config.retention) {
  const std::vector<std::int32_t>& sizes = config.block_sizes;
  if (config.windows.empty() || config.windows.front() == kKeepsState)
    throw std::invalid_argument("the first table of blocks must hold those of a sequence");
  if (!sizes.empty() && sizes.size() != config.windows.size())
    throw std::invalid_argument(std::to_string(sizes.size()) + " block sizes are given for " +
                                std::to_string(config.windows.size()) + " tables of blocks");
  for (std::size_t i = 0; i < config.windows.size(); ++i)
    add_table({config.windows[i], sizes.empty() ? block_size : sizes[i]}, prefix_caching);
  const auto home = std::ranges::find_if(tables_, [this](Table table) {
    return table.window != kKeepsState && table.size == block_size_;
  });
  if (home == tables_.end())
    throw std::invalid_argument("no table has blocks of " + std::to_string(block_size) +
                                " tokens, the cache's block size");
  home_ = static_cast<std::size_t>(home - tables_.begin());
  std::ranges::stable_sort(kinds_, {},
                           [](const Kind& kind) { return kind.table.window != kSeesAll; });
  hits_.assign(tables_.size(), {});
  hit_keys_.assign(tables_.size(), 0);
}

void KvTables::add_table(Table table, bool prefix_caching) {
  const bool state = table.window == kKeepsState;
  if (table.window < kKeepsState || table.window == 1)
    throw std::invalid_argument("a table of blocks for a window of " +
                                std::to_string(table.window) + " tokens; at least 2 are needed");
  if (state && prefix_caching && !(states_.on() && !drops_last_hit_))
    throw std::invalid_argument("tables of states have no prefix cache");
  if (!state && !tables_.empty() && tables_.back().window == kKeepsState)
    throw std::invalid_argument("tables of states come last");
  if (table.size < 1 || table.size % block_size_ != 0)
    throw std::invalid_argument("a table has blocks of " + std::to_string(table.size) +
                                " tokens, which are no multiple of " + std::to_string(block_size_));
  alignment_ = std::lcm(alignment_, table.size);
  if (alignment_ != block_size_ && (drops_last_hit_ || states_.on()))
    throw std::invalid_argument(
        "tables with blocks of several sizes keep neither states nor hidden states of hits");
  const auto same = std::ranges::find(kinds_, table, &Kind::table);
  if (same == kinds_.end()) {
    kinds_.push_back({table, {tables_.size()}});
  } else {
    same->tables.push_back(tables_.size());
  }
  tables_.push_back(table);
}

// vLLM's find_longest_cache_hit of the coordinators: each kind accepts a length or shortens it,
// until all agree. With one kind beside the layers that see everything, vLLM takes one turn.
void KvTables::find_hits(const BlockPool& pool, RequestId request, const std::vector<Key>& keys,
                         std::int32_t most, Blocks& hits) {
  forget_hits(request);
  const bool one_turn =
      kinds_.size() == 1 || (kinds_.size() == 2 && kinds_.front().table.window == kSeesAll);
  std::vector<bool> dropped(kinds_.size(), false), found(kinds_.size(), false);
  std::int32_t length = most, longest = 0;
  while (true) {
    std::int32_t now = length;
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      if (kinds_[k].table.window == kSeesAll && found[k]) {
        now = now / alignment_ * alignment_;
        continue;
      }
      const bool drops = drops_last_hit_ && !dropped[k];
      const bool peeks = drops && kinds_.size() > 1;
      const std::int32_t got =
          find_in(pool, kinds_[k], keys, peeks ? std::min(now + block_size_, most) : now, drops) *
          kinds_[k].table.size;
      if (drops) {
        dropped[k] = true;
      } else if (got < now) {
        dropped.assign(kinds_.size(), false);
      }
      now = got;
      longest = std::max(longest, got);
      found[k] = true;
    }
    if (now >= length) break;
    length = now;
    if (one_turn) break;
  }
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].window != kSeesAll) continue;
    const auto blocks = static_cast<std::size_t>(length / tables_[i].size);
    hits_[i].resize(std::min(hits_[i].size(), blocks));
  }
  hits = hits_[home_];
  if (longest > length && kinds_.size() > 1) junctions_[request] = longest;
}

// What is found up to a miss stays in hits_, behind the last block that counts: find_in cuts it
// off.
bool KvTables::cached(const BlockPool& pool, const Kind& kind, Key key, std::int32_t block) {
  for (const std::size_t table : kind.tables) {
    BlockId& hit = hits_[table][static_cast<std::size_t>(block)];
    hit = pool.find(key_in(key, table));
    if (hit == 0) return false;
  }
  return true;
}

// How many leading blocks of at most `most` tokens are cached in all tables of a kind; of a window
// only its last blocks need be. `drops`: one more is needed and then left out. They end where
// blocks of all tables do.
std::int32_t KvTables::find_in(const BlockPool& pool, const Kind& kind,
                               const std::vector<Key>& keys, std::int32_t most, bool drops) {
  const Table table = kind.table;
  const std::size_t keyed = keys.size() / static_cast<std::size_t>(scale(table));
  const auto blocks = static_cast<std::int32_t>(std::min<std::size_t>(most / table.size, keyed));
  for (const std::size_t i : kind.tables) hits_[i].assign(static_cast<std::size_t>(blocks), 0);
  std::int32_t count = 0;
  if (table.window == kSeesAll) {
    while (count < blocks && cached(pool, kind, keys[key_of(table, count)], count)) ++count;
  } else if (table.window == kKeepsState) {
    count = blocks;
    while (count > 0 && !cached(pool, kind, keys[key_of(table, count - 1)], count - 1)) --count;
    for (const std::size_t i : kind.tables)
      hit_keys_[i] = count > 0 ? key_in(keys[key_of(table, count - 1)], i) : 0;
  } else {
    count = find_window(pool, kind, keys, blocks, drops);
  }
  count = std::max(0, count - (drops ? 1 : 0));
  count -= count % (alignment_ / table.size);
  for (const std::size_t i : kind.tables) hits_[i].resize(static_cast<std::size_t>(count));
  return count;
}

// From behind, since the last blocks of a window are all that a prefix needs.
std::int32_t KvTables::find_window(const BlockPool& pool, const Kind& kind,
                                   const std::vector<Key>& keys, std::int32_t blocks, bool drops) {
  const std::int32_t aligned = alignment_ / kind.table.size, needed = enough(kind.table, drops);
  std::int32_t run = 0, first = blocks;
  while (first > 0 && run < needed) {
    --first;
    if (run == 0 && (first + 1) % aligned != 0) continue;
    run = cached(pool, kind, keys[key_of(kind.table, first)], first) ? run + 1 : 0;
  }
  return run >= needed ? first + run : run;  // else what begins the sequence
}

std::int32_t KvTables::taken(const BlockPool& pool, const Sequence& sequence, std::int32_t tokens,
                             bool whole) const {
  const std::int32_t computed = hit_tokens();
  std::int32_t blocks = 0;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const Table table = tables_[i];
    const std::int32_t behind = skipped(table, computed);
    std::int32_t all = needed(table, tokens);
    if (whole && table.window > 0) {
      const std::int32_t held =
          std::min(table.window - 1 + held_behind_ + step_tokens_, max_model_len_);
      all = std::min(all, static_cast<std::int32_t>(ceil_div(held, table.size)) + 1);
    }
    const auto hit = static_cast<std::int32_t>(hits_[i].size());
    if (table.window == kKeepsState && states_.on()) {
      if (hit > 0 && fresh_.contains(hit_keys_[i])) return pool.total() + 1;  // not in this step
      blocks += states_taken(sequence, computed, tokens, hit);
    } else {
      blocks += std::max(0, all - std::max(behind, hit));
    }
    for (auto k = static_cast<std::size_t>(behind); k < hits_[i].size(); ++k)
      blocks += hits_[i][k] != 0 && pool.is_free(hits_[i][k]);
  }
  return blocks;
}

void KvTables::allocate(BlockPool& pool, RequestId request, Sequence& sequence,
                        std::int32_t tokens) {
  const std::int32_t computed = hit_tokens();
  others_[request].assign(tables_.size(), {});
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    Blocks& blocks = blocks_of(request, sequence, i);
    const auto behind = static_cast<std::size_t>(skipped(tables_[i], computed));
    blocks.assign(behind, 0);
    for (std::size_t k = behind; k < hits_[i].size(); ++k) {
      if (hits_[i][k] != 0) pool.touch(hits_[i][k]);
      blocks.push_back(hits_[i][k]);
    }
  }
  for (std::size_t i = 0; i < tables_.size(); ++i)
    extend(pool, sequence, tables_[i], computed, tokens, blocks_of(request, sequence, i));
}

// A step leaves one state, or two; where it passes others, there are none.
std::int32_t KvTables::states_taken(const Sequence& sequence, std::int32_t start, std::int32_t end,
                                    std::int32_t held) const {
  const std::int32_t all = static_cast<std::int32_t>(ceil_div(end, block_size_));
  return std::max(0, std::min(all - held, states_.leaves_two(sequence, start, end) ? 2 : 1));
}

void KvTables::extend(BlockPool& pool, const Sequence& sequence, Table table, std::int32_t start,
                      std::int32_t tokens, Blocks& blocks) {
  const auto all = static_cast<std::size_t>(needed(table, tokens));
  if (table.window == kKeepsState && states_.on() && blocks.size() < all) {
    const auto held = static_cast<std::int32_t>(blocks.size());
    blocks.resize(all - static_cast<std::size_t>(states_taken(sequence, start, tokens, held)), 0);
  }
  while (blocks.size() < all) blocks.push_back(pool.allocate());
}

std::int32_t KvTables::cut(RequestId request, const Sequence& sequence, std::int32_t start,
                           std::int32_t tokens, std::int32_t most) const {
  const auto junction = junctions_.find(request);
  return states_.cut(sequence, start, tokens, most,
                     junction == junctions_.end() ? 0 : junction->second);
}

bool KvTables::settled(RequestId request) const {
  if (!states_.on()) return true;
  const std::vector<Blocks>& others = others_.at(request);
  for (std::size_t i = 1; i < tables_.size(); ++i) {
    const Blocks& blocks = others[i];
    if (tables_[i].window == kKeepsState && std::any_of(blocks.begin(), std::prev(blocks.end()),
                                                        [](BlockId block) { return block != 0; }))
      return false;
  }
  return true;
}

bool KvTables::grow(BlockPool& pool, RequestId request, Sequence& sequence, std::int32_t tokens) {
  std::int32_t more = 0;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const Table table = tables_[i];
    Blocks& blocks = blocks_of(request, sequence, i);
    const auto behind =
        std::min(static_cast<std::size_t>(skipped(table, done(sequence))), blocks.size());
    for (std::size_t k = behind; k-- > 0 && (blocks[k] != 0 || table.window == kKeepsState);) {
      if (blocks[k] != 0) pool.release(blocks[k]);
      blocks[k] = 0;
    }
    const auto held = static_cast<std::int32_t>(blocks.size());
    more += table.window == kKeepsState && states_.on()
                ? states_taken(sequence, sequence.num_computed, tokens, held)
                : std::max(0, needed(table, tokens) - held);
  }
  if (more > pool.num_free()) return false;
  for (std::size_t i = 0; more > 0 && i < tables_.size(); ++i)
    extend(pool, sequence, tables_[i], sequence.num_computed, tokens,
           blocks_of(request, sequence, i));
  return true;
}

void KvTables::set_keys(BlockPool& pool, RequestId request, const Sequence& sequence,
                        std::int32_t first, const std::vector<Key>& keys) {
  const std::vector<std::int32_t> ends = prefix_ends(request, sequence);
  const std::int32_t last = first + static_cast<std::int32_t>(keys.size());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const Table table = tables_[i];
    const Blocks& blocks = i == home_ ? sequence.blocks : others_[request][i];
    for (std::int32_t place = first / scale(table); place < last / scale(table); ++place) {
      const BlockId block = blocks[static_cast<std::size_t>(place)];
      const bool state = table.window == kKeepsState;
      if (block == 0 || !(state ? states_.kept(place, ends) : reachable(table, place, ends)))
        continue;
      const Key key = key_in(keys[key_of(table, place) - static_cast<std::size_t>(first)], i);
      if (state) fresh_.insert(key);
      pool.set_key(block, key, /*findable=*/true, /*told=*/i == home_);
    }
  }
}

// vLLM's replay_boundaries, and the junction of a shared prefix; with a drafter that gives the last
// block up, prefixes end one earlier.
std::vector<std::int32_t> KvTables::prefix_ends(RequestId request, const Sequence& sequence) const {
  if (retention_ == kKeepsAll) return {};
  const auto junction = junctions_.find(request);
  const std::int32_t again = (sequence.prompt_tokens - 1) / alignment_,
                     longer = sequence.prompt_tokens / alignment_;
  std::vector<std::int32_t> ends{again};
  if (drops_last_hit_) ends = {std::max(again - 1, 0), std::max(longer - 1, 0)};
  if (junction == junctions_.end()) return ends;
  ends.push_back(junction->second / alignment_);
  if (drops_last_hit_) ends.push_back(junction->second / alignment_ - 1);
  return ends;
}

bool KvTables::reachable(Table table, std::int32_t block,
                         std::span<const std::int32_t> ends) const {
  if (table.window <= 0) return true;
  const std::int32_t needed = enough(table, drops_last_hit_), shift = drops_last_hit_ ? 1 : 0;
  if (const std::int32_t tokens = retention_ == kKeepsAll ? alignment_ : retention_; tokens > 0) {
    const std::int32_t segment = tokens / table.size;
    if (needed >= segment) return true;
    if (block >= shift && (block - shift) % segment >= segment - needed) return true;
  }
  const std::int32_t blocks = alignment_ / table.size;
  return std::ranges::any_of(ends, [=](std::int32_t end) {
    const std::int32_t behind = end * blocks + shift;
    return block < behind && block >= behind - needed;
  });
}

void KvTables::release(BlockPool& pool, RequestId request, Sequence& sequence) {
  if (sequence.blocks.empty()) return;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    Blocks& blocks = blocks_of(request, sequence, i);
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block)
      if (*block != 0) pool.release(*block);
    Blocks().swap(blocks);
  }
  others_.erase(request);
  junctions_.erase(request);
}

// In table order: who gives them back last first frees the last table first, where release() begins
// with the first one. Both are vLLM's: it frees tables one by one at once, and as one list when it
// waits.
std::vector<BlockId> KvTables::take(RequestId request, Sequence& sequence) {
  std::vector<BlockId> taken;
  if (sequence.blocks.empty()) return taken;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    Blocks& blocks = blocks_of(request, sequence, i);
    std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(taken),
                 [](BlockId block) { return block != 0; });
    Blocks().swap(blocks);
  }
  others_.erase(request);
  junctions_.erase(request);
  return taken;
}

std::int64_t KvTables::most_blocks(std::int64_t slots, std::int32_t ahead) const {
  std::int64_t blocks = 0;
  for (const auto [window, size] : tables_) {
    const std::int64_t all = ceil_div(slots, size);
    if (window == kKeepsState) {
      blocks += states_.on() ? std::min<std::int64_t>(all, states_.most()) : 1;
      continue;
    }
    const std::int64_t held = std::int64_t{window} - 1 + held_behind_ + step_tokens_ + ahead;
    blocks += window == kSeesAll ? all : std::min(all, ceil_div(held, size) + 1);
  }
  return blocks;
}

std::int32_t KvTables::next_given_back(std::int32_t computed) const {
  std::int32_t next = std::numeric_limits<std::int32_t>::max();
  for (const Kind& kind : kinds_) {
    const auto [window, size] = kind.table;
    if (window <= 0) continue;
    const std::int32_t behind = (skipped(kind.table, computed) + 1) * size;
    next = std::min(next, behind + window - 1 + held_behind_);
  }
  return next;
}

}  // namespace llmsim
