#include "frontend/frontend.h"

#include "frontend/clients.h"

namespace llmsim {

Frontend::Frontend(SequenceTable& sequences, RequestLog& log, std::unique_ptr<Router> router,
                   Admission admission)
    : sequences_(sequences),
      log_(log),
      router_(std::move(router)),
      admission_(std::move(admission)),
      direct_(sequences),
      routed_(sequences.size(), -1) {}

void Frontend::add_candidate(Group& group, Delivery& delivery) {
  const std::size_t model = at(group.config().model), index = at(group.config().index);
  if (candidates_.size() <= model) candidates_.resize(model + 1);
  if (doors_.size() <= index) doors_.resize(index + 1);
  candidates_[model].push_back(&group);
  doors_[index] = {&group, &delivery};
}

void Frontend::remove_candidate(const Group& group) {
  if (at(group.config().model) < candidates_.size())
    std::erase(candidates_[at(group.config().model)], &group);
}

std::vector<RequestId> Frontend::take_back(const Group& group) {
  std::vector<RequestId> requests;
  for (RequestId request = 0; request < static_cast<RequestId>(routed_.size()); ++request) {
    const bool here = routed_[at(request)] == group.config().index;
    if (!here || gave_up(request) || !under_way(request)) continue;
    requests.push_back(request);
    doors_[at(group.config().index)].delivery->withdraw(request, *router_);
  }
  return requests;
}

void Frontend::forget(const std::vector<RequestId>& requests) {
  for (const RequestId request : requests) {
    routed_[at(request)] = -1;
    sequences_[request] = sequences_[request].renewed();
  }
  log_.forget(requests);
}

void Frontend::keep_answers(const std::vector<RequestId>& requests) {
  for (const RequestId request : requests) {
    routed_[at(request)] = -1;
    const std::int32_t num_tokens = sequences_[request].num_tokens;
    sequences_[request] = sequences_[request].renewed();
    sequences_[request].num_tokens = num_tokens;
  }
}

void Frontend::release(Ps now) {
  holding_ = false;
  const std::vector<HeldRequest> held = std::move(held_);
  held_.clear();
  for (const HeldRequest& one : held) {
    log_.moved(one.request, sequences_[one.request].arrival, now);
    send_on(one, now);
  }
}

void Frontend::send_on(const HeldRequest& one, Ps now) {
  clients_->send_again({&one.request, 1}, now);
  if (one.left && routed_[at(one.request)] >= 0) give_up(one.request, now);
}

void Frontend::read(RequestId request, Ps now) {
  const auto found = find(unread_, request);
  const HeldRequest one = *found;
  unread_.erase(found);
  one.reader->sees(request, now);
  if (holding_) {
    held_.push_back(one);
  } else {
    send_on(one, now);
  }
}

// Groups with API servers of their own have read it before they take it in.
Ps Frontend::reading_time(RequestId request, std::span<Group* const> candidates) const {
  const Group& first = *candidates.front();
  if (first.has_seen(request) || candidates.size() == 1 || !router_->in_api_server()) return 0;
  const bool is_chosen_at_once = !doors_[at(first.config().index)].delivery->passes_on_whole();
  if (is_chosen_at_once || first.api_servers().work()) return 0;
  return first.latency_of(request);
}

Verdict Frontend::arrive(RequestId request, std::int32_t model, Ps now) {
  if (holding_) {
    held_.push_back({request});
    return Verdict::kDelivered;
  }
  const std::vector<Group*>& candidates = candidates_[at(model)];
  if (candidates.empty()) return Verdict::kRefused;  // all groups of the model have left
  if (const Ps reading = reading_time(request, candidates); reading > 0) {
    unread_.push_back({request, candidates.front()});
    reader_.read(request, now + reading);
    return Verdict::kDelivered;
  }
  Group& group = *candidates[candidates.size() == 1 ? 0 : router_->route(request, now, candidates)];
  if (!group.may_queue(request) || (admission_ && !admission_(request, now, group))) {
    router_->finished(request);
    return Verdict::kRefused;
  }
  const std::int32_t index = group.config().index;
  if (!doors_[at(index)].delivery->deliver(request, group, now)) {
    router_->finished(request);
    return Verdict::kRejected;
  }
  routed_[at(request)] = index;
  return Verdict::kDelivered;
}

void Frontend::give_up(RequestId request, Ps now) {
  if (routed_[at(request)] < 0) {  // the group that it will be sent to learns it
    const auto unread = find(unread_, request);
    (unread == unread_.end() ? *find(held_, request) : *unread).left = true;
    return;
  }
  const Door& door = doors_[at(routed_[at(request)])];
  const bool leaves = door.delivery->give_up(request, *door.group, now);
  if (leaves && !engine_tells_router(request)) router_->finished(request);
}

bool Frontend::engine_tells_router(RequestId request) const {
  const Group& group = *doors_[at(routed_[at(request)])].group;
  return router_->in_api_server() && group.config().role == Role::kBoth;
}

void Frontend::left(std::span<const RequestId> requests) {
  for (const RequestId request : requests)
    if (engine_tells_router(request)) router_->finished(request);
}

bool Frontend::under_way(RequestId request) const {
  if (routed_[at(request)] < 0)
    return std::ranges::find(held_, request, &HeldRequest::request) != held_.end() ||
           std::ranges::find(unread_, request, &HeldRequest::request) != unread_.end();
  switch (static_cast<Status>(sequences_[request].status)) {
    case Status::kPending:  // another group computes its prompt
    case Status::kWaiting:
    case Status::kRunning:
    case Status::kParked:
      return true;
    default:
      return false;
  }
}

void Frontend::step_done(std::span<const RequestId> finished, std::span<const Item> items, Ps now) {
  for (const RequestId request : finished)
    if (!gave_up(request) || engine_tells_router(request)) router_->finished(request);
  answered(finished, items, now);
}

void Frontend::answered(std::span<const RequestId> finished, std::span<const Item> items, Ps now) {
  num_finished_ += static_cast<std::int64_t>(finished.size());
  clients_->answered(finished, now);
  if (!clients_->count_tokens()) return;
  for (const Item& item : items)
    clients_->received(item.request, log_.emitted_tokens[item.request], now);
}

void Frontend::ended_in_error(RequestId request, Ps now) { clients_->failed(request, now); }

bool Frontend::gave_up(RequestId request) const { return clients_->gave_up(request); }

}  // namespace llmsim
