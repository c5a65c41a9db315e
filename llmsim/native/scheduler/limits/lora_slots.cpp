#include "scheduler/limits/lora_slots.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace llmsim {

std::int32_t LruAdapters::use(std::int32_t adapter) {
  std::int32_t evicted = 0;
  if (contains(adapter)) {
    remove(adapter);
  } else if (static_cast<std::int32_t>(used_at_.size()) >= capacity_) {
    evicted = by_use_.begin()->second;
    remove(evicted);
  }
  used_at_[adapter] = ++uses_;
  by_use_[uses_] = adapter;
  return evicted;
}

void LruAdapters::remove(std::int32_t adapter) {
  const auto found = used_at_.find(adapter);
  if (found == used_at_.end()) return;
  by_use_.erase(found->second);
  used_at_.erase(found);
}

LoraSlots::LoraSlots(const LoraSlotsConfig& config)
    : config_(config), in_slots_(config.slots), in_host_memory_(config.host_slots) {
  if (config.host_slots < config.slots)
    throw std::invalid_argument("host memory keeps fewer adapters than the devices");
}

void LoraSlots::add(std::int32_t adapter, std::int32_t tokens, std::int32_t rows) {
  if (at(adapter) >= tokens_of_.size()) tokens_of_.resize(at(adapter) + 1, 0);
  if (tokens_of_[at(adapter)] == 0) order_.push_back(adapter);
  tokens_of_[at(adapter)] += tokens;
  use_.tokens += tokens;
  use_.rows += rows;
}

AdapterUse LoraSlots::begin_step() {
  for (const std::int32_t adapter : order_) {
    std::int32_t& tokens = tokens_of_[at(adapter)];
    if (use_.adapters < config_.slots) {
      ++use_.adapters;
      load(adapter);
      if (!config_.experts.empty())
        use_.experts += config_.experts[std::min(at(tokens), config_.experts.size() - 1)];
    }
    tokens = 0;
  }
  order_.clear();
  return std::exchange(use_, {});
}

// What leaves host memory leaves its slot, too.
void LoraSlots::load(std::int32_t adapter) {
  if (!in_host_memory_.contains(adapter)) ++use_.reads;
  const std::int32_t evicted = in_host_memory_.use(adapter);
  if (evicted != 0) in_slots_.remove(evicted);
  if (!in_slots_.contains(adapter)) ++use_.loads;
  in_slots_.use(adapter);
}

}  // namespace llmsim
