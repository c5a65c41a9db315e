// SESSION: the calls of a session stay where its first one went, so that they find its context
// cached.
#include <algorithm>

#include "router/impl/least_outstanding.h"
#include "router/registry.h"

namespace llmsim {

namespace {

// A first call, and a request without a session, goes to the group with the fewest outstanding
// requests; so does a call for another model than the one that its session's group serves.
class SessionAffinity final : public Router {
 public:
  explicit SessionAffinity(const std::vector<std::int32_t>& session) : session_(session) {
    const auto most = std::max_element(session_.begin(), session_.end());
    home_.assign(most == session_.end() ? 0 : static_cast<std::size_t>(*most + 1), nullptr);
  }

  // Its sessions find a new home with their next calls.
  void group_removed(const Group& group) override {
    std::ranges::replace(home_, &group, static_cast<const Group*>(nullptr));
  }

  std::size_t route(RequestId request, Ps, std::span<Group* const> candidates) override {
    const std::int32_t session =
        session_.empty() ? -1 : session_[static_cast<std::size_t>(request)];
    if (session < 0) return fewest_outstanding(candidates);
    const Group*& home = home_[static_cast<std::size_t>(session)];
    const auto found = std::find(candidates.begin(), candidates.end(), home);
    if (found != candidates.end()) return static_cast<std::size_t>(found - candidates.begin());
    const std::size_t chosen = fewest_outstanding(candidates);
    if (home == nullptr) home = candidates[chosen];
    return chosen;
  }

 private:
  std::vector<std::int32_t> session_;
  std::vector<const Group*> home_;  // per session; null: no call yet
};

}  // namespace

RouterKind session_affinity() {
  return {"SESSION",
          "calls of a session follow its first one; others go to the least outstanding requests",
          {},
          [](const RouterContext& context, const OptionValues&) {
            return std::unique_ptr<Router>(std::make_unique<SessionAffinity>(context.session));
          }};
}

}  // namespace llmsim
