#include "kv/hybrid_kv_cache.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

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

// Windows end with blocks, and so do all prefixes where some layers have one.
CachedStatesConfig states_of(const KvTablesConfig& config, std::int32_t block_size) {
  CachedStatesConfig states = config.states;
  if (states.match_unit < 0 || (states.match_unit > 0 && block_size % states.match_unit != 0))
    throw std::invalid_argument("blocks of " + std::to_string(block_size) +
                                " tokens are not whole pieces of " +
                                std::to_string(states.match_unit) + " that prefixes match by");
  const bool windows = std::ranges::any_of(config.windows, [](std::int32_t window) {
    return window != kSeesAll && window != kKeepsState;
  });
  states.matches_tails = states.on && states.match_unit > 0 && states.match_unit < block_size &&
                         !windows && config.windows.back() == kKeepsState;
  return states;
}

}  // namespace

KvTables::KvTables(const KvTablesConfig& config, std::int32_t block_size,
                   std::int32_t max_model_len, bool prefix_caching, bool drops_last_hit)
    : block_size_(block_size),
      key_tokens_(states_of(config, block_size).matches_tails ? config.states.match_unit
                                                              : block_size),
      alignment_(block_size),
      max_model_len_(max_model_len),
      step_tokens_(config.step_tokens),
      retention_(config.retention),
      held_behind_(config.held_behind),
      drops_last_hit_(drops_last_hit),
      frees_processed_(config.frees_processed),
      states_(states_of(config, block_size), block_size, config.retention) {
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
  if (table.window == 1)
    throw std::invalid_argument("a table of blocks for a window of 1 token; at least 2 are needed");
  if (table.chunk() > 0 && drops_last_hit_)
    throw std::invalid_argument("tables of chunks keep no hidden states of hits");
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
        if (!matches_tails()) now = now / alignment_ * alignment_;
        continue;
      }
      const bool drops = drops_last_hit_ && !dropped[k];
      const bool peeks = drops && kinds_.size() > 1;
      const std::int32_t reach = peeks ? std::min(now + block_size_, most) : now;
      const std::int32_t got = matches_tails() ? find_tails(pool, kinds_[k], keys, reach)
                                               : find_in(pool, kinds_[k], keys, reach, drops);
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
    const auto blocks = static_cast<std::size_t>(matches_tails() ? ceil_div(length, tables_[i].size)
                                                                 : length / tables_[i].size);
    hits_[i].resize(std::min(hits_[i].size(), blocks));
  }
  hits = hits_[home_];
  hit_tokens_ = matches_tails() ? length : static_cast<std::int32_t>(hits.size()) * block_size_;
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
  } else if (table.chunk() > 0) {
    const std::int32_t whole = std::min(blocks, skipped(table, most));
    count = whole;
    while (count < blocks && cached(pool, kind, keys[key_of(table, count)], count)) ++count;
  } else {
    count = find_window(pool, kind, keys, blocks, drops);
  }
  count = std::max(0, count - (drops ? 1 : 0));
  count -= count % (alignment_ / table.size);
  for (const std::size_t i : kind.tables) hits_[i].resize(static_cast<std::size_t>(count));
  return count * table.size;
}

bool KvTables::found_at(const BlockPool& pool, const Kind& kind, const std::vector<Key>& keys,
                        std::int32_t tokens, std::vector<BlockId>& found) const {
  const Key key = keys[at(tokens / key_tokens_ - 1)];
  found.clear();
  for (const std::size_t table : kind.tables) {
    const Key own = key_in(key, table);
    const BlockId block = tokens % block_size_ == 0 ? pool.find(own) : pool.find_tail(own);
    if (block == 0) return false;
    found.push_back(block);
  }
  return true;
}

