#include "group/api/api_servers.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "group/group.h"

namespace llmsim {

ApiServers::ApiServers(const GroupConfig& config, Group& group) {
  if (!config.api_server.works()) return;
  if (config.role != Role::kBoth)
    throw std::invalid_argument("an API server's work is for groups that give whole answers");
  if (config.api_server.processes < 1)
    throw std::invalid_argument("an API server has at least one process");
  sent_.resize(at(config.api_server.processes));
  for (std::size_t process = 0; process < sent_.size(); ++process)
    processes_.push_back(std::make_unique<ApiServer>(config.api_server, process, group));
}

bool ApiServers::leaves_early(RequestId request) {
  if (!work() || !of(request).tokenizes(request)) return false;
  left_early_.push_back(request);
  return true;
}

bool ApiServers::left_early(RequestId request) {
  const auto gone = std::ranges::find(left_early_, request);
  if (gone == left_early_.end()) return false;
  left_early_.erase(gone);
  return true;
}

void ApiServers::answer(const Batch& batch, std::span<const RequestId> finished, std::size_t step,
                        Ps now) {
  std::vector<StepAnswers> answers(processes_.size(), StepAnswers{step, {}, {}});
  for (const Item& item : batch.items)
    if (item.emits) answers[process_of(item.request)].items.push_back(item);
  for (const RequestId request : finished) answers[process_of(request)].finished.push_back(request);
  for (std::size_t process = 0; process < answers.size(); ++process) {
    sent_[process].push_back(now);
    StepAnswers& mine = answers[process];
    if (!mine.items.empty() || !mine.finished.empty())
      processes_[process]->stream(std::move(mine), now);
  }
}

ApiServers::Unseen ApiServers::close(Ps now) {
  Unseen unseen;
  for (const auto& process : processes_)
    for (const RequestId request : process->close(now)) unseen.prompts.push_back(request);
  unseen.left = std::exchange(left_early_, {});
  return unseen;
}

bool ApiServers::stream() const {
  return std::ranges::any_of(processes_, [](const auto& process) { return process->streams(); });
}

std::int32_t ApiServers::num_prompts() const {
  std::int32_t prompts = 0;
  for (const auto& process : processes_) prompts += process->num_prompts();
  return prompts;
}

void ApiServers::mark_referred(std::vector<bool>& requests) const {
  for (const auto& process : processes_) process->mark_referred(requests);
}

}  // namespace llmsim
