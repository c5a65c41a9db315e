// The way of a request from its client to a group and back: router, admission, delivery,
// completion.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "frontend/delivery.h"
#include "frontend/prompt_reader.h"
#include "group/completion.h"
#include "router/router.h"

namespace llmsim {

class Clients;

// Whether a request that has been routed to a group is taken in.
using Admission = std::function<bool(RequestId, Ps, const Group&)>;

enum class Verdict : std::uint8_t {
  kDelivered,
  kRefused,   // no group is there, its queue is full, or the admission policy does not want it
  kRejected,  // no group can ever run it
};

class Frontend final : public Completion {
 public:
  Frontend(SequenceTable& sequences, RequestLog& log, std::unique_ptr<Router> router,
           Admission admission);

  // Whom it tells of answers; before the first event.
  void serve(Clients& clients) { clients_ = &clients; }
  // From now on requests for the group's model may be routed to it, and `delivery` takes them
  // there. Groups come in the order of their indices.
  void add_candidate(Group& group, Delivery& delivery);
  void remove_candidate(const Group& group);
  // Requests that were delivered to the group and have not been answered, by row, but for those
  // whose clients have gone; the router counts them as finished.
  std::vector<RequestId> take_back(const Group& group);
  // Nothing has happened to these requests since they arrived.
  void forget(const std::vector<RequestId>& requests);
  // The same, but they keep the tokens of their answers: the next group computes everything again.
  void keep_answers(const std::vector<RequestId>& requests);

  // From now on arrivals wait in front of the router.
  void hold(bool on) { holding_ = on; }
  // They are sent on in the order in which they came.
  void release(Ps now);
  std::int32_t num_held() const { return static_cast<std::int32_t>(held_.size()); }

  Verdict arrive(RequestId request, std::int32_t model, Ps now);
  // The API server has read its prompt, so that its router may choose.
  void read(RequestId request, Ps now);
  PromptReader& reader() { return reader_; }
  // The client of a request that was delivered has gone.
  void give_up(RequestId request, Ps now);
  // Whether the request has been delivered and not been answered.
  bool under_way(RequestId request) const;

  // Of groups that answer clients themselves.
  void step_done(std::span<const RequestId> finished, std::span<const Item> items, Ps now) override;
  void left(std::span<const RequestId> requests) override;
  void failed(RequestId request, Ps now) override {
    if (!gave_up(request)) router_->finished(request);
    ended_in_error(request, now);
  }
  // The client hears that its request has failed; whoever chose its groups has been told.
  void ended_in_error(RequestId request, Ps now);
  // Clients have their last tokens; whoever chose their groups has been told.
  void answered(std::span<const RequestId> finished, std::span<const Item> items, Ps now);
  bool gave_up(RequestId request) const;

  Router& router() { return *router_; }
  Direct& direct() { return direct_; }
  std::int64_t num_finished() const { return num_finished_; }

 private:
  // Whether the router hears of requests that have left from their engine's outputs, and not from
  // their clients.
  bool engine_tells_router(RequestId request) const;

  SequenceTable& sequences_;
  RequestLog& log_;
  std::unique_ptr<Router> router_;
  Admission admission_;
  Direct direct_;
  Clients* clients_ = nullptr;
  std::vector<std::vector<Group*>> candidates_;  // by model
  struct Door {
    Group* group = nullptr;
    Delivery* delivery = nullptr;
  };
  std::vector<Door> doors_;  // by group index; null: nothing is routed there
  std::vector<std::int32_t>
      routed_;  // by request: the group that was chosen; -1: none yet, or it turned it away
  std::int64_t num_finished_ = 0;
  bool holding_ = false;
  struct HeldRequest {
    RequestId request;
    Group* reader = nullptr;  // whose API server reads it; null: none
    bool left = false;        // its client has gone
  };
  std::vector<HeldRequest> held_;
  std::vector<HeldRequest> unread_;  // whose prompts the API server reads
  PromptReader reader_{[this](RequestId request, Ps now) { read(request, now); }};
  static std::vector<HeldRequest>::iterator find(std::vector<HeldRequest>& queue,
                                                 RequestId request) {
    return std::ranges::find(queue, request, &HeldRequest::request);
  }
  // A group that is chosen for it hears, too, if its client has left.
  void send_on(const HeldRequest& one, Ps now);
  // How long the API server reads its prompt before a router that is part of it chooses.
  Ps reading_time(RequestId request, std::span<Group* const> candidates) const;
};

}  // namespace llmsim