// vLLM's FullAttentionManager and MambaManager with hashes finer than blocks: whole blocks from the
// first one on and then the longest tail of the next one, or the last state of all.
std::int32_t KvTables::find_tails(const BlockPool& pool, const Kind& kind,
                                  const std::vector<Key>& keys, std::int32_t most) {
  const std::int32_t units = std::min(most / key_tokens_, static_cast<std::int32_t>(keys.size())),
                     in_block = block_size_ / key_tokens_;
  const bool state = kind.table.window == kKeepsState;
  std::vector<BlockId> found;
  for (const std::size_t i : kind.tables) {
    hits_[i].clear();
    hit_keys_[i] = 0;
  }
  std::int32_t first = 0, last = units;
  if (!state) {
    while (first + in_block <= units &&
           found_at(pool, kind, keys, (first + in_block) * key_tokens_, found)) {
      for (std::size_t k = 0; k < found.size(); ++k) hits_[kind.tables[k]].push_back(found[k]);
      first += in_block;
    }
    last = std::min(first + in_block - 1, units);
  }
  for (std::int32_t unit = last; unit > first; --unit) {
    if (!found_at(pool, kind, keys, unit * key_tokens_, found)) continue;
    for (std::size_t k = 0; k < found.size(); ++k) {
      const std::size_t table = kind.tables[k];
      if (state) hits_[table].assign(at((unit - 1) / in_block), 0);
      hits_[table].push_back(found[k]);
      if (state) hit_keys_[table] = key_in(keys[at(unit - 1)], table);
    }
    return unit * key_tokens_;
  }
  return first * key_tokens_;
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
  std::int32_t blocks = hits_tail() ? static_cast<std::int32_t>(tables_.size()) : 0;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const Table table = tables_[i];
    const std::int32_t behind = skipped(table, computed);
    std::int32_t all = needed(table, tokens);
    if (whole && table.window != kSeesAll && table.window != kKeepsState) {
      const std::int64_t held = std::min<std::int64_t>(most_held(table, 0), max_model_len_);
      all = static_cast<std::int32_t>(std::min<std::int64_t>(all, blocks_held(table, held)));
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
  note_checkpoint(request, sequence, computed, tokens);
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
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    Blocks& blocks = blocks_of(request, sequence, i);
    if (hits_tail()) copy_hit(pool, blocks);
    extend(pool, request, sequence, tables_[i], computed, tokens, blocks);
  }
  register_again(pool, request, sequence, tokens);
}

// Both are held until the step is formed.
void KvTables::copy_hit(BlockPool& pool, Blocks& blocks) {
  const BlockId copy = pool.allocate();
  pool.touch(copy);
  copied_.insert(copied_.end(), {blocks.back(), copy});
  blocks.back() = copy;
}

void KvTables::keep_tail(BlockPool& pool, RequestId request, std::size_t table) {
  BlockId& block = tails_.at(request)[table];
  const BlockId copy = pool.allocate();
  pool.move_keys(block, copy);
  pool.touch(block);
  copied_.insert(copied_.end(), {block, copy});
  fresh_.insert(pool.first_key(copy));
  block = 0;
}

void KvTables::note_checkpoint(RequestId request, const Sequence& sequence, std::int32_t start,
                               std::int32_t end) {
  if (!matches_tails()) return;
  if (states_.leaves_two(sequence, start, end)) {
    checkpoints_[request] = {states_.saved_before(end),
                             static_cast<std::int32_t>(ceil_div(end, block_size_)) - 2};
  } else {
    checkpoints_.erase(request);
  }
}

// A step leaves one state, or two; where it passes others, there are none.
std::int32_t KvTables::states_taken(const Sequence& sequence, std::int32_t start, std::int32_t end,
                                    std::int32_t held) const {
  const std::int32_t all = static_cast<std::int32_t>(ceil_div(end, block_size_));
  return std::max(0, std::min(all - held, states_.leaves_two(sequence, start, end) ? 2 : 1));
}

