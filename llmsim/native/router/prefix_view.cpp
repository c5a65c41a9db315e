#include "router/prefix_view.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace llmsim {

void PrefixView::watch(Group& group) {
  const auto index = static_cast<std::size_t>(group.config().index);
  if (words_ == 0) number_keys();
  widen(index);
  if ((group.config().role == Role::kDecode) != decode_side_) return;
  group.log_keys(&logs_.emplace_back(timeline_, group.config().index));
  const std::int32_t tokens = group.scheduler().limits().block_size;
  auto size = std::ranges::find(block_sizes_, tokens, &BlockSize::tokens);
  if (size == block_sizes_.end()) {
    if (tokens < content_.granularity)
      throw std::invalid_argument(
          "a router that sees cached prefixes needs content keys as fine as the blocks");
    const std::int32_t ratio = tokens / std::max(1, content_.granularity);
    size = block_sizes_.insert(size, {tokens, ratio, std::vector<std::uint64_t>(words_, 0)});
  }
  size->groups[index / 64] |= std::uint64_t{1} << (index % 64);
}

void PrefixView::forget(const Group& group) {
  const auto index = static_cast<std::size_t>(group.config().index);
  for (BlockSize& size : block_sizes_)
    size.groups[index / 64] &= ~(std::uint64_t{1} << (index % 64));
}

void PrefixView::widen(std::size_t index) {
  cached_tokens_.resize(std::max(cached_tokens_.size(), index + 1), 0);
  const std::size_t words = index / 64 + 1;
  if (words <= words_) return;
  std::vector<std::uint64_t> sets;
  for (std::size_t row = 0; words_ > 0 && row < sets_.size() / words_; ++row) {
    const auto first = sets_.begin() + static_cast<std::ptrdiff_t>(row * words_);
    sets.insert(sets.end(), first, first + static_cast<std::ptrdiff_t>(words_));
    sets.resize((row + 1) * words, 0);
  }
  sets_ = std::move(sets);
  words_ = words;
  alive_.resize(words_, 0);
  for (BlockSize& size : block_sizes_) size.groups.resize(words_, 0);
}

// Content ids are dense when they come from our own readers and generators: then the key is the
// place in the table.
void PrefixView::number_keys() {
  const auto largest = std::max_element(content_.keys.begin(), content_.keys.end());
  if (largest == content_.keys.end()) return;
  if (*largest <= 2 * content_.keys.size() + 1024) {
    holders_.assign(*largest + 1, kNobody);
    return;
  }
  for (const Key key : content_.keys)
    numbers_.try_emplace(key, static_cast<std::uint32_t>(numbers_.size()));
  holders_.assign(numbers_.size(), kNobody);
}

void PrefixView::change(std::int32_t group, Key key, bool cached) {
  Holder& held = holder(key);
  if (held == kNobody) {
    if (cached) held = group;
    return;
  }
  if (held == group) {
    if (!cached) held = kNobody;
    return;
  }
  if (held >= 0) {  // another group has it
    if (!cached) return;
    const std::size_t row = sets_.size() / words_;
    sets_.resize(sets_.size() + words_, 0);
    sets_[row * words_ + static_cast<std::size_t>(held) / 64] |= std::uint64_t{1} << (held % 64);
    held = set_of(row);
  }
  std::uint64_t& word = sets_[row_of(held) * words_ + static_cast<std::size_t>(group) / 64];
  const std::uint64_t bit = std::uint64_t{1} << (group % 64);
  word = cached ? word | bit : word & ~bit;
}

void PrefixView::look_up(RequestId request, std::int32_t prompt_tokens, Ps now) {
  timeline_.replay(now - delay_, [this](std::int32_t group, Key key, bool cached) {
    change(group, key, cached);
  });
  for (const std::size_t group : noted_) cached_tokens_[group] = 0;
  noted_.clear();
  const std::span<const Key> keys = content_.of(request);
  if (keys.empty()) return;
  for (const BlockSize& size : block_sizes_) walk(size, keys, (prompt_tokens - 1) / size.tokens);
}

void PrefixView::walk(const BlockSize& size, std::span<const Key> keys, std::int32_t most_blocks) {
  const auto blocks =
      std::min<std::int64_t>(most_blocks, static_cast<std::int64_t>(keys.size()) / size.ratio);
  alive_ = size.groups;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const Key key = keys[static_cast<std::size_t>((i + 1) * size.ratio - 1)];
    if (!narrow(holder(key), static_cast<std::int32_t>(i) * size.tokens)) return;
  }
  for (std::size_t w = 0; w < words_; ++w)
    note(w, alive_[w], static_cast<std::int32_t>(blocks) * size.tokens);
}

bool PrefixView::narrow(Holder holder, std::int32_t tokens) {
  std::uint64_t left = 0;
  for (std::size_t w = 0; w < words_; ++w) {
    std::uint64_t having = 0;
    if (holder <= -2) {
      having = sets_[row_of(holder) * words_ + w];
    } else if (holder >= 0 && static_cast<std::size_t>(holder) / 64 == w) {
      having = std::uint64_t{1} << (holder % 64);
    }
    if (const std::uint64_t lost = alive_[w] & ~having; lost != 0) note(w, lost, tokens);
    alive_[w] &= having;
    left |= alive_[w];
  }
  return left != 0;
}

void PrefixView::note(std::size_t word, std::uint64_t bits, std::int32_t tokens) {
  if (tokens == 0) return;
  for (; bits != 0; bits &= bits - 1) {
    const std::size_t group = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
    cached_tokens_[group] = tokens;
    noted_.push_back(group);
  }
}

}  // namespace llmsim
