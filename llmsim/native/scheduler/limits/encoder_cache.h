// Parts of prompts that an encoder computes, such as images: which of them a step encodes, and
// whose outputs are kept (vLLM's EncoderCacheManager, and what its scheduler asks of it).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "program/batch.h"

namespace llmsim {

// Takes `tokens` of its prompt from `offset` on; equal content has equal outputs.
struct EncoderInput {
  std::int32_t offset, tokens;
  std::int64_t content;
};

// The inputs of each request, by row, in the order of their offsets.
struct EncoderInputs {
  std::vector<std::int64_t> offsets;  // of each row's inputs
  std::vector<EncoderInput> inputs;

  std::span<const EncoderInput> of(RequestId request) const {
    const auto begin = static_cast<std::size_t>(offsets[at(request)]);
    const auto end = static_cast<std::size_t>(offsets[at(request) + 1]);
    return std::span(inputs).subspan(begin, end - begin);
  }
};

// What releases of vLLM after 0.24 decide otherwise than 0.24 (docs/reference/conformance.md says
// which); each is off in 0.24.
struct EncoderRules {
  // A step also encodes an input of which its drafter alone reads tokens.
  bool encodes_ahead = false;
  // A request that has an input several times holds its output until it needs none of them.
  bool holds_repeated = false;
  // An input is also kept whole where its output is there already, and a request holds each of its
  // equal inputs from the step on that encodes the first one.
  bool counts_repeated = false;
  // A step that begins with an input keeps it whole, too.
  bool keeps_first_whole = false;
  // An output is let go when the tokens of its input are computed, and a step ends right in front
  // of an input without room; else both leave the tokens that a drafter reads ahead.
  bool frees_at_once = false;
};

struct EncoderConfig {
  EncoderRules rules{};
  std::int32_t step_tokens = 0;   // that one step encodes at most; 0: not modelled
  std::int32_t cache_tokens = 0;  // of outputs that are kept at most
  bool whole_inputs = false;      // a step computes all tokens of an input, or none
  // Tokens of one input at most, by which pairs of tokens are counted; 0: its time is not modelled.
  std::int32_t pair_tokens = 0;
  std::shared_ptr<const EncoderInputs> inputs = nullptr;  // null: nobody has any
};

struct EncoderCounters {
  std::int64_t inputs = 0, tokens = 0;  // encoded
  std::int64_t hits = 0;                // inputs whose outputs were there
};

// An output is held while a request has yet to compute tokens of it, and stays until its room is
// needed: those that were held longest ago go first.
class EncoderCache {
 public:
  // Each budget holds at least the largest input, as vLLM sees to it. Throws std::invalid_argument
  // where the largest one has more than `pair_tokens`.
  explicit EncoderCache(const EncoderConfig& config);

  bool on() const { return config_.inputs != nullptr; }
  void begin_step() {
    left_ = config_.step_tokens;
    in_step_.clear();
  }
  // `tokens` of a request behind `computed` ones, or fewer: a step ends in front of an input that
  // it cannot encode. Its drafter reads `ahead` tokens behind them. What is there already is held
  // from now on; what is to be encoded is planned until the next call.
  std::int32_t cut(RequestId request, std::int32_t computed, std::int32_t tokens,
                   std::int32_t ahead);
  // The step runs the request of the last `cut`.
  void encode_planned(RequestId request);
  // The request leaves the step, in which it had been.
  void unschedule(RequestId request);
  // What it computes in the step; nothing where its time is not modelled.
  EncoderUse use() const;
  // So many of its tokens have been computed for good; its drafter reads `ahead` tokens behind
  // them.
  void processed(RequestId request, std::int32_t tokens, std::int32_t ahead);
  // It holds nothing any more.
  void release(RequestId request);
  bool holds(RequestId request) const { return held_.contains(request); }
  const EncoderCounters& counters() const { return counters_; }

 private:
  struct Output {
    std::int32_t tokens;
    std::set<RequestId> holders;
    std::int64_t free_since = 0;  // its place in `freeable_`, without holders
  };
  const EncoderInput& input(RequestId request, std::int32_t index) const {
    return config_.inputs->of(request)[at(index)];
  }
  // A step of `tokens` behind `computed` ones would hold a part of it alone.
  bool splits(const EncoderInput& one, std::int32_t computed, std::int32_t tokens) const;
  bool hold_cached(RequestId request, std::int32_t index);
  // Makes room for `tokens`, and `planned_tokens_` before them.
  bool fits(std::int32_t tokens);
  void let_go(RequestId request, std::int32_t index);

  EncoderConfig config_;
  EncoderCounters counters_;
  std::int32_t left_ = 0;                         // that this step may encode
  std::int32_t num_free_ = 0, num_freeable_ = 0;  // tokens; freeable ones with those that are free
  std::unordered_map<std::int64_t, Output> outputs_;  // by content; looked up, never walked
  std::map<std::int64_t, std::int64_t> freeable_;     // content, by when it was let go
  std::int64_t times_freed_ = 0;
  std::unordered_map<RequestId, std::set<std::int32_t>> held_;  // inputs; no set is empty
  struct InStep {
    std::int32_t tokens = 0;
    std::int64_t pairs = 0;
  };
  std::unordered_map<RequestId, InStep> in_step_;  // what it encodes for a request
  std::vector<std::int32_t> planned_, repeated_;   // inputs; repeated: with a planned content
  std::int32_t planned_tokens_ = 0, left_as_planned_ = 0;
  std::int64_t planned_pairs_ = 0;
};

}  // namespace llmsim
