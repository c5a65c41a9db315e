#include "scheduler/impl/sglang/hicache/storage_threads.h"

#include <algorithm>

namespace llmsim {

// Of several at one time, writes come first, then searches.
void StorageThreads::advance(Ps now) {
  for (Ps at = next(); at <= now; at = next()) {
    if (next_of(writes_) == at) {
      step_writes();
    } else if (next_of(searches_) == at) {
      step_searches();
    } else {
      step_reads();
    }
  }
}

// Pages that are there already are not written again.
void StorageThreads::begin_write() {
  const std::vector<Key>& keys = writes_.first().keys;
  const std::size_t end = std::min(keys.size(), writes_.at + kBatchPages);
  const auto missing =
      static_cast<std::size_t>(std::count_if(keys.begin() + static_cast<std::ptrdiff_t>(writes_.at),
                                             keys.begin() + static_cast<std::ptrdiff_t>(end),
                                             [this](Key key) { return !storage_.holds(key); }));
  stored_ += static_cast<std::int64_t>(missing);
  if (missing > 0)
    writes_.until += config_.write_latency + config_.write_ps_per_token * tokens(missing);
}

void StorageThreads::step_writes() {
  if (!writes_.busy) {
    writes_.begin();
    return begin_write();
  }
  const std::vector<Key>& keys = writes_.first().keys;
  const std::size_t end = std::min(keys.size(), writes_.at + kBatchPages);
  while (writes_.at < end && storage_.write(keys[writes_.at])) ++writes_.at;
  const bool fails = writes_.at < end;
  if (!fails && end < keys.size()) return begin_write();
  written_.push_back(std::move(writes_.first()));
  writes_.end();
}

void StorageThreads::step_searches() {
  StorageSearch& search = *searches_.first();
  if (!searches_.busy) {
    searches_.begin();
    searches_.fails = search.ends;
    if (!search.ends && !search.known_stored) searches_.until += config_.query_latency;
    return;
  }
  const auto missing = [this](Key key) { return !storage_.holds(key); };
  auto end = search.keys.begin();
  if (!searches_.fails)
    end = search.known_stored ? search.keys.end() : std::ranges::find_if(search.keys, missing);
  search.keys.erase(end, search.keys.end());
  search.found = static_cast<std::int32_t>(search.keys.size());
  searched_.push_back(std::move(searches_.first()));
  searches_.end();
}

void StorageThreads::begin_read() {
  reads_.fails = reads_.fails || reads_.first()->ends;
  if (!reads_.fails)
    reads_.until += config_.read_latency + config_.read_ps_per_token * tokens(read_batch());
}

// A page that is missing ends what can be used; so does the scheduler, which waits no more.
void StorageThreads::step_reads() {
  if (!reads_.busy) {
    reads_.begin();
    return begin_read();
  }
  const StorageSearch& search = *reads_.first();
  const std::size_t end = reads_.at + read_batch();
  if (!reads_.fails) {
    bool all_there = true;
    for (std::size_t page = reads_.at; page < end; ++page) {
      all_there = storage_.read(search.keys[page]) && all_there;
      if (all_there && !search.ends) ++reads_.done;
    }
    reads_.fails = !all_there || search.ends;
  }
  reads_.at = end;
  const auto done = static_cast<std::int32_t>(reads_.done);
  progress_.push_back({reads_.first(), done, /*ends=*/false});
  if (end < search.keys.size()) return begin_read();
  progress_.push_back({std::move(reads_.first()), done, /*ends=*/true});
  reads_.end();
}

}  // namespace llmsim
