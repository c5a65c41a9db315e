// Chooses the group that serves a request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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

// Owns its own tables and changes nothing else. The loop calls `start` once, `route` once per
// arrival for which there is a choice, and `finished` once per request that leaves.
class Router {
 public:
  virtual ~Router() = default;
  // Before the first arrival: all groups of the run, in order of their index.
  virtual void start(std::span<const std::unique_ptr<Group>> groups) { static_cast<void>(groups); }
  // An index into `candidates` (not empty): groups that serve the request's model, in order of
  // their index.
  virtual std::size_t route(RequestId request, Ps now, std::span<Group* const> candidates) = 0;
  // The client has the request's last token, or its refusal.
  virtual void finished(RequestId request) { static_cast<void>(request); }

  // When it next wants to look at the groups; the loop calls `sample` before the first event after
  // that time, so that it sees everything that happened until then and nothing later.
  Ps next_sample() const { return next_sample_; }
  virtual void sample(Ps before) { static_cast<void>(before); }

 protected:
  Ps next_sample_ = kEndOfTime;  // never
};

}  // namespace llmsim
