// SGLang's hierarchical cache (HiCache): a pool of pages in host memory below the radix tree
// (python/sglang/srt/mem_cache/unified_radix_cache.py, managers/cache_controller.py).
//
// Write-through copies a node's pages to the host when they are inserted, selective write-through
// when they are inserted or found for the second time; the node is locked until the copy has ended.
// Write-back copies them when they are evicted, and the scheduler waits for the copy. What is
// evicted from the device with a copy stays in the tree, and a request that finds it there loads it
// back when it is admitted. A full host pool gives up its least recently used leaves; with
// write-back, first the copies of pages that are on the device. Windows and states have host pools
// of their own, of which the least recently used parts go. A copy of a node has the window and the
// state that it ends with, and so has a load. The tree's rules are in kv/radix/radix_tree_host.cpp
// and radix_tree_parts.cpp, and those of storage behind the pool in storage.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kv/radix/radix_tree.h"
#include "program/batch.h"
#include "scheduler/abilities.h"
#include "scheduler/host_cache_config.h"
#include "scheduler/impl/sglang/hicache/storage.h"

namespace llmsim {

// Copies in one direction, one after the other.
class HostCopies {
 public:
  // What one takes for each page of all layers, for one of those with a window, and for a state.
  struct Times {
    Ps page, window_page, state;
  };
  HostCopies(Ps latency, const Times& times) : latency_(latency), times_(times) {}

  // The next copy has so much more.
  void ask(const RadixTree::Freed& parts) {
    asked_ += times_.page * parts.pages + times_.window_page * parts.window_pages +
              times_.state * parts.states;
  }
  // Copies what is asked for, not before `start`; returns when that ends.
  Ps copy(Ps start) {
    begins_ = std::max(start, free_);
    return free_ = begins_ + latency_ + std::exchange(asked_, 0);
  }
  // When the newest copy begins, and when it ends.
  Ps begins() const { return begins_; }
  Ps ends() const { return free_; }

 private:
  Ps latency_;
  Times times_;
  Ps asked_ = 0, free_ = 0, begins_ = 0;
};

class SglangHostCache final : public RadixTree::Hits, public HostCopying {
 public:
  // Makes room on the device for so many pages, else for so many of layers with a window, else for
  // states; false where that cannot be.
  using MakeRoom = std::function<bool(const RadixTree::Freed& parts)>;

  SglangHostCache(const HostCacheConfig& config, std::int32_t page_size, RadixTree& tree,
                  MakeRoom make_room, HostCacheCounters& counters);

  // A pass of the scheduler begins, before anything is asked for.
  void begin_pass(Ps now);
  // Ends the copies that have ended, and begins those that are asked for.
  void poll(Ps now);
  // Begins the writes that are asked for.
  void flush(Ps now);
  // Begins the loads that are asked for; the step that needs them may start with the first layer of
  // what it gets.
  HostLoad start_loads();
  // Whether writes are asked for, which the next pass begins.
  bool asks() const { return !asked_writes_.empty(); }
  // When the scheduler goes on, which waits for copies with write-back.
  Ps blocked_until() const { return blocked_; }

  // Removes the least recently used leaf of the device, what it has is free then: no pages where no
  // leaf can go. Nodes that could not go are spared until a new walk begins.
  RadixTree::Freed evict();
  // Likewise of windows or states, of which a leaf goes with its node.
  RadixTree::Freed evict_part(RadixTree::Kind kind);
  void begin_walk() { declined_.clear(); }
  // Brings the pages from a node up to the first one on the device back there, the window and the
  // state that it ends with. None where that is too little, or finds no room. A request that has a
  // slot of its own for that gets the state, too.
  std::optional<RadixTree::Freed> load_back(RadixTree::NodeId node, bool has_own_slot);
  RadixTree::HostPin pin(RadixTree::NodeId node) { return tree_.pin_host(node, back()); }
  void unpin(const RadixTree::HostPin& pin) { tree_.unpin_host(pin, back()); }

  void hit(RadixTree::NodeId node) override;
  void inserted(RadixTree::NodeId node) override;
  void device_runs_until(Ps end) override { device_busy_ = end; }
  Ps next_copy() const override;
  Ps now() const { return now_; }
  // When all copies that have begun are over.
  Ps last_copy() const { return std::max(writes_.ends(), loads_.ends()); }
  // Whether the last pass left no copy under way, and nothing that is written to storage.
  bool settled() const {
    return writing_.empty() && loading_.empty() && (!storage_ || !storage_->writes());
  }
  SglangStorage* storage() { return storage_.get(); }  // null: there is none
  bool consistent() const {
    const std::int64_t held = storage_ ? storage_->held() : 0;
    return pages_.free + tree_.host_held() + held == pages_.all &&
           windows_.free + tree_.parts_on_host(RadixTree::Kind::kWindows) == windows_.all &&
           states_.free + tree_.parts_on_host(RadixTree::Kind::kStates) == states_.all;
  }

 private:
  using NodeId = RadixTree::NodeId;
  using Kind = RadixTree::Kind;
  // The node is locked meanwhile, but for a copy that the scheduler waits for.
  struct Write {
    NodeId node;
    RadixTree::WindowTop top;
  };
  struct Writes {
    Ps end;
    std::vector<Write> writes;
  };
  struct Load {
    NodeId node;
    RadixTree::WindowTop top;
    RadixTree::HostPin pin;
  };
  struct Loads {
    Ps end;
    std::vector<Load> loads;
  };

  bool back() const { return config_.write == HostCacheWrite::kBack; }
  // A copy begins when the steps have ended that were launched before it.
  Ps earliest() const { return std::max({now_, device_busy_, blocked_}); }
  bool write(NodeId node);
  // Room in the host pools for what is copied.
  bool take_host(const RadixTree::Unwritten& copied);
  bool take_host(Kind kind, HostPages& pool, std::int32_t amount);
  void free_host(const RadixTree::Freed& parts);
  void evict_host(const RadixTree::Freed& parts);  // which leave it for others
  void write_with_ancestors(NodeId node);
  void end_writes(const Writes& writes);
  void end_load(const Load& load);
  bool write_and_wait(NodeId node);
  // A leaf leaves the device: what is free then, no pages where it cannot.
  RadixTree::Freed evict_leaf(NodeId node);
  // Of write-back, a copy is made of what leaves the device alone; false where it must stay.
  bool back_up(Kind kind, NodeId node);
  // Removes a leaf of the device that no copy can be made of, and all below it; false where some of
  // that is in use.
  bool drop(NodeId node);
  std::int32_t evict_host(std::int32_t pages);
  std::int32_t drop_duplicates(std::int32_t pages);

  HostCacheConfig config_;
  std::int32_t page_size_;
  RadixTree& tree_;
  MakeRoom make_room_;
  HostPages pages_, windows_, states_;
  HostCopies writes_, loads_;
  std::vector<Write> asked_writes_;
  std::vector<Load> asked_loads_;
  std::vector<NodeId> declined_;  // nodes on the device
  std::deque<Writes> writing_;
  std::deque<Loads> loading_;
  Ps now_ = 0, device_busy_ = 0, blocked_ = 0;
  HostCacheCounters& counters_;
  std::unique_ptr<SglangStorage> storage_;
};

}  // namespace llmsim
