#include "kv/hybrid_kv_cache.h"

#include <algorithm>
#include <iterator>
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
    : windows_(config.windows),
      block_size_(block_size),
      max_model_len_(max_model_len),
      step_tokens_(config.step_tokens),
      retention_(config.retention),
      held_behind_(config.held_behind),
      drops_last_hit_(drops_last_hit),
      frees_processed_(config.frees_processed),
      states_(config.states, block_size, config.retention) {
  if (windows_.empty() || windows_.front() == kKeepsState)
    throw std::invalid_argument("the first table of blocks must hold those of a sequence");
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const std::int32_t window = windows_[i];
    if (window < kKeepsState || window == 1)
      throw std::invalid_argument("a table of blocks for a window of " + std::to_string(window) +
                                  " tokens; at least 2 are needed");
    if (window == kKeepsState && prefix_caching && !(states_.on() && !drops_last_hit))
      throw std::invalid_argument("tables of states have no prefix cache");
    if (window != kKeepsState && i > 0 && windows_[i - 1] == kKeepsState)
      throw std::invalid_argument("tables of states come last");
    const auto same = std::ranges::find(kinds_, window, &Kind::window);
    if (same == kinds_.end()) {
      kinds_.push_back({window, {i}});
    } else {
      same->tables.push_back(i);
    }
  }
  std::ranges::stable_sort(kinds_, {}, [](const Kind& kind) { return kind.window != kSeesAll; });
  hits_.assign(windows_.size(), {});
  hit_keys_.assign(windows_.size(), 0);
}

// vLLM's find_longest_cache_hit of the coordinators: each kind accepts a length or shortens it,
// until all agree. With one kind beside the layers that see everything, vLLM takes one turn.
void KvTables::find_hits(const BlockPool& pool, RequestId request, const std::vector<Key>& keys,
                         std::int32_t most, Blocks& hits) {
  forget_hits(request);
  const bool one_turn =
      kinds_.size() == 1 || (kinds_.size() == 2 && kinds_.front().window == kSeesAll);
  std::vector<bool> dropped(kinds_.size(), false), found(kinds_.size(), false);
  std::int32_t length = most, longest = 0;
  while (true) {
    std::int32_t now = length;
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      if (kinds_[k].window == kSeesAll && found[k]) {
        now = now / block_size_ * block_size_;
        continue;
      }
      const bool drops = drops_last_hit_ && !dropped[k];
      const bool peeks = drops && kinds_.size() > 1;
      const std::int32_t got =
          find_in(pool, kinds_[k], keys, peeks ? std::min(now + block_size_, most) : now, drops) *
          block_size_;
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
  if (kinds_.front().window == kSeesAll) {
    const auto blocks = static_cast<std::size_t>(length / block_size_);
    for (const std::size_t table : kinds_.front().tables)
      hits_[table].resize(std::min(hits_[table].size(), blocks));
  }
  hits = hits_.front();
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
// only its last blocks need be. `drops`: one more is needed and then left out.
std::int32_t KvTables::find_in(const BlockPool& pool, const Kind& kind,
                               const std::vector<Key>& keys, std::int32_t most, bool drops) {
  const auto blocks =
      static_cast<std::int32_t>(std::min<std::size_t>(most / block_size_, keys.size()));
  for (const std::size_t table : kind.tables)
    hits_[table].assign(static_cast<std::size_t>(blocks), 0);
  std::int32_t count = 0;
  if (kind.window == kSeesAll) {
    while (count < blocks && cached(pool, kind, keys[static_cast<std::size_t>(count)], count))
      ++count;
  } else if (kind.window == kKeepsState) {
    count = blocks;
    while (count > 0 && !cached(pool, kind, keys[static_cast<std::size_t>(count) - 1], count - 1))
      --count;
    for (const std::size_t table : kind.tables)
      hit_keys_[table] = count > 0 ? key_in(keys[static_cast<std::size_t>(count) - 1], table) : 0;
  } else {
    const std::int32_t needed = enough(kind.window, drops);
    std::int32_t run = 0, first = blocks;
    while (first > 0 && run < needed) {
      --first;
      run = cached(pool, kind, keys[static_cast<std::size_t>(first)], first) ? run + 1 : 0;
    }
    count = run >= needed ? first + run : run;  // else what begins the sequence
  }
  count = std::max(0, count - (drops ? 1 : 0));
  for (const std::size_t table : kind.tables) hits_[table].resize(static_cast<std::size_t>(count));
  return count;
}

std::int32_t KvTables::taken(const BlockPool& pool, const Sequence& sequence, std::int32_t tokens,
                             bool whole) const {
  const std::int32_t computed = static_cast<std::int32_t>(hits_.front().size()) * block_size_;
  std::int32_t blocks = 0;
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const std::int32_t window = windows_[i], behind = skipped(window, computed);
    std::int32_t all = needed(window, tokens);
    if (whole && window > 0) {
      const std::int32_t held = std::min(window - 1 + held_behind_ + step_tokens_, max_model_len_);
      all = std::min(all, static_cast<std::int32_t>(ceil_div(held, block_size_)) + 1);
    }
    const auto hit = static_cast<std::int32_t>(hits_[i].size());
    if (window == kKeepsState && states_.on()) {
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
  const std::int32_t computed = static_cast<std::int32_t>(hits_.front().size()) * block_size_;
  others_[request].assign(windows_.size() - 1, {});
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    Blocks& blocks = table(request, sequence, i);
    const auto behind = static_cast<std::size_t>(skipped(windows_[i], computed));
    blocks.assign(behind, 0);
    for (std::size_t k = behind; k < hits_[i].size(); ++k) {
      if (hits_[i][k] != 0) pool.touch(hits_[i][k]);
      blocks.push_back(hits_[i][k]);
    }
  }
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    extend(pool, sequence, windows_[i], computed, tokens, table(request, sequence, i));
  }
}

// A step leaves one state, or two; where it passes others, there are none.
std::int32_t KvTables::states_taken(const Sequence& sequence, std::int32_t start, std::int32_t end,
                                    std::int32_t held) const {
  const std::int32_t all = static_cast<std::int32_t>(ceil_div(end, block_size_));
  return std::max(0, std::min(all - held, states_.leaves_two(sequence, start, end) ? 2 : 1));
}

void KvTables::extend(BlockPool& pool, const Sequence& sequence, std::int32_t window,
                      std::int32_t start, std::int32_t tokens, Blocks& blocks) {
  const auto all = static_cast<std::size_t>(needed(window, tokens));
  if (window == kKeepsState && states_.on() && blocks.size() < all) {
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
  for (std::size_t i = 1; i < windows_.size(); ++i) {
    const Blocks& blocks = others[i - 1];
    if (windows_[i] == kKeepsState && std::any_of(blocks.begin(), std::prev(blocks.end()),
                                                  [](BlockId block) { return block != 0; }))
      return false;
  }
  return true;
}

bool KvTables::grow(BlockPool& pool, RequestId request, Sequence& sequence, std::int32_t tokens) {
  std::int32_t more = 0;
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    Blocks& blocks = table(request, sequence, i);
    const auto behind =
        std::min(static_cast<std::size_t>(skipped(windows_[i], done(sequence))), blocks.size());
    for (std::size_t k = behind; k-- > 0 && (blocks[k] != 0 || windows_[i] == kKeepsState);) {
      if (blocks[k] != 0) pool.release(blocks[k]);
      blocks[k] = 0;
    }
    const auto held = static_cast<std::int32_t>(blocks.size());
    more += windows_[i] == kKeepsState && states_.on()
                ? states_taken(sequence, sequence.num_computed, tokens, held)
                : std::max(0, needed(windows_[i], tokens) - held);
  }
  if (more > pool.num_free()) return false;
  for (std::size_t i = 0; more > 0 && i < windows_.size(); ++i)
    extend(pool, sequence, windows_[i], sequence.num_computed, tokens, table(request, sequence, i));
  return true;
}

void KvTables::set_keys(BlockPool& pool, RequestId request, const Sequence& sequence,
                        std::int32_t first, const std::vector<Key>& keys) {
  const std::vector<std::int32_t> ends = prefix_ends(request, sequence);
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const Blocks& blocks = i == 0 ? sequence.blocks : others_[request][i - 1];
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const BlockId block = blocks[static_cast<std::size_t>(first) + k];
      const std::int32_t place = first + static_cast<std::int32_t>(k);
      const bool state = windows_[i] == kKeepsState;
      if (block == 0 || !(state ? states_.kept(place, ends) : reachable(windows_[i], place, ends)))
        continue;
      if (state) fresh_.insert(key_in(keys[k], i));
      pool.set_key(block, key_in(keys[k], i), /*findable=*/true, /*told=*/i == 0);
    }
  }
}

