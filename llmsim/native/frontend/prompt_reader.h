// An API server whose balancer chooses among engines when it has read a prompt.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "events/entity.h"

namespace llmsim {

class PromptReader final : public Entity {
 public:
  // `has_read` is called with each request whose prompt it has read.
  explicit PromptReader(std::function<void(RequestId, Ps)> has_read)
      : has_read_(std::move(has_read)) {}
  // Those that it has read at one time leave it in the order in which they came.
  void read(RequestId request, Ps until) {
    post(until, Phase::kArrival, static_cast<std::uint32_t>(requests_.size()));
    requests_.push_back(request);
  }
  void on_event(Ps now, Phase, std::uint32_t number) override { has_read_(requests_[number], now); }

 private:
  std::vector<RequestId> requests_;
  std::function<void(RequestId, Ps)> has_read_;
};

}  // namespace llmsim
