// One iteration's work and the features that its price depends on.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

struct Item {
  RequestId request;
  std::int32_t tokens;           // scheduled in this step
  std::int32_t computed_before;  // context length when the step starts
  std::uint32_t epoch;
  std::int32_t drafts;  // speculative tokens among `tokens`
  bool emits;           // the step samples a token for this request
  bool padded = false;  // its drafts are nobody's proposal, and none holds

  // Attends like a decode: one token, or drafts that are verified behind one.
  bool decodes() const { return tokens == 1 || drafts > 0; }
};

// What a step has of requests with a LoRA adapter; zeros where the engine has no slots for
// adapters.
struct AdapterUse {
  std::int32_t tokens = 0;
  std::int32_t rows = 0;      // of logits: sequences and the drafts that they verify
  std::int32_t adapters = 0;  // different ones
  std::int32_t experts = 0;   // pairs of adapter and expert that the tokens are expected to touch
  std::int32_t loads = 0;     // adapters that are copied to a slot before the step
  std::int32_t reads = 0;     // of these, those whose files are read first

  static constexpr std::size_t kCounts = 6;
  std::array<std::int32_t, kCounts> counts() const {
    return {tokens, rows, adapters, experts, loads, reads};
  }
};

// What an encoder computes before a step: images and other inputs, of so many tokens. `pairs`:
// pairs of tokens within each input, by the tokens that one input has at most; rounded up.
struct EncoderUse {
  std::int32_t tokens = 0, pairs = 0;

  static constexpr std::size_t kCounts = 2;
};

// Kept incrementally while the batch is built; all counts of tokens or sequences.
struct Features {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::int64_t prefill_tokens = 0;  // q summed over items with more than one token
  std::int64_t prefill_sequences = 0;
  std::int64_t prefill_area = 0;     // sum of q * (2k + q): twice the causal area
  std::int64_t prefill_context = 0;  // sum of k + q: tokens of KV that prefills read
  std::int64_t decode_sequences = 0;
  std::int64_t decode_context =
      0;  // k summed over items with one token; of verified drafts, what the last one sees
  std::int64_t decode_max_context = 0;
  std::int64_t drafts = 0;  // tokens of `tokens` that are drafts; each has logits of its own
  std::int64_t draft_area =
      0;  // attended pairs of verifications beyond those of one decode each, doubled
  std::int64_t longest = 0;  // most tokens of one sequence
  AdapterUse lora;
  EncoderUse encoder;

  // All sequences have equally many tokens, as in the batches that full graphs are captured of.
  bool uniform(std::int64_t query) const { return longest == query && tokens == query * sequences; }

  void add(const Item& item) {
    const std::int64_t q = item.tokens, k = item.computed_before;
    if (item.drafts == 0) return add(q, k);
    tokens += q;
    ++sequences;
    longest = std::max(longest, q);
    drafts += item.drafts;
    ++decode_sequences;
    decode_context += k + q - 1;
    decode_max_context = std::max(decode_max_context, k + q - 1);
    draft_area += q * (2 * k + q + 1) - 2 * (k + q);
  }
  // Decodes of one token each: their contexts' sum and maximum.
  void add_decodes(std::int64_t count, std::int64_t context, std::int64_t max_context) {
    if (count == 0) return;
    tokens += count;
    sequences += count;
    longest = std::max<std::int64_t>(longest, 1);
    decode_sequences += count;
    decode_context += context;
    decode_max_context = std::max(decode_max_context, max_context);
  }
  void add(const std::vector<Item>& items) {
    std::int64_t decodes = 0, context = 0;
    std::int32_t max_context = 0;
    for (const Item& item : items) {
      if (item.tokens == 1 && item.drafts == 0) {
        ++decodes;
        context += item.computed_before;
        max_context = std::max(max_context, item.computed_before);
      } else {
        add(item);
      }
    }
    add_decodes(decodes, context, max_context);
  }
  void add(std::int64_t q, std::int64_t k) {
    tokens += q;
    ++sequences;
    longest = std::max(longest, q);
    if (q == 1) {
      ++decode_sequences;
      decode_context += k;
      decode_max_context = std::max(decode_max_context, k);
    } else {
      ++prefill_sequences;
      prefill_tokens += q;
      prefill_area += q * (2 * k + q);
      prefill_context += k + q;
    }
  }
};

// KV that is copied to the devices layer by layer, beside the steps before; `layers` 0: none is.
struct HostLoad {
  Ps start = 0, end = 0;
  std::int32_t layers = 0;
};

// What the hosts of a batch's workers do before they launch it.
struct HostWork {
  std::int64_t sequences = 0;
  Ps posting = 0;  // of reads of KV
};

struct Batch {
  std::vector<Item> items;  // in vLLM's order: running first, then admitted
  Features features;
  std::vector<RequestId> preempted;  // victims of this step, in order
  std::int32_t drafts_after = 0;     // that each sequence gets at the end of this step
  HostLoad load;                     // each layer waits for its part
  Ps not_before = 0;                 // its scheduler waited for a copy until then
  Ps posting = 0;                    // its hosts post reads of KV so long before they launch it
  // Its tokens came from another group along with KV: nothing is computed, and it ends at once.
  bool takes_no_time = false;

  bool empty() const { return items.empty(); }
  HostWork host_work() const { return {features.sequences, posting}; }
  // A rank without work takes part with one token that belongs to nobody and is not sampled.
  void make_dummy() {
    clear();
    features.tokens = features.decode_sequences = features.longest = 1;
  }
  std::int64_t scheduled_tokens() const { return empty() ? 0 : features.tokens; }
  void clear() {
    items.clear();
    features = {};
    preempted.clear();
    drafts_after = 0;
    load = {};
    not_before = 0;
    posting = 0;
    takes_no_time = false;
  }
};

}  // namespace llmsim
