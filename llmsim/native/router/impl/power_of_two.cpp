// P2C: the power of two choices (Mitzenmacher, IEEE TPDS 12(10), 2001): of two random groups the
// less loaded one.
#include "base/counter_rng.h"
#include "router/registry.h"

namespace llmsim {

namespace {

class PowerOfTwo final : public Router {
 public:
  explicit PowerOfTwo(std::uint64_t seed) : seed_(seed) {}
  std::size_t route(RequestId request, Ps, std::span<Group* const> candidates) override {
    if (candidates.size() == 1) return 0;
    const std::uint64_t counter = 2 * static_cast<std::uint64_t>(request);
    const std::size_t first = draw_below(seed_, counter, candidates.size());
    std::size_t second = draw_below(seed_, counter + 1, candidates.size() - 1);
    if (second >= first) ++second;  // two different ones
    return candidates[second]->outstanding() < candidates[first]->outstanding() ? second : first;
  }

 private:
  std::uint64_t seed_;
};

}  // namespace

RouterKind power_of_two() {
  return {"P2C",
          "of two random groups the one with fewer outstanding requests; seeded by --seed",
          {},
          [](const RouterContext& context, const OptionValues&) {
            return std::unique_ptr<Router>(std::make_unique<PowerOfTwo>(context.seed));
          }};
}

}  // namespace llmsim
