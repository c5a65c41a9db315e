// Chooses the group that serves a request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "events/entity.h"
#include "group/group.h"

namespace llmsim {

// All that a router may know of the requests of a run: never how long an answer will be. The views
// outlive the router.
struct RouterContext {
  std::span<const std::int32_t> input_tokens;  // of every row
  const ContentKeys* content = nullptr;
  std::vector<std::int32_t>
      session;  // number of each row's session from 0, or -1; empty: every row is alone
  std::uint64_t seed = 0;
  bool decode_side = false;  // chooses where answers are decoded: among groups of that role only
};

// Owns its own tables and changes nothing else. `route` is called once per arrival for which there
// is a choice, and `finished` once per request that leaves.
//
// As an observer of the clock, a router looks at the groups before the first event after
// next_look_, so that it sees everything that happened until then and nothing later.
class Router : public ClockObserver {
 public:
  // A group of the run, of any role, has been added: before the first arrival, or later. Groups
  // come in the order of their indices.
  virtual void group_added(Group& group) { static_cast<void>(group); }
  // It is no candidate any more, though it may still work on what it was given.
  virtual void group_removed(const Group& group) { static_cast<void>(group); }
  // An index into `candidates` (not empty): groups that serve the request's model, in order of
  // their index.
  virtual std::size_t route(RequestId request, Ps now, std::span<Group* const> candidates) = 0;
  // Whether it is part of an API server, and so chooses when that has read the prompt.
  virtual bool in_api_server() const { return false; }
  // The client has the request's last token, or its refusal.
  virtual void finished(RequestId request) { static_cast<void>(request); }

  bool look(Ps next_event) override {
    static_cast<void>(next_event);
    return true;
  }
};

}  // namespace llmsim
