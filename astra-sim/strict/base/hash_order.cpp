#include "strict/base/hash_order.h"

#include <array>
#include <utility>

namespace astra_sim::strict {

namespace {

// How many buckets a table has after each growth, by insertions of one number at a time: each is a
// prime near twice the one before. `tests/hash_order_test.cpp` compares them with the library's.
constexpr std::array<std::uint32_t, 28> kBuckets = {
    13,       29,        59,        127,       257,       541,        1109,
    2357,     5087,      10273,     20753,     42043,     85229,      172933,
    351061,   712697,    1447153,   2938679,   5967347,   12117689,   24607243,
    49969847, 101473717, 206062531, 418451333, 849749479, 1725587117, 3504151727};

}  // namespace

std::span<const std::uint32_t> HashOrder::sizes() { return kBuckets; }

void HashOrder::enter(std::uint32_t item) {
  const std::size_t bucket = bucket_of(items_[item].number);
  if (before_[bucket] != kNobody) {
    std::uint32_t& link = after(before_[bucket]);
    items_[item].next = link;
    link = item;
    return;
  }
  if (first_ != kNobody) before_[bucket_of(items_[first_].number)] = item;
  items_[item].next = first_;
  first_ = item;
  before_[bucket] = kHead;
}

void HashOrder::grow() {
  before_.assign(kBuckets[growths_++], kNobody);
  for (std::uint32_t item = std::exchange(first_, kNobody); item != kNobody;) {
    const std::uint32_t next = items_[item].next;
    enter(item);
    item = next;
  }
}

void HashOrder::insert(std::uint64_t number) {
  const std::size_t room = growths_ == 0 ? 0 : before_.size();
  if (items_.size() == room) grow();
  items_.push_back({number, kNobody});
  enter(static_cast<std::uint32_t>(items_.size() - 1));
}

std::vector<std::uint32_t> HashOrder::take() {
  std::vector<std::uint32_t> order;
  order.reserve(items_.size());
  for (std::uint32_t item = first_; item != kNobody; item = items_[item].next) {
    order.push_back(item);
    before_[bucket_of(items_[item].number)] = kNobody;
  }
  items_.clear();
  first_ = kNobody;
  return order;
}

}  // namespace astra_sim::strict
