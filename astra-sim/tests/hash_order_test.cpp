// The order of hash sets against the library's own, where that is libstdc++; and by hand.
#include "strict/base/hash_order.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "tests/check.h"

using astra_sim::strict::HashOrder;
using astra_sim::test::Random;

namespace {

std::vector<std::uint64_t> taken(HashOrder& set, const std::vector<std::uint64_t>& numbers) {
  std::vector<std::uint64_t> order;
  for (const std::uint32_t at : set.take()) order.push_back(numbers[at]);
  return order;
}

// 13 buckets: a number alone in its bucket comes first; 13 and 26 stand before 0, which has theirs.
void by_hand() {
  HashOrder set;
  const std::vector<std::uint64_t> numbers = {0, 1, 13, 2, 26};
  for (const std::uint64_t number : numbers) set.insert(number);
  CHECK((taken(set, numbers) == std::vector<std::uint64_t>{2, 1, 26, 13, 0}));
  set.insert(5);  // what was taken is not there any more
  CHECK((taken(set, {5}) == std::vector<std::uint64_t>{5}));
  CHECK(set.take().empty());
}

#ifdef __GLIBCXX__

std::uint64_t draw(Random& random, int kind) {
  if (kind == 0) return static_cast<std::uint64_t>(random.between(0, 40));
  if (kind == 1) return 13 * static_cast<std::uint64_t>(random.between(0, 1000));
  if (kind == 2) return ~std::uint64_t{0} - static_cast<std::uint64_t>(random.between(0, 500));
  return random.next();
}

// One set that is filled and emptied several times, as that of the free steps of a run.
void same_as_the_library(std::uint64_t seed) {
  Random random(seed);
  HashOrder ours;
  std::unordered_set<std::uint64_t> theirs;
  for (std::int64_t round = random.between(1, 4); round > 0; --round) {
    const int kind = static_cast<int>(random.between(0, 3));
    const std::int64_t tries = random.between(0, 8) == 0 ? 3000 : random.between(0, 60);
    std::vector<std::uint64_t> numbers;
    for (std::int64_t i = 0; i < tries; ++i) {
      const std::uint64_t number = draw(random, kind);
      if (!theirs.insert(number).second) continue;
      numbers.push_back(number);
      ours.insert(number);
    }
    CHECK((taken(ours, numbers) == std::vector<std::uint64_t>(theirs.begin(), theirs.end())));
    for (const std::uint64_t number : numbers) theirs.erase(number);
  }
}

void grows_as_the_library() {
  HashOrder ours;
  std::unordered_set<std::uint64_t> theirs;
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = 0; i < 3'000'000; ++i) {
    numbers.push_back(i * 7);
    ours.insert(i * 7);
    theirs.insert(i * 7);
  }
  CHECK((taken(ours, numbers) == std::vector<std::uint64_t>(theirs.begin(), theirs.end())));
}

// The sizes that are too large to be filled here.
void has_the_library_s_sizes() {
  const std::__detail::_Prime_rehash_policy policy;
  std::size_t buckets = 13;
  for (const std::uint32_t ours : HashOrder::sizes()) {
    CHECK_EQUAL(ours, buckets);
    buckets = policy._M_next_bkt(2 * buckets);
  }
}

#endif

}  // namespace

int main() {
  by_hand();
#ifdef __GLIBCXX__
  for (std::uint64_t seed = 0; seed < 3000; ++seed) same_as_the_library(seed);
  grows_as_the_library();
  has_the_library_s_sizes();
#endif
  return astra_sim::test::finish("hash_order_test");
}
