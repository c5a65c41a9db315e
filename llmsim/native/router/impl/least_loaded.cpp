// LOAD: LLMServingSim's load, four times the waiting plus the running requests.
#include "router/registry.h"

namespace llmsim {

namespace {

class LeastLoaded final : public Router {
 public:
  std::size_t route(RequestId, Ps, std::span<Group* const> candidates) override {
    std::size_t best = 0;
    std::int64_t least = load(*candidates[0]);
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      const std::int64_t other = load(*candidates[i]);
      if (other >= least) continue;
      best = i;
      least = other;
    }
    return best;
  }

 private:
  static std::int64_t load(const Group& group) {
    const Gauges gauges = group.gauges();
    return 4 * static_cast<std::int64_t>(gauges.waiting) + gauges.running;
  }
};

}  // namespace

RouterKind least_loaded() {
  return {"LOAD",
          "least 4 * waiting + running requests; the lowest index wins a tie",
          {},
          [](const RouterContext&, const OptionValues&) {
            return std::unique_ptr<Router>(std::make_unique<LeastLoaded>());
          }};
}

}  // namespace llmsim
