// TOKENS: the group with the fewest prompt tokens in flight, as SGLang's balancer `total_tokens`
// and llm-d's `token-load-scorer` count them.
#include <algorithm>

#include "router/registry.h"

namespace llmsim {

namespace {

// A request counts with its whole prompt from its arrival until its client has the last token, so
// that long prompts spread evenly where a count of requests would not. Fewest outstanding requests,
// then the lowest index, win a tie.
class FewestTokens final : public Router {
 public:
  explicit FewestTokens(std::span<const std::int32_t> input_tokens)
      : input_tokens_(input_tokens), group_of_(input_tokens.size(), kNoGroup) {}

  std::size_t route(RequestId request, Ps, std::span<Group* const> candidates) override {
    std::size_t best = 0;
    for (std::size_t i = 1; i < candidates.size(); ++i)
      if (less_loaded(*candidates[i], *candidates[best])) best = i;
    const std::int32_t group = candidates[best]->config().index;
    tokens_of(group) += input_tokens_[static_cast<std::size_t>(request)];
    group_of_[static_cast<std::size_t>(request)] = group;
    return best;
  }

  void finished(RequestId request) override {
    std::int32_t& group = group_of_[static_cast<std::size_t>(request)];
    if (group == kNoGroup) return;  // the request never had a choice
    tokens_of(group) -= input_tokens_[static_cast<std::size_t>(request)];
    group = kNoGroup;
  }

 private:
  static constexpr std::int32_t kNoGroup = -1;

  std::int64_t& tokens_of(std::int32_t group) {
    const auto index = static_cast<std::size_t>(group);
    if (index >= tokens_.size()) tokens_.resize(index + 1, 0);
    return tokens_[index];
  }
  bool less_loaded(const Group& one, const Group& other) {
    const std::int64_t tokens = tokens_of(one.config().index);
    const std::int64_t other_tokens = tokens_of(other.config().index);
    if (tokens != other_tokens) return tokens < other_tokens;
    return one.outstanding() < other.outstanding();
  }

  std::span<const std::int32_t> input_tokens_;
  std::vector<std::int32_t> group_of_;  // by row: the group that serves it, or kNoGroup
  std::vector<std::int64_t> tokens_;    // by group: prompt tokens in flight
};

}  // namespace

RouterKind fewest_tokens() {
  return {"TOKENS",
          "fewest prompt tokens in flight, then fewest outstanding requests",
          {},
          [](const RouterContext& context, const OptionValues&) {
            return std::unique_ptr<Router>(std::make_unique<FewestTokens>(context.input_tokens));
          }};
}

}  // namespace llmsim