void KvTables::extend(BlockPool& pool, RequestId request, const Sequence& sequence, Table table,
                      std::int32_t start, std::int32_t tokens, Blocks& blocks) {
  const auto all = static_cast<std::size_t>(needed(table, tokens));
  if (table.window == kKeepsState && states_.on() && blocks.size() < all) {
    const auto held = static_cast<std::int32_t>(blocks.size());
    if (held > 0 && !states_.frees_past_gaps()) last_states_[request] = held - 1;
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
  if (tails_.contains(request)) return false;
  const std::vector<Blocks>& others = others_.at(request);
  for (std::size_t i = 1; i < tables_.size(); ++i) {
    const Blocks& blocks = others[i];
    if (tables_[i].window == kKeepsState && std::any_of(blocks.begin(), std::prev(blocks.end()),
                                                        [](BlockId block) { return block != 0; }))
      return false;
  }
  return true;
}

void KvTables::give_back(BlockPool& pool, RequestId request, Table table, std::int32_t done,
                         Blocks& blocks) {
  const bool past_gaps = table.window == kKeepsState && states_.frees_past_gaps();
  const auto behind = std::min(static_cast<std::size_t>(skipped(table, done)), blocks.size());
  const auto free = [&](std::size_t k) { pool.release(std::exchange(blocks[k], 0)); };
  for (std::size_t k = behind; k-- > 0 && (blocks[k] != 0 || past_gaps);)
    if (blocks[k] != 0) free(k);
  if (table.window != kKeepsState || past_gaps) return;
  const auto last = last_states_.find(request);
  if (last != last_states_.end() && last->second < ceil_div(done, block_size_) - 1 &&
      blocks[at(last->second)] != 0)
    free(at(last->second));
}

bool KvTables::grow(BlockPool& pool, RequestId request, Sequence& sequence, std::int32_t tokens) {
  std::int32_t more = 0;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const Table table = tables_[i];
    Blocks& blocks = blocks_of(request, sequence, i);
    give_back(pool, request, table, done(sequence), blocks);
    const auto held = static_cast<std::int32_t>(blocks.size());
    more += table.window == kKeepsState && states_.on()
                ? states_taken(sequence, sequence.num_computed, tokens, held)
                : std::max(0, needed(table, tokens) - held);
    more += keeps_tail(request, i);
  }
  if (more > pool.num_free()) return false;
  note_checkpoint(request, sequence, sequence.num_computed, tokens);
  for (std::size_t i = 0; more > 0 && i < tables_.size(); ++i) {
    if (keeps_tail(request, i)) keep_tail(pool, request, i);
    extend(pool, request, sequence, tables_[i], sequence.num_computed, tokens,
           blocks_of(request, sequence, i));
  }
  tails_.erase(request);
  register_again(pool, request, sequence, tokens);
  return true;
}

void KvTables::register_again(const BlockPool& pool, RequestId request, const Sequence& sequence,
                              std::int32_t tokens) {
  const std::int32_t place = states_.registered_again(sequence, tokens);
  if (place < 0) return;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].window != kKeepsState) continue;
    const BlockId block = others_[request][i][at(place)];
    if (block != 0) fresh_.insert(pool.key(block));
  }
}

void KvTables::set_keys(BlockPool& pool, RequestId request, const Sequence& sequence,
                        std::int32_t first, std::int32_t tokens, const std::vector<Key>& keys) {
  const std::vector<std::int32_t> ends = prefix_ends(request, sequence);
  const std::size_t before = matches_tails() ? 0 : at(first);
  const auto last = static_cast<std::int32_t>(before + keys.size());
  first *= block_size_ / key_tokens_;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const Table table = tables_[i];
    const Blocks& blocks = i == home_ ? sequence.blocks : others_[request][i];
    const bool state = table.window == kKeepsState;
    for (std::int32_t place = first / scale(table); place < last / scale(table); ++place) {
      const BlockId block = blocks[static_cast<std::size_t>(place)];
      if (block == 0 || !(state ? states_.kept(place, ends) : reachable(table, place, ends)))
        continue;
      if (state && is_checkpoint_within(request, place)) continue;
      const Key key = key_in(keys[key_of(table, place) - before], i);
      if (state) fresh_.insert(key);
      if (matches_tails()) pool.forget(block);  // it was known by its tail until here
      pool.set_key(block, key, /*findable=*/true, /*told=*/i == home_);
    }
    if (!matches_tails()) continue;
    if (state) {
      key_state(pool, request, sequence, i, tokens, keys);
    } else {
      set_tail(pool, blocks, i, states_.saved_before(sequence.prompt_tokens), tokens, keys);
    }
  }
}

