// WEIGHTED: a weighted sum of scores between 0 and 1, as the endpoint picker of llm-d adds up its
// scorers.
#include <algorithm>

#include "router/prefix_view.h"
#include "router/registry.h"

namespace llmsim {

namespace {

struct Weights {
  double load, kv, prefix;
};

// load: 1 for the fewest outstanding requests of all candidates, 0 for the most, linear between (1
// where all are equal); kv: share of free KV blocks; prefix: cached share of the prompt. The
// highest sum wins, and the lowest index a tie. A scorer of weight 0 is not asked.
class Weighted final : public Router {
 public:
  Weighted(const RouterContext& context, Weights weights, Ps delay)
      : input_tokens_(context.input_tokens), view_(context, delay), weights_(weights) {}

  void group_added(Group& group) override {
    if (weights_.prefix > 0) view_.watch(group);
  }

  void group_removed(const Group& group) override { view_.forget(group); }

  std::size_t route(RequestId request, Ps now, std::span<Group* const> candidates) override {
    const std::int32_t prompt = input_tokens_[static_cast<std::size_t>(request)];
    if (weights_.prefix > 0) view_.look_up(request, prompt, now);
    least_ = most_ = candidates[0]->outstanding();
    for (const Group* group : candidates) {
      least_ = std::min(least_, group->outstanding());
      most_ = std::max(most_, group->outstanding());
    }
    std::size_t best = 0;
    double highest = score(*candidates[0], prompt);
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      const double other = score(*candidates[i], prompt);
      if (other <= highest) continue;
      best = i;
      highest = other;
    }
    return best;
  }

 private:
  double score(const Group& group, std::int32_t prompt) const {
    double sum = 0;
    if (weights_.load > 0) sum += weights_.load * by_load(group);
    if (weights_.kv > 0) sum += weights_.kv * by_free_blocks(group);
    if (weights_.prefix > 0) sum += weights_.prefix * view_.cached_tokens(group) / prompt;
    return sum;
  }
  double by_load(const Group& group) const {
    if (least_ == most_) return 1;
    return static_cast<double>(most_ - group.outstanding()) / static_cast<double>(most_ - least_);
  }
  static double by_free_blocks(const Group& group) {
    const PoolState pool = group.scheduler().pool();
    return static_cast<double>(pool.free) / static_cast<double>(pool.total - 1);
  }

  std::span<const std::int32_t> input_tokens_;
  PrefixView view_;
  Weights weights_;
  std::int32_t least_ = 0, most_ = 0;  // outstanding requests of the candidates at hand
};

}  // namespace

RouterKind weighted() {
  return {"WEIGHTED",
          "highest weighted sum of scores for load, free KV blocks and cached prefix",
          {{"load", 1, 0, 1e6, "weight of few outstanding requests"},
           {"kv", 1, 0, 1e6, "weight of free KV blocks"},
           {"prefix", 2, 0, 1e6, "weight of the cached share of the prompt"},
           {"delay_ms", 0, 0, 1e9, "age of the router's view of the caches"}},
          [](const RouterContext& context, const OptionValues& options) {
            const Weights weights{options.at("load"), options.at("kv"), options.at("prefix")};
            return std::unique_ptr<Router>(
                std::make_unique<Weighted>(context, weights, ps_of_ms(options.at("delay_ms"))));
          }};
}

}  // namespace llmsim
