// The queues of a decode server (python/sglang/srt/disaggregation/decode.py): requests that wait
// for memory, whose KV is on its way, and that were retracted to host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/config.h"
#include "scheduler/impl/sglang/drafts.h"
#include "scheduler/impl/sglang/pools/memory.h"
#include "scheduler/scheduler.h"

namespace llmsim {

// Requests take the pages of their prompts in order of arrival, while a number of tokens stays free
// for each that holds memory already, and while the longest of those that run could go on alone.
// A retracted request keeps its KV in host memory and comes back before anybody else takes pages.
// Layers with a window have their own pool: with pages of several tokens a request takes of it what
// the end of its prompt needs, and a share of it stays free likewise; with pages of one token it
// takes as much of both. Of a pool of states a request takes as many slots as one that computes its
// prompt; who found a prefix, but too little memory, keeps the copy of the state at its end.
// With pipeline stages (`event_loop_pp_disagg_decode`), all stages agree on what a micro-batch's
// turn has seen of the queues, and one round of turns less one later it happens: a retracted
// request of that micro-batch comes back, one that had come takes pages, and KV that was here is
// taken over. Not SGLang's: copies to the host and back take no time, and the host has room for all
// of them.
class SglangTakeover {
 public:
  // Tokens that stay free for each request that holds memory (num_reserved_decode_tokens).
  static constexpr Param kReservedTokens{"reserved_tokens", 512, 0, (std::int64_t{1} << 31) - 1};

  SglangTakeover(const SchedulerConfig& config, const SglangDrafts& drafts, std::int64_t new_tokens,
                 SequenceTable& sequences, SglangMemory& memory, std::vector<SglangHeld>& held,
                 SchedulerCounters& counters);

  // Requests that may hold memory at once: small batches have room for others whose KV is on its
  // way (disaggregation_decode_extra_slots).
  static std::int32_t rows(const SchedulerConfig& config);

  void add(RequestId request);
  void retracted(RequestId request);
  // Who waits for memory with a lower rank comes first from now on.
  template <typename Rank>
  void order_by(Rank rank) {
    std::ranges::stable_sort(queue_, {}, rank);
  }
  // A turn, of a greater number than any before, looks at all queues.
  void see(std::int64_t turn);
  // What the turns up to `turn` have seen happens: who has its KV here is appended to `waiting`.
  void pass(std::int64_t turn, const std::vector<RequestId>& running,
            std::vector<RequestId>& waiting);
  // Whether turns behind that one have seen something that has still to happen.
  bool expects(std::int64_t turn) const;
  // Requests that wait for memory, KV or their place, and that have left but hold memory.
  std::int32_t num_queued() const { return size() + num_draining(); }
  // The KV of a request is there.
  void landed(RequestId request);
  // A request leaves whose KV is on its way (`is_transferring`). The next look finds that, and its
  // memory stays until the look behind the word that nothing comes any more (`drained`).
  void withdraw(RequestId request);
  void drained(RequestId request);
  // It waits for memory, or lost it, and leaves.
  bool remove_waiting(RequestId request);
  // Whether its KV has not been taken over.
  bool is_transferring(RequestId request) const {
    return std::ranges::find(transferring_, request, &Transferring::request) != transferring_.end();
  }
  void take_reserved(std::vector<Reserved>& out) {
    out.insert(out.end(), reserved_.begin(), reserved_.end());
    reserved_.clear();
  }

  // The longest prompt that an empty cache has room for.
  std::int32_t longest_prompt() const;
  bool empty() const {
    return queue_.empty() && transferring_.empty() && retracted_.empty() &&
           std::ranges::none_of(draining_, &Draining::drained);
  }
  std::int32_t size() const {
    return static_cast<std::int32_t>(queue_.size() + transferring_.size() + retracted_.size());
  }
  std::int32_t num_transferring() const { return static_cast<std::int32_t>(transferring_.size()); }
  // Whose memory waits for the word that nothing comes any more.
  std::int32_t num_draining() const { return static_cast<std::int32_t>(draining_.size()); }
  // Whose KV has not come, or has still to be drained.
  std::int32_t num_expected() const {
    const auto comes = std::ranges::count_if(
        transferring_, [](const Transferring& one) { return !one.here && !one.drained; });
    const auto drains =
        std::ranges::count_if(draining_, [](const Draining& one) { return !one.drained; });
    return static_cast<std::int32_t>(comes + drains);
  }
  // Whether the last look found requests that had left, which the next one no longer counts.
  bool found_withdrawn() const { return found_withdrawn_; }

