// Every request of a run: its sequence, the identity of its content, and the oracle of its length.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "request/sequence.h"

namespace llmsim {

// Content keys of the workload: keys[offsets[r] .. offsets[r+1]) name request r's first full blocks
// of `granularity` tokens; equal keys mean equal content and equal prefix.
struct ContentKeys {
  std::vector<std::int64_t> offsets;
  std::vector<Key> keys;
  std::int32_t granularity = 16;
  std::vector<std::vector<Key>> live;  // by row, of requests that are asked while the run goes on

  std::span<const Key> of(RequestId request) const {
    if (!live.empty()) return live[at(request)];
    if (offsets.empty()) return {};
    return {keys.data() + offsets[request],
            static_cast<std::size_t>(offsets[request + 1] - offsets[request])};
  }
};

class SequenceTable {
 public:
  SequenceTable(std::vector<std::int32_t> output_tokens, std::shared_ptr<const ContentKeys> content)
      : sequences_(output_tokens.size()),
        output_tokens_(std::move(output_tokens)),
        content_(std::move(content)) {}

  Sequence& operator[](RequestId request) { return sequences_[request]; }
  const Sequence& operator[](RequestId request) const { return sequences_[request]; }
  std::size_t size() const { return sequences_.size(); }
  // Who is passed over or parked for the first time since it ran stands behind all others of them.
  void set_aside(RequestId request) {
    if (sequences_[request].aside == 0) sequences_[request].aside = ++num_set_aside_;
  }
  const ContentKeys& content() const { return *content_; }
  std::shared_ptr<const ContentKeys> shared_content() const { return content_; }

  // The oracle. `tokens_left` counts from what was received; schedulers know it only as max_tokens,
  // like vLLM with ignore_eos, and may use it to foresee a stop by length.
  std::int32_t max_tokens(RequestId request) const { return output_tokens_[request]; }
  // Of a request that is asked while the simulation runs; before its arrival.
  void set_max_tokens(RequestId request, std::int32_t tokens) { output_tokens_[request] = tokens; }

 private:
  std::vector<Sequence> sequences_;
  std::int64_t num_set_aside_ = 0;
  std::vector<std::int32_t> output_tokens_;
  std::shared_ptr<const ContentKeys> content_;
};

}  // namespace llmsim
