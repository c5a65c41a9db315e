// PREFIX: the longest cached prefix weighed against load, as KV-aware routers do it (Dynamo's KV
// router, SGLang's cache-aware balancer).
#include "router/prefix_view.h"
#include "router/registry.h"

namespace llmsim {

namespace {

// Least outstanding requests minus weight times the cached share of the prompt: a wholly cached
// prompt is worth a queue that is longer by `weight` requests. The lowest index wins a tie.
class PrefixAware final : public Router {
 public:
  PrefixAware(const RouterContext& context, double weight, Ps delay)
      : input_tokens_(context.input_tokens), view_(context, delay), weight_(weight) {}

  void group_added(Group& group) override { view_.watch(group); }

  void group_removed(const Group& group) override { view_.forget(group); }

  std::size_t route(RequestId request, Ps now, std::span<Group* const> candidates) override {
    const std::int32_t prompt = input_tokens_[static_cast<std::size_t>(request)];
    view_.look_up(request, prompt, now);
    std::size_t best = 0;
    double least = cost(*candidates[0], prompt);
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      const double other = cost(*candidates[i], prompt);
      if (other >= least) continue;
      best = i;
      least = other;
    }
    return best;
  }

 private:
  double cost(const Group& group,
              std::int32_t prompt) const {  // in requests, times the prompt's tokens
    return static_cast<double>(group.outstanding()) * prompt - weight_ * view_.cached_tokens(group);
  }

  std::span<const std::int32_t> input_tokens_;
  PrefixView view_;
  double weight_;
};

}  // namespace

RouterKind prefix_aware() {
  return {"PREFIX",
          "longest cached prefix weighed against outstanding requests",
          {{"weight", 8, 0, 1e6,
            "requests by which the queue may be longer where the whole prompt is cached"},
           {"delay_ms", 0, 0, 1e9, "age of the router's view of the caches"}},
          [](const RouterContext& context, const OptionValues& options) {
            return std::unique_ptr<Router>(std::make_unique<PrefixAware>(
                context, options.at("weight"), ps_of_ms(options.at("delay_ms"))));
          }};
}

}  // namespace llmsim