 private:
  struct Transferring {
    RequestId request;
    bool here = false, withdrawn = false, drained = false;
  };
  struct Draining {
    RequestId request;
    bool drained;
  };

  // Of what all layers keep, and of what layers with a window do.
  struct Tokens {
    std::int64_t all = 0, windows = 0;
    bool fit(const Tokens& spare) const { return all <= spare.all && windows <= spare.windows; }
  };
  // What requests that run would give back, and what the longest of them still takes then.
  struct Running {
    Tokens retractable, longest;
  };

  // Whether layers with a window get slots for the end of a prompt alone.
  bool takes_ends() const { return memory_.windowed() && memory_.page_size() > 1; }
  // The first of so many tokens for which layers with a window get slots.
  std::int64_t window_start(std::int64_t tokens) const;
  Tokens slots_of(std::int64_t tokens) const { return {tokens, tokens - window_start(tokens)}; }
  Tokens pages_of(std::int64_t tokens) const {
    const Tokens slots = slots_of(tokens);
    return {memory_.ceil(slots.all), memory_.ceil(slots.windows)};
  }
  // Slots of layers with a window that it takes beside those of its prefix.
  std::int64_t missing_windows(RequestId request) const {
    const std::int64_t end = filled(request);
    return memory_.ceil(end) - std::max<std::int64_t>(window_start(end), held_[at(request)].kept);
  }
  bool has_windows_for(RequestId request) const;
  // Those pages, and what has to stay free beside them: without a prefix cache the pool of windows
  // has room for all that running requests keep.
  Tokens with_reserve(const Tokens& pages) const {
    const bool of_windows = memory_.caching() || !takes_ends();
    return {pages.all + reserved_tokens_, pages.windows + (of_windows ? reserved_tokens_ : 0)};
  }
  // What may be taken beside so many requests that hold memory.
  Tokens spare(std::int64_t active, const Tokens& longest) const;
  std::int64_t spare_windows(std::int64_t active, std::int64_t longest) const;
  Running summed(const std::vector<RequestId>& running) const;
  // Of its prompt and its answer, what has KV before it decodes.
  std::int64_t filled(RequestId request) const {
    const Sequence& s = sequences_[request];
    return s.prompt_tokens + std::max(0, s.emitted() - 1);
  }
  std::int64_t answer(RequestId request) const {
    return std::min<std::int64_t>(held_[at(request)].limit, new_tokens_);
  }
  bool seen_by(std::int64_t turn, RequestId request) const {
    const std::int64_t seen = held_[at(request)].seen;
    return seen >= 0 && seen <= turn;
  }
  std::int64_t parked_rows() const { return std::ssize(transferring_) + std::ssize(draining_); }
  void release_drained();
  // Those whose KV is there, and those that have left, no longer wait for it.
  void end_transfers(std::int64_t turn, std::vector<RequestId>& waiting);
  void resume(std::int64_t turn, std::int64_t active, std::vector<RequestId>& waiting);
  void preallocate(std::int64_t turn, const std::vector<RequestId>& running, std::int64_t waiting);
  bool reserve(RequestId request, std::int64_t active, const Running& running);
  void take_pages(RequestId request);

  std::int64_t reserved_tokens_, new_tokens_, turns_;  // one of each micro-batch
  // Slots behind a request that was alone and found no room: with overlap it decodes twice before
  // the first output is heard, and would lose both if the second found none.
  std::int64_t stranded_slots_;
  std::size_t most_transferring_;  // as many as there are buffers for their first tokens
  SequenceTable& sequences_;
  SglangMemory& memory_;
  std::vector<SglangHeld>& held_;
  SchedulerCounters& counters_;
  std::vector<RequestId> queue_, retracted_;
  std::vector<Transferring> transferring_;
  std::vector<Draining> draining_;
  bool found_withdrawn_ = false;
  std::vector<Reserved> reserved_;
};

}  // namespace llmsim
