// Where the LoRA adapters of a step are: in slots of the devices, in host memory, or only in files
// (vLLM's LRUCacheWorkerLoRAManager).
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "program/batch.h"
#include "request/sequence_table.h"

namespace llmsim {

struct LoraSlotsConfig {
  std::int32_t slots = 0;       // of the devices; 0: nobody asks where adapters are
  std::int32_t host_slots = 0;  // adapters that host memory keeps, those in slots among them
  // By tokens of one adapter: experts of whose matrices they are expected to need it; empty: the
  // model has no experts.
  std::vector<std::int32_t> experts;
};

// Adapters by when they were last used.
class LruAdapters {
 public:
  explicit LruAdapters(std::int32_t capacity) : capacity_(capacity) {}

  bool contains(std::int32_t adapter) const { return used_at_.contains(adapter); }
  // The adapter is the last one used; without it before, the longest unused one makes room. Returns
  // that one; 0: there was room.
  std::int32_t use(std::int32_t adapter);
  void remove(std::int32_t adapter);

 private:
  std::int32_t capacity_;
  std::int64_t uses_ = 0;
  std::unordered_map<std::int32_t, std::int64_t> used_at_;  // looked up, never walked
  std::map<std::int64_t, std::int32_t> by_use_;
};

class LoraSlots {
 public:
  // Throws std::invalid_argument where host memory keeps fewer adapters than there are slots.
  explicit LoraSlots(const LoraSlotsConfig& config);

  bool on() const { return config_.slots > 0; }
  // The next step computes tokens of a request with an adapter, and so many rows of its logits.
  void add(std::int32_t adapter, std::int32_t tokens, std::int32_t rows);
  // The step begins: the adapters of its requests are in slots from now on, loaded in the order in
  // which they were added. vLLM walks a set of them, whose order is nobody's. Those that are more
  // than the slots, where vLLM ends (`crowded_lora_steps`), take no time.
  AdapterUse begin_step();
  // Both, for the requests of a batch.
  AdapterUse begin_step(const std::vector<Item>& items, const SequenceTable& sequences) {
    for (const Item& item : items) {
      const std::int32_t adapter = sequences[item.request].adapter;
      if (adapter > 0) add(adapter, item.tokens, 1 + item.drafts);
    }
    return begin_step();
  }

 private:
  void load(std::int32_t adapter);

  LoraSlotsConfig config_;
  LruAdapters in_slots_, in_host_memory_;
  AdapterUse use_;                       // of the step that comes
  std::vector<std::int32_t> order_;      // its adapters
  std::vector<std::int32_t> tokens_of_;  // by adapter; zeros between two steps
};

}  // namespace llmsim
