// RR: one group after the other, each model with its own turn.
#include "router/registry.h"

namespace llmsim {

namespace {

class RoundRobin final : public Router {
 public:
  std::size_t route(RequestId, Ps, std::span<Group* const> candidates) override {
    const auto model = static_cast<std::size_t>(candidates[0]->config().model);
    if (model >= next_.size()) next_.resize(model + 1, 0);
    return next_[model]++ % candidates.size();
  }

 private:
  std::vector<std::size_t> next_;  // per model
};

}  // namespace

RouterKind round_robin() {
  return {"RR", "round robin, for each model", {}, [](const RouterContext&, const OptionValues&) {
            return std::unique_ptr<Router>(std::make_unique<RoundRobin>());
          }};
}

}  // namespace llmsim
