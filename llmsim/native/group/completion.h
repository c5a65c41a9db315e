// What a group tells those who gave it requests.
#pragma once

#include <span>

#include "base/types.h"
#include "program/batch.h"

namespace llmsim {

class Completion {
 public:
  virtual ~Completion() = default;
  // A step has ended, which ran `items` and with which the group is done with the requests
  // `finished`: they have their last token, or, in a group that computes prompts for others, their
  // whole prompt.
  virtual void step_done(std::span<const RequestId> finished, std::span<const Item> items,
                         Ps now) = 0;
  // An output tells that requests have left the engine whose clients have gone.
  virtual void left(std::span<const RequestId> requests) { static_cast<void>(requests); }
  // The group has ended the request with an error.
  virtual void failed(RequestId request, Ps now) = 0;
};

// Of a group that gets no requests.
class NoCompletion final : public Completion {
 public:
  void step_done(std::span<const RequestId>, std::span<const Item>, Ps) override {}
  void failed(RequestId, Ps) override {}
};

}  // namespace llmsim
