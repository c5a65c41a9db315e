// SGLang's threads between host memory and storage, in virtual time (managers/cache_controller.py:
// backup_thread_func, prefetch_thread_func, prefetch_io_aux_func).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kv/radix/page_storage.h"
#include "kv/radix/radix_tree.h"
#include "scheduler/host_cache_config.h"

namespace llmsim {

// A request's search for the pages behind `first`, and what it has of them in host memory.
struct StorageSearch {
  RequestId request = 0;
  RadixTree::NodeId anchor = RadixTree::kRoot;  // the node that they lie behind
  RadixTree::HostPin pin;
  std::int32_t first = 0;
  std::vector<Key> keys;      // looked for; then those that were found, and have memory
  std::int32_t asked = 0;     // pages that were looked for
  bool known_stored = false;  // nobody has to look for them
  bool ends = false;          // the scheduler waits for no more of it
  bool late = false;          // because a time has passed
  std::int32_t found = 0;     // leading pages that storage holds
  bool has_memory = false;
  std::int32_t done = 0;  // leading pages that the scheduler knows to be in host memory
};

// One operation at a time of each kind: writes, searches and reads. Writes and reads go by 128
// pages. What lies in the future of the scheduler's clock has not happened yet.
class StorageThreads {
 public:
  using Prefetch = std::shared_ptr<StorageSearch>;
  struct Backup {
    RadixTree::NodeId node;
    RadixTree::HostPin pin;
    std::vector<Key> keys;
  };
  // So many pages of a prefetch have come; or it is over.
  struct Progress {
    Prefetch prefetch;
    std::int32_t pages;
    bool ends;
  };

  StorageThreads(const HostStorageConfig& config, std::int32_t page_size)
      : config_(config),
        page_size_(page_size),
        storage_(config.capacity_bytes, config.page_bytes) {}

  // All that happens until `now`.
  void advance(Ps now);
  // When anything happens next; the largest Ps where nothing does.
  Ps next() const { return std::min({next_of(writes_), next_of(searches_), next_of(reads_)}); }
  void write(Backup backup, Ps at) { writes_.queue.push_back({at, std::move(backup)}); }
  void search(Prefetch prefetch, Ps at) { searches_.queue.push_back({at, std::move(prefetch)}); }
  void read(Prefetch prefetch, Ps at) { reads_.queue.push_back({at, std::move(prefetch)}); }
  // What has ended since this was asked last.
  std::vector<Backup> take_written() { return std::exchange(written_, {}); }
  std::vector<Prefetch> take_searched() { return std::exchange(searched_, {}); }
  std::vector<Progress> take_progress() { return std::exchange(progress_, {}); }

  std::int64_t stored_pages() const { return stored_; }
  std::int64_t erased_pages() const { return storage_.erased(); }

 private:
  static constexpr std::size_t kBatchPages = 128;
  template <typename Operation>
  struct Thread {
    struct Asked {
      Ps at;
      Operation operation;
    };
    std::deque<Asked> queue;
    bool busy = false;             // with the first one
    Ps until = 0;                  // when it ends what it does, or has ended it
    std::size_t at = 0, done = 0;  // its next page, and leading pages that went well
    bool fails = false;

    Operation& first() { return queue.front().operation; }
    void begin() {
      until = std::max(until, queue.front().at);
      at = done = 0;
      fails = false;
      busy = true;
    }
    void end() {
      queue.pop_front();
      busy = false;
    }
  };
  template <typename Operation>
  static Ps next_of(const Thread<Operation>& thread) {
    if (thread.busy) return thread.until;
    if (thread.queue.empty()) return std::numeric_limits<Ps>::max();
    return std::max(thread.until, thread.queue.front().at);
  }
  void step_writes();
  void step_searches();
  void step_reads();
  void begin_write();
  void begin_read();
  std::size_t read_batch() const {
    return std::min(reads_.queue.front().operation->keys.size() - reads_.at, kBatchPages);
  }
  std::int64_t tokens(std::size_t pages) const {
    return static_cast<std::int64_t>(pages) * page_size_;
  }

  HostStorageConfig config_;
  std::int32_t page_size_;
  PageStorage storage_;
  Thread<Backup> writes_;
  Thread<Prefetch> searches_, reads_;
  std::vector<Backup> written_;
  std::vector<Prefetch> searched_;
  std::vector<Progress> progress_;
  std::int64_t stored_ = 0;
};

}  // namespace llmsim
