// States that requests hold in SGLang, and which of them its prefix cache gets (mem_cache/
// unified_cache/components/mamba.py, memory_pool.py, managers/schedule_batch.py). Without spare
// slots a request copies its state for the cache wherever a part of its prompt ends, and gives its
// own away when it ends. With spare slots kernels write a state there every few tokens, and the
// cache gets the last one; a request may take its second spare slot for the steps alone that write
// there.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "scheduler/state_pool_config.h"

namespace llmsim {

// What a request holds of the pool.
struct SglangHeldStates {
  std::int32_t slots = 0;
  // Tokens in front of the last state in its spare slots that the cache has not got, and of the one
  // before it; 0: none.
  std::int32_t saved = 0, before = 0;
  // Up to where others had computed its prompt when it was admitted, as far as the states at its
  // end were gone; 0: nobody had.
  std::int32_t branch = 0;
  // With lazy slots and drafts: whether the state that counts is in the second spare slot, whether
  // both are taken, and where steps in flight would write one, the oldest first.
  bool keeps_second = false, has_both = false;
  std::int32_t flights = 0;
  std::array<bool, 2> writes_second = {};
};

class SglangStates {
 public:
  static std::unique_ptr<SglangStates> make(const StatePoolConfig& config);
  virtual ~SglangStates() = default;

  std::int64_t available() const { return free_; }
  std::int64_t capacity() const { return config_.slots; }
  std::int32_t of_request() const { return 1 + config_.spare; }
  // A request takes slots until it holds so many; gives one to the cache; or gives all back.
  void take(SglangHeldStates& held, std::int32_t slots);
  void give_away(SglangHeldStates& held) { --held.slots; }
  void release(SglangHeldStates& held);
  // Slots that the cache takes, or gives back.
  void take(std::int64_t slots) { take_back(-slots); }
  void take_back(std::int64_t slots) { free_ += slots; }

  // Up to where the cache gets what a request has computed, of which `known` tokens count; 0:
  // nothing.
  virtual std::int32_t cached_end(const SglangHeldStates& held, std::int32_t computed,
                                  std::int32_t known) const = 0;
  // A prefix was found, and others had computed `computed` tokens of the prompt.
  virtual void found(SglangHeldStates& held, std::int32_t prefix, std::int32_t computed) const = 0;
  // A step computes these tokens of a prompt; or has computed these of an answer.
  virtual void compute_prompt(SglangHeldStates& held, std::int32_t begin,
                              std::int32_t end) const = 0;
  // With its last tokens, if `ends`.
  virtual void decoded(SglangHeldStates& held, std::int32_t begin, std::int32_t end, bool ends) = 0;
  // A step is to verify drafts behind so many tokens; or joins one of prompts, and verifies none.
  virtual void prepare_verification(SglangHeldStates& held, std::int32_t known, bool joins);
  // A step is to compute an answer's token in front of `end`; and joins one of prompts, where it
  // saves nothing.
  virtual void launch_decode(SglangHeldStates& held, std::int32_t end);
  virtual void join_prompts(SglangHeldStates& held, std::int32_t end);
  // Whether the state behind its prefix may make room for the one that a request gives the cache.
  virtual bool gives_up_prefix() const { return false; }

 protected:
  explicit SglangStates(const StatePoolConfig& config) : config_(config), free_(config.slots) {}

  StatePoolConfig config_;

 private:
  std::int64_t free_;
};

}  // namespace llmsim
