// What attention costs in one layer, given the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "batch.h"
#include "grid.h"

namespace llmsim {

inline constexpr int kSkewBits = 20;

// Accumulates where attention times came from.
struct AttentionPrice {
  Ps ps = 0;
  bool extrapolated = false;
};

class AttentionCost {
 public:
  // `skew_ps` is kappa in ps per token of (longest - mean) context, times 2^20 (spec: decode rows of unequal length).
  explicit AttentionCost(std::int64_t skew_ps) : skew_ps_(skew_ps) {}
  virtual ~AttentionCost() = default;
  virtual AttentionPrice price(const Batch& batch) const = 0;

 protected:
  // One thread block streams one KV head, so the longest sequence sticks out by kappa * (max - mean).
  Ps skew(const Features& f) const {
    if (f.decode_sequences < 2 || skew_ps_ == 0) return 0;
    const int128 excess = static_cast<int128>(f.decode_max_context) * f.decode_sequences - f.decode_context;
    return round_div(excess * skew_ps_, static_cast<int128>(f.decode_sequences) << kSkewBits);
  }

 private:
  std::int64_t skew_ps_;
};

// A profile of mixed batches: (prefill chunk, its cached context, decode sequences, their mean context).
class MixedGridAttention final : public AttentionCost {
 public:
  MixedGridAttention(Grid<4> grid, std::int64_t skew_ps) : AttentionCost(skew_ps), grid_(std::move(grid)) {}
  AttentionPrice price(const Batch& batch) const override;

 private:
  Grid<4> grid_;
};

// Prefill and decode measured apart, as silicon databases do; their times add up.
class SplitGridAttention final : public AttentionCost {
 public:
  // Beside prefills, decode rows cost at least `mixed_ps` / 2^20 per token of context (0: no such rule).
  SplitGridAttention(Grid<2> prefill, Grid<2> decode, std::int64_t mixed_ps, std::int64_t skew_ps)
      : AttentionCost(skew_ps), prefill_(std::move(prefill)), decode_(std::move(decode)), mixed_ps_(mixed_ps) {}
  AttentionPrice price(const Batch& batch) const override;

 private:
  Grid<2> prefill_, decode_;
  std::int64_t mixed_ps_;
};

}  // namespace llmsim
