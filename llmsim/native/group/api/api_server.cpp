#include "group/api/api_server.h"

#include <algorithm>
#include <utility>

#include "group/group.h"

namespace llmsim {

void ApiServer::tokenize(RequestId request, std::int32_t prompt_tokens, Ps now) {
  waiting_.prompts.push_back(request);
  waiting_.work += config_.request + config_.prompt_token * prompt_tokens;
  if (!busy_) begin_round(now);
}

void ApiServer::stream(StepAnswers answers, Ps now) {
  waiting_.work += config_.chunk * static_cast<Ps>(waiting_.new_chunks(answers));
  waiting_.answers.push_back(std::move(answers));
  if (!busy_) begin_round(now);
}

std::size_t ApiServer::Round::new_chunks(const StepAnswers& more) {
  if (answers.empty()) return more.items.size();
  if (joined.empty()) {
    for (const Item& item : answers.front().items) joined.insert(item.request);
  }
  std::size_t fresh = 0;
  for (const Item& item : more.items) fresh += joined.insert(item.request).second ? 1 : 0;
  return fresh;
}

bool ApiServer::tokenizes(RequestId request) const {
  return std::ranges::find(round_.prompts, request) != round_.prompts.end() ||
         std::ranges::find(waiting_.prompts, request) != waiting_.prompts.end();
}

void ApiServer::begin_round(Ps now) {
  round_ = std::exchange(waiting_, {});
  busy_ = true;
  post(now + round_.work, Phase::kStepDone);
}

void ApiServer::on_event(Ps now, Phase, std::uint32_t) {
  const Round done = std::exchange(round_, {});
  send(done, now);
  for (const RequestId request : done.prompts) group_.tokenized(request, now);
  busy_ = false;
  if (!waiting_.prompts.empty() || !waiting_.answers.empty()) begin_round(now);
}

void ApiServer::send(const Round& round, Ps now) {
  for (const StepAnswers& answers : round.answers) group_.streamed(process_, answers, now);
}

std::vector<RequestId> ApiServer::close(Ps now) {
  const Round under_way = std::exchange(round_, {}), later = std::exchange(waiting_, {});
  send(under_way, now);
  send(later, now);
  std::vector<RequestId> prompts = under_way.prompts;
  prompts.insert(prompts.end(), later.prompts.begin(), later.prompts.end());
  return prompts;
}

void ApiServer::mark_referred(std::vector<bool>& requests) const {
  for (const Round* round : {&round_, &waiting_}) {
    for (const RequestId request : round->prompts) requests[at(request)] = true;
    for (const StepAnswers& answers : round->answers) {
      for (const Item& item : answers.items) requests[at(item.request)] = true;
      for (const RequestId request : answers.finished) requests[at(request)] = true;
    }
  }
}

}  // namespace llmsim
