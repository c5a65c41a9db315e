// What attention costs in one layer, given the batch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/interpolation.h"
#include "program/batch.h"

namespace llmsim {

inline constexpr int kSkewBits = 20;

// Time of one layer's attention, and of which provenance its parts are; the parts add up to it.
struct AttentionPrice {
  Ps ps = 0;
  Ps prompts_ps = 0;  // of it, where prompts and decodes were measured apart
  std::array<Ps, kNumProvenances> parts{};
  std::int64_t beyond_permille =
      1000;  // the farthest that a table was continued, of its last point

  void add(const Cell& cell) { add(cell.ps, cell); }
  void add(Ps value, const Cell& like) {
    ps += value;
    parts[static_cast<std::size_t>(like.provenance)] += value;
    beyond_permille = std::max(beyond_permille, like.beyond_permille);
  }
};

// What the layers of one kind see of a sequence: all of it, the last `size` tokens, or their own
// `size`-aligned chunk.
struct Sight {
  enum class Kind : std::uint8_t { kAll, kWindow, kChunk };
  Kind kind = Kind::kAll;
  std::int64_t size = 0;

  // Cached tokens that a new one after k others sees.
  std::int64_t context(std::int64_t k) const {
    if (kind == Kind::kAll) return k;
    return kind == Kind::kWindow ? std::min(k, size - 1) : k % size;
  }
  // As Features::prefill_area, q * (2k + q) for q tokens after k that see everything.
  std::int64_t area(std::int64_t q, std::int64_t k) const;
  // The batch as these layers see it.
  Features features(const Batch& batch) const;
};

class AttentionCost {
 public:
  // `skew_ps` is kappa in ps per token of (longest - mean) context, times 2^20 (spec: decode rows
  // of unequal length).
  explicit AttentionCost(std::int64_t skew_ps, Sight sight = {})
      : skew_ps_(skew_ps), sight_(sight) {}
  virtual ~AttentionCost() = default;
  AttentionPrice price(const Batch& batch) const {
    if (batch.features.drafts > 0) return price_verified(batch);
    return sight_.kind == Sight::Kind::kAll ? price(batch, batch.features)
                                            : price(batch, sight_.features(batch));
  }
  // The batch as these layers see it.
  Features seen(const Batch& batch) const {
    return sight_.kind == Sight::Kind::kAll ? batch.features : sight_.features(batch);
  }
  // Query heads that share a KV head: rows of one tile, which the queries of a verified sequence
  // fill up together.
  void set_queries_per_kv_head(std::int64_t queries) { queries_per_kv_head_ = queries; }

 protected:
  // `seen` are the features of the batch as these layers see it.
  virtual AttentionPrice price(const Batch& batch, const Features& seen) const = 0;
  const Sight& sight() const { return sight_; }
  // One thread block streams one KV head, so the longest sequence sticks out by kappa * (max -
  // mean).
  Ps skew(const Features& f) const {
    if (f.decode_sequences < 2 || skew_ps_ == 0) return 0;
    const int128 excess =
        static_cast<int128>(f.decode_max_context) * f.decode_sequences - f.decode_context;
    return round_div(excess * skew_ps_, static_cast<int128>(f.decode_sequences) << kSkewBits);
  }

 private:
  AttentionPrice price_verified(const Batch& batch) const;

  std::int64_t skew_ps_;
  Sight sight_;
  std::int64_t queries_per_kv_head_ = 1;
};

// A profile of mixed batches: (prefill chunk, its cached context, decode sequences, their mean
// context).
class MixedGridAttention final : public AttentionCost {
 public:
  // `prompts_apart`: several prompts of a step cost what each does, but for the time of the
  // shortest call, which they share; else what one prompt of their tokens and pairs does.
  MixedGridAttention(Grid<4> grid, std::int64_t skew_ps, Sight sight = {},
                     bool prompts_apart = false)
      : AttentionCost(skew_ps, sight), grid_(std::move(grid)), prompts_apart_(prompts_apart) {}

 protected:
  AttentionPrice price(const Batch& batch, const Features& seen) const override;

 private:
  Cell as_one(std::int64_t q, std::int64_t area, const Place& count, const Place& length) const;
  Cell apart(const Batch& batch, const Features& seen) const;
  Ps shortest() const;

  Grid<4> grid_;
  bool prompts_apart_;
};

// A kernel's times over a prompt's (new, cached) tokens.
class PromptGrid {
 public:
  // What one prompt takes alone, and the part of it that several share.
  struct Alone {
    Cell cell;
    Ps shared = 0;
  };
  // `shared`, over the axes of `whole`: the part of a prompt's time that is not its own, such as a
  // launch and multiprocessors that idle. The prompts of a call take the largest of these parts
  // once; without it, each takes its own.
  explicit PromptGrid(Grid<2> whole, std::optional<Grid<2>> shared = std::nullopt)
      : whole_(std::move(whole)), shared_(std::move(shared)) {}
  Alone alone(const Item& item, const Sight& sight) const;

 private:
  Grid<2> whole_;
  std::optional<Grid<2>> shared_;
};

// Which prompts of latent attention run on the cached latents as they are; the others expand them
// to keys and values. A limit of 0 holds for none.
struct LatentPrompts {
  std::int64_t new_tokens = 0;  // each prompt of at most so many new tokens
  std::int64_t cached_tokens =
      0;                         // those of a step that have some cached, together fewer than this
  std::int64_t step_tokens = 0;  // those of a step of at most so many new tokens together

  bool hold(const Item& item, const Features& step) const {
    const std::int64_t cached = step.prefill_context - step.prefill_tokens;
    return item.tokens <= new_tokens || step.prefill_tokens <= step_tokens ||
           (cached > 0 && cached < cached_tokens);
  }
};

// Prefill and decode measured apart, as silicon databases do; their times add up.
class SplitGridAttention final : public AttentionCost {
 public:
  // Beside prefills, decode rows cost at least `mixed_ps` / 2^20 per token of context (0: no such
  // rule). The prompts for which `rule` holds take the second grid, in a call of their own.
  SplitGridAttention(std::array<PromptGrid, 2> plain_and_on_latents, LatentPrompts rule,
                     Grid<2> decode, std::int64_t mixed_ps, std::int64_t skew_ps, Sight sight = {})
      : AttentionCost(skew_ps, sight),
        prompts_(std::move(plain_and_on_latents)),
        rule_(rule),
        decode_(std::move(decode)),
        mixed_ps_(mixed_ps) {}

 protected:
  AttentionPrice price(const Batch& batch, const Features& seen) const override;

 private:
  void add_prefills(AttentionPrice& price, const Batch& batch) const;

  std::array<PromptGrid, 2> prompts_;  // plain, and on the latents
  LatentPrompts rule_;
  Grid<2> decode_;
  std::int64_t mixed_ps_;
};

}  // namespace llmsim
