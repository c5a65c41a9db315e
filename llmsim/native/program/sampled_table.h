// Times that differ from layer to layer and step to step: sampled before the run, chosen by a
// counter while it runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/counter_rng.h"
#include "base/interpolation.h"

namespace llmsim {

// The slowest rank's time of one execution, for each layer of the operator, `draws` samples at some
// token counts; linear in between. Which sample a (step, layer) takes depends on nothing but the
// seed and these two numbers; of a recording (`in_order`) every layer of step n takes the n-th,
// from the first again after the last.
class SampledCostTable {
 public:
  // `ps` by layer, then draw, then token count. `first_layer` counts the layers of the same kind in
  // earlier stages.
  SampledCostTable(Axis tokens, std::int32_t layers, std::int32_t draws, const std::vector<Ps>& ps,
                   std::uint64_t seed, std::uint8_t provenance, std::int32_t first_layer = 0,
                   bool in_order = false)
      : tokens_(std::move(tokens)),
        layers_(static_cast<std::size_t>(std::max(layers, 0))),
        draws_(static_cast<std::size_t>(std::max(draws, 0))),
        seed_(seed),
        provenance_(provenance),
        first_layer_(first_layer),
        in_order_(in_order) {
    if (ps.size() != layers_ * draws_ * tokens_.size()) return;
    ps_.resize(ps.size());
    for (std::size_t row = 0; row < layers_ * draws_; ++row)
      for (std::size_t token = 0; token < tokens_.size(); ++token)
        ps_[token * layers_ * draws_ + row] = ps[row * tokens_.size() + token];
  }

  // What the layers of one step draw.
  class Step {
   public:
    Ps at(std::int32_t layer) const {
      const std::size_t l = table_->first_layer() + static_cast<std::size_t>(layer);
      const std::size_t sample =
          table_->in_order_ ? recorded_ : draw_below(seed_, l, table_->draws_);
      const std::size_t cell =
          (l < table_->layers_ ? l : l % table_->layers_) * table_->draws_ + sample;
      if (weight_ == 0) return low_[cell];
      return std::max<Ps>(blend(low_[cell], high_[cell], weight_), 0);
    }

   private:
    friend class SampledCostTable;
    Step(const SampledCostTable& table, const Place& place, std::int64_t step)
        : table_(&table),
          low_(table.ps_.data() +
               static_cast<std::size_t>(place.lower) * table.layers_ * table.draws_),
          high_(low_ + (place.weight != 0 ? table.layers_ * table.draws_ : 0)),
          weight_(place.weight),
          seed_(draw(table.seed_, static_cast<std::uint64_t>(step))),
          recorded_(static_cast<std::size_t>(step) % table.draws_) {}

    const SampledCostTable* table_;
    const Ps *low_, *high_;
    std::int64_t weight_;
    std::uint64_t seed_;
    std::size_t recorded_;
  };

  Step step(std::int64_t tokens, std::int64_t number) const {
    return Step(*this, tokens_.locate(tokens), number);
  }
  std::uint8_t provenance() const { return provenance_; }
  bool valid() const { return !ps_.empty() && first_layer_ >= 0; }

 private:
  std::size_t first_layer() const { return static_cast<std::size_t>(first_layer_); }

  Axis tokens_;
  std::size_t layers_, draws_;
  std::vector<Ps> ps_;  // by token count, then layer, then draw: neighbouring steps stay in the
                        // same few lines of cache
  std::uint64_t seed_;
  std::uint8_t provenance_;
  std::int32_t first_layer_;
  bool in_order_;
};

}  // namespace llmsim
