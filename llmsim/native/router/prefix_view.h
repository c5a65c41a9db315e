// Which groups have a request's prefix cached, as a router sees it: late, and by key rather than by
// group.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "group/group.h"
#include "kv/tiers/key_log.h"
#include "router/router.h"

namespace llmsim {

// Owned by a router. One table for all groups maps a key to the set of groups that have it, so a
// look-up walks the request's keys once however many groups there are, and stops at the first key
// that nobody has.
class PrefixView {
 public:
  // The view of time t shows what the groups had published by t - delay. The context's content must
  // outlive it.
  PrefixView(const RouterContext& context, Ps delay)
      : content_(*context.content), decode_side_(context.decode_side), delay_(delay) {}

  // Makes a group write its changes, if it is one of its side; groups come in the order of their
  // indices.
  void watch(Group& group);
  // The group is no candidate any more.
  void forget(const Group& group);

  // Tokens of the request's prompt that a group can take from its cache, at most all but one; valid
  // until the next call of look_up. Calls come in order of time.
  void look_up(RequestId request, std::int32_t prompt_tokens, Ps now);
  std::int32_t cached_tokens(const Group& group) const {
    return cached_tokens_[static_cast<std::size_t>(group.config().index)];
  }

 private:
  // Who has a key: nobody, one group (almost always), or a row of `sets_`.
  using Holder = std::int32_t;
  static constexpr Holder kNobody = -1;
  static constexpr Holder set_of(std::size_t row) { return -2 - static_cast<Holder>(row); }
  static constexpr std::size_t row_of(Holder holder) {
    return static_cast<std::size_t>(-2 - holder);
  }

  // Groups whose block is `ratio` content keys long.
  struct BlockSize {
    std::int32_t tokens, ratio;
    std::vector<std::uint64_t> groups;  // bit set
  };

  void number_keys();
  // Makes room for a group of this index in all sets.
  void widen(std::size_t index);
  Holder& holder(Key key) { return holders_[numbers_.empty() ? key : numbers_.at(key)]; }
  void change(std::int32_t group, Key key, bool cached);
  void walk(const BlockSize& size, std::span<const Key> keys, std::int32_t most_blocks);
  // Removes those from `alive_` that have not got the key; they share `tokens` with the request.
  // False: none is left.
  bool narrow(Holder holder, std::int32_t tokens);
  void note(std::size_t word, std::uint64_t bits, std::int32_t tokens);

  const ContentKeys& content_;
  bool decode_side_;
  Ps delay_;
  KeyTimeline timeline_;
  std::deque<KeyLog> logs_;  // per group; its pool keeps the address
  std::unordered_map<Key, std::uint32_t>
      numbers_;                      // of the workload's keys; empty: keys are dense already
  std::vector<Holder> holders_;      // by key or its number
  std::vector<std::uint64_t> sets_;  // rows of `words_` words
  std::size_t words_ = 0;
  std::vector<BlockSize> block_sizes_;
  std::vector<std::uint64_t> alive_;
  std::vector<std::int32_t> cached_tokens_;  // by group
  std::vector<std::size_t> noted_;           // groups whose cached_tokens_ is not 0
};

}  // namespace llmsim
