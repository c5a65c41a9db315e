#include "scheduler/impl/sglang/pools/states.h"

#include <utility>

#include "scheduler/limits/out_of_states.h"

namespace llmsim {

namespace {

// `no_buffer`: a state stands wherever a request has computed to, and nowhere before that.
class CopiedStates final : public SglangStates {
 public:
  explicit CopiedStates(const StatePoolConfig& config) : SglangStates(config) {}

  std::int32_t cached_end(const SglangHeldStates&, std::int32_t computed,
                          std::int32_t known) const override {
    return computed <= known ? computed : 0;
  }
  void found(SglangHeldStates&, std::int32_t, std::int32_t) const override {}
  void compute_prompt(SglangHeldStates&, std::int32_t, std::int32_t) const override {}
  void decoded(SglangHeldStates&, std::int32_t, std::int32_t, bool) override {}
};

// `extra_buffer`: kernels save states while they compute.
class SavedStates : public SglangStates {
 public:
  explicit SavedStates(const StatePoolConfig& config) : SglangStates(config) {}

  // An answer may end in front of the last state, and one spare slot holds no other.
  std::int32_t cached_end(const SglangHeldStates& held, std::int32_t,
                          std::int32_t known) const override {
    if (held.saved <= known) return held.saved;
    return config_.spare > 1 && held.before <= known ? held.before : 0;
  }
  void found(SglangHeldStates& held, std::int32_t prefix, std::int32_t computed) const override {
    const std::int32_t branch = computed / config_.prompt_interval * config_.prompt_interval;
    held.branch = branch > prefix ? branch : 0;
  }
  // One state is saved for each step: the last one, or where the prompt leaves those of others.
  void compute_prompt(SglangHeldStates& held, std::int32_t begin, std::int32_t end) const override {
    const std::int32_t interval = config_.prompt_interval;
    if (end - begin < interval) return;
    held.saved = begin + (end - begin) / interval * interval;
    const bool branches = held.branch > begin && held.branch < held.saved;
    if (branches && (held.branch - begin) % interval == 0) held.saved = held.branch;
  }
  void decoded(SglangHeldStates& held, std::int32_t begin, std::int32_t end, bool) override {
    const std::int32_t interval = config_.answer_interval;
    if (end / interval == begin / interval) return;
    held.before = std::exchange(held.saved, end / interval * interval);
  }
};

// `extra_buffer_lazy`: a step that finds no second slot writes over the state in the first one.
class LazyStates final : public SavedStates {
 public:
  explicit LazyStates(const StatePoolConfig& config) : SavedStates(config) {}

  void decoded(SglangHeldStates& held, std::int32_t begin, std::int32_t end, bool ends) override {
    SavedStates::decoded(held, begin, end, ends);
    if (saves(end)) take(held, of_request());
  }
  void launch_decode(SglangHeldStates& held, std::int32_t end) override {
    if (!saves(end)) return;
    if (available() > 0) {
      take(held, of_request() + 1);
    } else {
      held.saved = 0;
    }
  }
  void join_prompts(SglangHeldStates& held, std::int32_t end) override {
    if (saves(end)) take(held, of_request());
  }
  bool gives_up_prefix() const override { return true; }

 private:
  bool saves(std::int32_t end) const { return end % config_.answer_interval == 0; }
};

// The same with drafts, of which nobody knows how many hold when a step is formed: the second slot
// is taken while a state may be due, and stays until one was.
class LazyDraftStates final : public SavedStates {
 public:
  explicit LazyDraftStates(const StatePoolConfig& config) : SavedStates(config) {}

  void prepare_verification(SglangHeldStates& held, std::int32_t known, bool joins) override {
    if (may_save(known) && !held.has_both) {
      if (available() > 0) {
        take(held, of_request() + 1);
        held.has_both = true;
      } else {
        held.saved = 0;
      }
    }
    if (joins) return;
    const bool writes_other = may_save(known) && held.has_both;
    held.writes_second[static_cast<std::size_t>(held.flights++)] =
        writes_other != held.keeps_second;
  }
  void decoded(SglangHeldStates& held, std::int32_t begin, std::int32_t end, bool ends) override {
    const bool second = held.writes_second[0];
    held.writes_second[0] = held.writes_second[1];
    --held.flights;
    const std::int32_t interval = config_.answer_interval;
    const bool saves = end / interval != begin / interval;
    const bool in_place = second == held.keeps_second;
    if (ends) {  // a state that this step or the next one wrote in place ends nothing known
      if ((saves && in_place) || (!held.has_both && may_save(end))) held.saved = 0;
      return;
    }
    if (!saves) return;
    held.saved = end / interval * interval;
    if (in_place) return;
    held.keeps_second = second;
    held.has_both = false;
    take(held, of_request());
  }
  bool gives_up_prefix() const override { return true; }

 private:
  // Within the step that is formed, or the one in flight before it.
  bool may_save(std::int32_t known) const {
    const std::int32_t interval = config_.answer_interval;
    return known / interval != (known + 2 * config_.verified) / interval;
  }
};

}  // namespace

void SglangStates::prepare_verification(SglangHeldStates&, std::int32_t, bool) {}
void SglangStates::launch_decode(SglangHeldStates&, std::int32_t) {}
void SglangStates::join_prompts(SglangHeldStates&, std::int32_t) {}

std::unique_ptr<SglangStates> SglangStates::make(const StatePoolConfig& config) {
  if (!config.on()) return nullptr;
  if (config.lazy && config.verified > 0) return std::make_unique<LazyDraftStates>(config);
  if (config.lazy) return std::make_unique<LazyStates>(config);
  if (config.spare > 0) return std::make_unique<SavedStates>(config);
  return std::make_unique<CopiedStates>(config);
}

void SglangStates::take(SglangHeldStates& held, std::int32_t slots) {
  free_ -= slots - held.slots;
  held.slots = slots;
  if (free_ < 0) throw OutOfStates("the pool of states holds too few for a request");
}

void SglangStates::release(SglangHeldStates& held) {
  free_ += held.slots;
  held = {};
}

}  // namespace llmsim
