// Times that differ from layer to layer and step to step: drawn before the run, chosen by a counter while it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "grid.h"
#include "routing/draw.h"

namespace llmsim {

// The slowest rank's time of one execution, for each layer of the operator, `draws` samples at some token counts;
// linear in between. Which sample a (step, layer) takes depends on nothing but the seed and these two numbers.
class Drawn {
 public:
  // `ps` by layer, then draw, then token count. `first_layer` counts the layers of the same kind in earlier stages.
  Drawn(Axis tokens, std::int32_t layers, std::int32_t draws, std::vector<Ps> ps, std::uint64_t seed,
        std::uint8_t provenance, std::int32_t first_layer = 0)
      : tokens_(std::move(tokens)),
        layers_(layers),
        draws_(draws),
        ps_(std::move(ps)),
        seed_(seed),
        provenance_(provenance),
        first_layer_(first_layer) {}

  Place place(std::int64_t tokens) const { return tokens_.locate(tokens); }
  Ps at(const Place& place, std::int64_t step, std::int32_t layer) const {
    const auto l = static_cast<std::uint64_t>(first_layer_ + layer);
    const std::size_t sample =
        draw_below(draw(seed_, static_cast<std::uint64_t>(step)), l, static_cast<std::size_t>(draws_));
    const std::size_t row = (l % static_cast<std::uint64_t>(layers_)) * static_cast<std::uint64_t>(draws_) + sample;
    const std::size_t cell = row * tokens_.size() + static_cast<std::size_t>(place.lower);
    if (place.weight == 0) return ps_[cell];
    const Ps value = blend(ps_[cell], ps_[cell + 1], place.weight);
    return value < 0 ? 0 : value;
  }
  std::uint8_t provenance() const { return provenance_; }
  bool valid() const {
    return layers_ > 0 && draws_ > 0 && first_layer_ >= 0 &&
           ps_.size() == static_cast<std::size_t>(layers_) * static_cast<std::size_t>(draws_) * tokens_.size();
  }

 private:
  Axis tokens_;
  std::int32_t layers_, draws_;
  std::vector<Ps> ps_;
  std::uint64_t seed_;
  std::uint8_t provenance_;
  std::int32_t first_layer_;
};

}  // namespace llmsim
