#include "scheduler/impl/sglang/states.h"

#include <stdexcept>
#include <utility>

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
  void decoded(SglangHeldStates&, std::int32_t, std::int32_t) const override {}
};

// `extra_buffer`: kernels save states while they compute.
class SavedStates final : public SglangStates {
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
  void decoded(SglangHeldStates& held, std::int32_t begin, std::int32_t end) const override {
    const std::int32_t interval = config_.answer_interval;
    if (end / interval == begin / interval) return;
    held.before = std::exchange(held.saved, end / interval * interval);
  }
};

}  // namespace

std::unique_ptr<SglangStates> SglangStates::make(const StatePoolConfig& config) {
  if (!config.on()) return nullptr;
  if (config.spare > 0) return std::make_unique<SavedStates>(config);
  return std::make_unique<CopiedStates>(config);
}

void SglangStates::take(SglangHeldStates& held, std::int32_t slots) {
  free_ -= slots - held.slots;
  held.slots = slots;
  if (free_ < 0) throw std::runtime_error("the pool of states holds too few for a request");
}

void SglangStates::release(SglangHeldStates& held) {
  free_ += held.slots;
  held = {};
}

}  // namespace llmsim