// vLLM's replay_boundaries, and the junction of a shared prefix; with a drafter that gives the last
// block up, prefixes end one earlier.
std::vector<std::int32_t> KvTables::prefix_ends(RequestId request, const Sequence& sequence) const {
  if (retention_ == kKeepsAll) return {};
  const auto junction = junctions_.find(request);
  const std::int32_t again = (sequence.prompt_tokens - 1) / block_size_,
                     longer = sequence.prompt_tokens / block_size_;
  std::vector<std::int32_t> ends{again};
  if (drops_last_hit_) ends = {std::max(again - 1, 0), std::max(longer - 1, 0)};
  if (junction == junctions_.end()) return ends;
  ends.push_back(junction->second / block_size_);
  if (drops_last_hit_) ends.push_back(junction->second / block_size_ - 1);
  return ends;
}

bool KvTables::reachable(std::int32_t window, std::int32_t block,
                         std::span<const std::int32_t> ends) const {
  if (window <= 0 || retention_ == kKeepsAll) return true;
  const std::int32_t needed = enough(window, drops_last_hit_), shift = drops_last_hit_ ? 1 : 0;
  if (retention_ > 0) {
    const std::int32_t segment = retention_ / block_size_;
    if (needed >= segment) return true;
    if (block >= shift && (block - shift) % segment >= segment - needed) return true;
  }
  return std::ranges::any_of(
      ends, [=](std::int32_t end) { return block < end + shift && block >= end + shift - needed; });
}

void KvTables::release(BlockPool& pool, RequestId request, Sequence& sequence) {
  if (sequence.blocks.empty()) return;
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    Blocks& blocks = table(request, sequence, i);
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
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    Blocks& blocks = table(request, sequence, i);
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
  for (const std::int32_t window : windows_) {
    const std::int64_t all = ceil_div(slots, block_size_);
    if (window == kKeepsState) {
      blocks += states_.on() ? std::min<std::int64_t>(all, states_.most()) : 1;
      continue;
    }
    const std::int64_t held = std::int64_t{window} - 1 + held_behind_ + step_tokens_ + ahead;
    blocks += window == kSeesAll ? all : std::min(all, ceil_div(held, block_size_) + 1);
  }
  return blocks;
}

std::int32_t KvTables::next_given_back(std::int32_t computed) const {
  std::int32_t next = std::numeric_limits<std::int32_t>::max();
  for (const Kind& kind : kinds_)
    if (kind.window > 0)
      next = std::min(next, (skipped(kind.window, computed) + 1) * block_size_ + kind.window - 1 +
                                held_behind_);
  return next;
}

}  // namespace llmsim
