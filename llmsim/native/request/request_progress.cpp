#include "request/request_progress.h"

#include <algorithm>

namespace llmsim {

RequestProgress::RequestProgress(std::size_t n) {
  static_assert(lists_every_member<RequestProgress>(), "columns() lacks a member");
  std::apply([&](const auto&... one) { ((this->*one.values).assign(n, one.initial), ...); },
             columns());
}

RequestProgress RequestProgress::picked(std::span<const RequestId> requests) const {
  RequestProgress rows(requests.size());
  const auto pick = [&](const auto& one) {
    for (std::size_t i = 0; i < requests.size(); ++i)
      (rows.*one.values)[i] = (this->*one.values)[at(requests[i])];
  };
  std::apply([&](const auto&... one) { (pick(one), ...); }, columns());
  return rows;
}

namespace {

template <typename T>
T seen_by_client(SaidBy said_by, T answer, T prompt, bool prompt_first) {
  switch (said_by) {
    case SaidBy::kAnswer:
      return answer;
    case SaidBy::kPrompt:
      return prompt_first ? prompt : answer;
    case SaidBy::kEarlier:
      if (answer == kNever || prompt == kNever) return std::max(answer, prompt);
      return std::min(answer, prompt);
    case SaidBy::kLater:
      return std::max(answer, prompt);
    case SaidBy::kSum:
      return static_cast<T>(answer + prompt);
  }
  return answer;
}

}  // namespace

// Another group than that of the prompt may have run it first, before a switch of layouts.
void RequestProgress::begin_with(const RequestProgress& prompts, RequestId request) {
  const Ps ran = scheduled[request], prompt_ran = prompts.scheduled[request];
  const bool prompt_first = ran == kNever || (prompt_ran != kNever && prompt_ran <= ran);
  const auto merge = [&](const auto& one) {
    auto& answer = (this->*one.values)[request];
    answer = seen_by_client(one.said_by, answer, (prompts.*one.values)[request], prompt_first);
  };
  std::apply([&](const auto&... one) { (merge(one), ...); }, columns());
}

}  // namespace llmsim
