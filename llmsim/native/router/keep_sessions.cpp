#include "router/keep_sessions.h"

#include <algorithm>
#include <utility>

namespace llmsim {

namespace {

class KeepSessions final : public Router {
 public:
  KeepSessions(std::unique_ptr<Router> inner, std::vector<std::int32_t> session)
      : inner_(std::move(inner)), session_(std::move(session)) {
    const auto most = std::ranges::max_element(session_);
    home_.assign(most == session_.end() ? 0 : static_cast<std::size_t>(*most + 1), nullptr);
    next_look_ = inner_->next_look();
  }

  void group_added(Group& group) override { inner_->group_added(group); }
  void group_removed(const Group& group) override {
    std::ranges::replace(home_, &group, static_cast<const Group*>(nullptr));
    inner_->group_removed(group);
  }
  std::size_t route(RequestId request, Ps now, std::span<Group* const> candidates) override {
    const std::int32_t session = session_[at(request)];
    if (session < 0) return inner_->route(request, now, candidates);
    const Group*& home = home_[at(session)];
    const auto found = std::ranges::find(candidates, home);
    if (found != candidates.end()) return static_cast<std::size_t>(found - candidates.begin());
    const std::size_t chosen = inner_->route(request, now, candidates);
    if (home == nullptr) home = candidates[chosen];
    return chosen;
  }
  bool in_api_server() const override { return inner_->in_api_server(); }
  void finished(RequestId request) override { inner_->finished(request); }
  bool look(Ps next_event) override {
    const bool done = inner_->look(next_event);
    next_look_ = inner_->next_look();
    return done;
  }

 private:
  std::unique_ptr<Router> inner_;
  std::vector<std::int32_t> session_;
  std::vector<const Group*> home_;  // per session; null: no call yet
};

}  // namespace

std::unique_ptr<Router> keep_sessions(std::unique_ptr<Router> inner,
                                      std::vector<std::int32_t> session) {
  return std::make_unique<KeepSessions>(std::move(inner), std::move(session));
}

}  // namespace llmsim