// Where the prompt ends for who asks for it again.
void KvTables::set_tail(BlockPool& pool, const Blocks& blocks, std::size_t table,
                        std::int32_t prompt_tail, std::int32_t tokens,
                        const std::vector<Key>& keys) {
  if (prompt_tail > tokens || prompt_tail % block_size_ == 0) return;
  const std::size_t place = at(prompt_tail / block_size_);
  if (place < blocks.size())
    pool.add_tail(blocks[place], key_in(keys[at(prompt_tail / key_tokens_ - 1)], table));
}

// The same of a state, which the step left at its end, or inside of it in a block that would
// otherwise hold the state at that block's end.
void KvTables::key_state(BlockPool& pool, RequestId request, const Sequence& sequence,
                         std::size_t table, std::int32_t tokens, const std::vector<Key>& keys) {
  const std::int32_t tail = states_.saved_before(sequence.prompt_tokens);
  const Blocks& blocks = others_[request][table];
  const auto key = [&](std::int32_t end) { return key_in(keys[at(end / key_tokens_ - 1)], table); };
  if (const auto found = checkpoints_.find(request); found != checkpoints_.end()) {
    const auto [saved, place] = found->second;
    const BlockId block = blocks[at(place)];
    const std::int32_t block_end = (place + 1) * block_size_;
    if (tokens < saved || (saved == block_end && pool.key(block) == key(saved))) return;
    const bool whole = saved % block_size_ == 0;
    pool.forget(block);
    const bool worth = saved == tail || saved == junction_of(request) ||
                       (whole && states_.kept(saved / block_size_ - 1, {}));
    if (!worth) return;
    if (whole) {
      pool.set_key(block, key(saved), /*findable=*/true, /*told=*/false);
    } else {
      pool.add_tail(block, key(saved));
    }
    fresh_.insert(key(saved));
    return;
  }
  if (tokens != tail || tokens == 0) return;
  const std::size_t place = at(ceil_div(tokens, block_size_) - 1);
  if (place >= blocks.size() || blocks[place] == 0) return;
  const BlockId block = blocks[place];
  if (tokens % block_size_ == 0) {
    if (pool.key(block) == key(tokens)) return;
    pool.forget(block);
    pool.set_key(block, key(tokens), /*findable=*/true, /*told=*/false);
    fresh_.insert(key(tokens));
    return;
  }
  if (pool.has_tail(block, key(tokens))) return;
  pool.forget(block);
  pool.add_tail(block, key(tokens));
  fresh_.insert(key(tokens));
  tails_[request].resize(tables_.size(), 0);
  tails_[request][table] = block;
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
    std::erase(blocks, 0);
    pool.release(std::span<const BlockId>(blocks));
    Blocks().swap(blocks);
  }
  others_.erase(request);
  junctions_.erase(request);
  tails_.erase(request);
  checkpoints_.erase(request);
  last_states_.erase(request);
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
  tails_.erase(request);
  checkpoints_.erase(request);
  last_states_.erase(request);
  return taken;
}

std::int64_t KvTables::most_blocks(std::int64_t slots, std::int32_t ahead) const {
  std::int64_t blocks = 0;
  for (const Table table : tables_) {
    const std::int64_t all = ceil_div(slots, table.size);
    if (table.window == kKeepsState) {
      blocks += states_.on() ? std::min<std::int64_t>(all, states_.most()) : 1;
    } else if (table.window == kSeesAll) {
      blocks += all;
    } else {
      blocks += std::min(all, blocks_held(table, most_held(table, ahead)));
    }
  }
  return blocks;
}

std::int32_t KvTables::next_given_back(std::int32_t computed) const {
  std::int32_t next = std::numeric_limits<std::int32_t>::max();
  for (const Kind& kind : kinds_) {
    const Table table = kind.table;
    if (const std::int32_t chunk = table.chunk(); chunk > 0)
      next = std::min(next, (computed / chunk + 1) * chunk);
    if (table.window <= 0) continue;
    const std::int32_t behind = (skipped(table, computed) + 1) * table.size;
    next = std::min(next, behind + table.window - 1 + held_behind_);
  }
  return next;
}

}  // namespace llmsim
