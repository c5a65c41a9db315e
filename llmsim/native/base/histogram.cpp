#include "base/histogram.h"

#include <algorithm>

namespace llmsim {

void Histogram::add(Ps value, std::int64_t count) {
  const std::uint64_t hash = static_cast<std::uint64_t>(value) * 0x9E3779B97F4A7C15U;
  std::size_t slot = static_cast<std::size_t>(hash >> (64 - kBits));
  while (table_[slot].count != 0 && table_[slot].value != value) slot = (slot + 1) % kSlots;
  used_ += table_[slot].count == 0;
  table_[slot].value = value;
  table_[slot].count += count;
  if (2 * used_ > kSlots) drain();
}

void Histogram::drain() {
  Sorted entries;
  entries.reserve(used_);
  for (Entry& entry : table_) {
    if (entry.count != 0) entries.push_back(entry);
    entry = {};
  }
  used_ = 0;
  std::ranges::sort(entries, {}, &Entry::value);
  sorted_.push_back(std::move(entries));
  while (sorted_.size() > 1 && sorted_[sorted_.size() - 2].size() <= 2 * sorted_.back().size())
    merge();
}

void Histogram::merge() {
  const Sorted second = std::move(sorted_.back());
  sorted_.pop_back();
  const Sorted first = std::move(sorted_.back());
  Sorted& both = sorted_.back();
  both = {};
  both.reserve(first.size() + second.size());
  auto a = first.begin(), b = second.begin();
  while (a != first.end() || b != second.end()) {
    const bool from_first = b == second.end() || (a != first.end() && a->value <= b->value);
    const Entry& next = from_first ? *a++ : *b++;
    if (!both.empty() && both.back().value == next.value) {
      both.back().count += next.count;
    } else {
      both.push_back(next);
    }
  }
}

WeightedValues Histogram::take() {
  drain();
  while (sorted_.size() > 1) merge();
  WeightedValues all;
  all.value.reserve(sorted_.front().size());
  all.count.reserve(sorted_.front().size());
  for (const Entry& entry : sorted_.front()) {
    all.value.push_back(entry.value);
    all.count.push_back(entry.count);
  }
  sorted_.clear();
  return all;
}

}  // namespace llmsim
