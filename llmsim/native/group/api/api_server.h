// A process of the API server: it tokenises prompts on their way to an engine, and detokenises and
// streams what the engine's steps gave.
#pragma once

#include <cstddef>
#include <unordered_set>
#include <vector>

#include "base/types.h"
#include "events/entity.h"
#include "program/batch.h"

namespace llmsim {

class Group;

struct ApiServerConfig {
  std::int32_t processes = 1;
  Ps request = 0;       // of a process for each request
  Ps prompt_token = 0;  // and for each token of its prompt
  Ps chunk = 0;         // for each chunk of an answer that it streams
  bool works() const { return request > 0 || prompt_token > 0 || chunk > 0; }
};

// What a step gave to the requests of one process.
struct StepAnswers {
  std::size_t step;         // of its group
  std::vector<Item> items;  // that got tokens
  std::vector<RequestId> finished;
};

// An event loop as Python's: it takes everything that waits into a round, works on it, and what is
// ready at the end of the round leaves. Whatever comes meanwhile waits for the next round, where
// all tokens of a request are one chunk.
class ApiServer final : public Entity {
 public:
  ApiServer(const ApiServerConfig& config, std::size_t process, Group& group)
      : config_(config), process_(process), group_(group) {}

  void tokenize(RequestId request, std::int32_t prompt_tokens, Ps now);
  void stream(StepAnswers answers, Ps now);

  void on_event(Ps now, Phase phase, std::uint32_t argument) override;

  // Whether the request's prompt is here.
  bool tokenizes(RequestId request) const;
  // Whether tokens of answers are on their way to clients.
  bool streams() const { return !round_.answers.empty() || !waiting_.answers.empty(); }
  // Its engine stops: requests that it has not seen are handed over, and answers go out at once.
  std::vector<RequestId> close(Ps now);
  // Requests whose prompts or answers are here.
  void mark_referred(std::vector<bool>& requests) const;
  std::int32_t num_prompts() const {
    return static_cast<std::int32_t>(waiting_.prompts.size() + round_.prompts.size());
  }

 private:
  struct Round {
    std::vector<RequestId> prompts;
    std::vector<StepAnswers> answers;
    std::unordered_set<RequestId> joined;  // requests of `answers`, where there are several
    Ps work = 0;

    // Requests of one more step that have no chunk in this round yet.
    std::size_t new_chunks(const StepAnswers& more);
  };
  void begin_round(Ps now);
  void send(const Round& round, Ps now);

  ApiServerConfig config_;
  std::size_t process_;
  Group& group_;
  Round waiting_, round_;
  bool busy_ = false;
};

}  // namespace llmsim
