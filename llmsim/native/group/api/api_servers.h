// The processes of a group's API server.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "group/api/api_server.h"

namespace llmsim {

class Group;
struct GroupConfig;

// Each process has requests of its own. None where an API server's work takes no time.
class ApiServers {
 public:
  // Throws std::invalid_argument for a group that gives no whole answers, and without a process.
  ApiServers(const GroupConfig& config, Group& group);

  bool work() const { return !processes_.empty(); }
  // Each is entered into the loop.
  const std::vector<std::unique_ptr<ApiServer>>& processes() const { return processes_; }

  void tokenize(RequestId request, std::int32_t prompt_tokens, Ps now) {
    of(request).tokenize(request, prompt_tokens, now);
  }
  // The request's client has gone; false: its prompt has been passed on, and its engine learns it.
  bool leaves_early(RequestId request);
  // Whether the client went before the prompt was tokenised, which it has been now.
  bool left_early(RequestId request);
  // Each process sends the chunks of its own requests, which the group's step `step` gave.
  void answer(const Batch& batch, std::span<const RequestId> finished, std::size_t step, Ps now);
  // A process has sent what the step gave.
  void sent(std::size_t process, std::size_t step, Ps now) { sent_[process][step] = now; }
  // By step: when its answers were sent to the request's client.
  const std::vector<Ps>& times_of(RequestId request) const { return sent_[process_of(request)]; }

  // Its engine stops: answers go out at once. Prompts that it has not seen, and clients that went
  // before that.
  struct Unseen {
    std::vector<RequestId> prompts, left;
  };
  Unseen close(Ps now);

  // Whether tokens of answers are on their way to clients.
  bool stream() const;
  std::int32_t num_prompts() const;
  // Requests whose prompts or answers are here.
  void mark_referred(std::vector<bool>& requests) const;

 private:
  std::size_t process_of(RequestId request) const { return at(request) % processes_.size(); }
  ApiServer& of(RequestId request) { return *processes_[process_of(request)]; }

  std::vector<std::unique_ptr<ApiServer>> processes_;
  std::vector<std::vector<Ps>> sent_;  // by process and step: when its answers were
  std::vector<RequestId> left_early_;
};

}  // namespace llmsim
