// Names of the pages of a request's tokens, from the keys of the workload's content.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/types.h"
#include "kv/block_pool.h"
#include "request/sequence_table.h"

namespace llmsim {

// Equal keys mean equal pages behind equal prefixes. The workload's keys may name less than a page
// (then the page has the key of its last part), or several pages (then each has its part of their
// key). Pages that nobody else can ask for have keys of their own. With a lookahead the key of a
// page also covers so many tokens behind it, as for drafters that read them.
class PageKeys {
 public:
  PageKeys(std::int32_t page_size, const SequenceTable& sequences, std::int32_t lookahead = 0)
      : page_(page_size),
        lookahead_(lookahead),
        unit_(sequences.content().granularity),
        units_per_page_(std::max(1, page_size / unit_)),
        pages_per_unit_(std::max(1, unit_ / page_size)),
        sequences_(sequences) {}

  // The keys of one request.
  class Of {
   public:
    Of(const PageKeys& pages, RequestId request)
        : pages_(pages), keys_(pages.sequences_.content().of(request)), request_(request) {}
    // Leading pages that another request may have, too.
    std::int32_t shareable() const {
      const auto units = static_cast<std::int32_t>(keys_.size());
      if (pages_.lookahead_ > 0) return pages_.whole_pages(units * pages_.unit_);
      return pages_.page_ >= pages_.unit_ ? units / pages_.units_per_page_
                                          : units * pages_.pages_per_unit_;
    }
    Key operator[](std::int32_t page) const {
      if (page >= shareable())
        return kOwnKey | (static_cast<Key>(request_) << 28) | static_cast<Key>(page);
      if (pages_.lookahead_ > 0) return looking_ahead(page);
      if (pages_.page_ >= pages_.unit_)
        return keys_[static_cast<std::size_t>((page + 1) * pages_.units_per_page_ - 1)];
      const auto parts = static_cast<Key>(pages_.pages_per_unit_);
      const Key key = keys_[static_cast<std::size_t>(page / pages_.pages_per_unit_)];
      return (key * parts + static_cast<Key>(page % pages_.pages_per_unit_)) & ~kOwnKey;
    }

   private:
    // The unit that holds the last token covered names the page, with the page's place in it.
    Key looking_ahead(std::int32_t page) const {
      const std::int32_t unit = ((page + 1) * pages_.page_ + pages_.lookahead_ - 1) / pages_.unit_;
      const Key key = keys_[static_cast<std::size_t>(unit)];
      if (pages_.page_ >= pages_.unit_) return key;
      const std::int32_t place = page + 1 - unit * pages_.pages_per_unit_;
      return (key * static_cast<Key>(pages_.pages_per_unit_ + 1) + static_cast<Key>(place)) &
             ~kOwnKey;
    }

    const PageKeys& pages_;
    std::span<const Key> keys_;
    RequestId request_;
  };
  Of of(RequestId request) const { return {*this, request}; }

  std::int32_t page_size() const { return page_; }
  // Leading pages that a sequence of so many tokens names.
  std::int32_t whole_pages(std::int32_t tokens) const {
    return std::max(0, tokens - lookahead_) / page_;
  }
  std::int32_t lookahead() const { return lookahead_; }
  std::int32_t unit() const { return unit_; }
  // The key of the first `tokens` tokens of a request, or 0 where no key covers them; whole units.
  Key prefix(RequestId request, std::int32_t tokens) const {
    const std::span<const Key> keys = sequences_.content().of(request);
    const auto unit = static_cast<std::size_t>((tokens + unit_ - 1) / unit_);
    return unit <= keys.size() ? keys[unit - 1] : 0;
  }

 private:
  std::int32_t page_, lookahead_, unit_, units_per_page_, pages_per_unit_;
  const SequenceTable& sequences_;
};

}  // namespace llmsim
