// RAND: every group with the same probability, whatever happened before.
#include "base/counter_rng.h"
#include "router/registry.h"

namespace llmsim {

namespace {

class UniformlyRandom final : public Router {
 public:
  explicit UniformlyRandom(std::uint64_t seed) : seed_(seed) {}
  std::size_t route(RequestId request, Ps, std::span<Group* const> candidates) override {
    return draw_below(seed_, static_cast<std::uint64_t>(request), candidates.size());
  }

 private:
  std::uint64_t seed_;
};

}  // namespace

RouterKind uniformly_random() {
  return {"RAND",
          "uniformly random, seeded by --seed",
          {},
          [](const RouterContext& context, const OptionValues&) {
            return std::unique_ptr<Router>(std::make_unique<UniformlyRandom>(context.seed));
          }};
}

}  // namespace llmsim
