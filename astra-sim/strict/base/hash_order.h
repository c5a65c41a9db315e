// The order in which libstdc++ (GCC 5 and later) walks a std::unordered_set<std::uint64_t>.
// Upstream issues the steps of custom collectives in that order; it is modelled here, so that
// results do not depend on the standard library in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace astra_sim::strict {

// One list holds all numbers. Those of a bucket (the remainder of the number) stand together: a new
// one comes before the others of its bucket, and before everything where it has none. A table that
// grows enters all numbers again, in the order of the list.
class HashOrder {
 public:
  // Needs a number that is not in the set.
  void insert(std::uint64_t number);

  // The order of the list: 0 stands for the number that was inserted first, and so on. The set is
  // empty then, with as many buckets as before.
  std::vector<std::uint32_t> take();

  // How many buckets a set has after its first growth, its second, and so on.
  static std::span<const std::uint32_t> sizes();

 private:
  static constexpr std::uint32_t kNobody = 0xffffffff;  // no item
  static constexpr std::uint32_t kHead = 0xfffffffe;    // what precedes the first item

  struct Item {
    std::uint64_t number;
    std::uint32_t next;
  };
  std::size_t bucket_of(std::uint64_t number) const {
    return static_cast<std::size_t>(number % before_.size());
  }
  std::uint32_t& after(std::uint32_t item) { return item == kHead ? first_ : items_[item].next; }
  void enter(std::uint32_t item);
  void grow();

  std::vector<Item> items_;
  std::vector<std::uint32_t> before_ = {kNobody};  // per bucket: the item before its first one
  std::uint32_t first_ = kNobody;
  std::size_t growths_ = 0;
};

}  // namespace astra_sim::strict
