// The way of a request to an engine, once it has been routed and admitted.
#pragma once

#include "group/group.h"
#include "router/router.h"

namespace llmsim {

class Delivery {
 public:
  virtual ~Delivery() = default;
  // Hands a request to the group that was chosen for it. False: no engine can ever run it, and it
  // is marked as rejected.
  virtual bool deliver(RequestId request, Group& group, Ps now) = 0;
  // The client has gone: all engines that hold the request learn it. Whether the chosen group still
  // works for it.
  virtual bool give_up(RequestId request, Group& group, Ps now) = 0;
  // Whether the chosen group has it at once, and no other group before that one is done with it.
  virtual bool passes_on_whole() const { return true; }
  // The request leaves its groups, unanswered: whoever chose them is told, `router` among them.
  virtual void withdraw(RequestId request, Router& router) = 0;
};

// One group does all of it.
class Direct final : public Delivery {
 public:
  explicit Direct(const SequenceTable& sequences) : sequences_(sequences) {}
  bool deliver(RequestId request, Group& group, Ps now) override {
    group.receive(request, now);
    const auto rejected = static_cast<std::uint8_t>(Status::kRejected);
    if (sequences_[request].status == rejected) return false;
    group.wake_if_idle(now);
    return true;
  }
  bool give_up(RequestId request, Group& group, Ps now) override {
    group.abort(request, now);
    group.wake_if_idle(now);
    return true;
  }
  void withdraw(RequestId request, Router& router) override { router.finished(request); }

 private:
  const SequenceTable& sequences_;
};

}  // namespace llmsim
