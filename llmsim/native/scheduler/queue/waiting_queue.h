// The waiting queue of a group, in an order of its own or in that of a policy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "request/sequence_table.h"
#include "scheduler/ranking/policies.h"
#include "scheduler/ranking/ranking.h"

namespace llmsim {

// The order in which waiting requests are admitted.
enum class QueueOrder : std::uint8_t {
  // Order of arrival at the engine (vLLM's default).
  kFcfs,
  // (priority, arrival, row), a lower number first (vLLM's `--scheduling-policy priority`).
  kPriority,
  // Prompt length, then arrival: shortest job first as far as a server can know it.
  kShortest,
  // Least slack against one target for the time to first token. Slack is what would be left of the
  // target if the prompt ran now and alone. Requests that can no longer make it wait behind all
  // that can, the oldest first, so that one late request does not delay the next (least laxity
  // first, A. Mok, 1983, with the overload rule of best-effort scheduling, C. D. Locke, 1986).
  kSlack,
  // A key from outside (Policies::queue_key), then arrival.
  kKeyed,
  // The order of a ranking, decided anew before each step.
  kRanked
};

struct QueueConfig {
  QueueOrder order = QueueOrder::kFcfs;
  Ps ttft_target = 0;           // kSlack: from arrival to first token
  Ps prefill_ps_per_token = 0;  // kSlack: how long a prompt takes alone
  std::function<std::int64_t(const SequenceView&)> key = nullptr;  // kKeyed
  bool preempted_first = true;     // kKeyed: else a preempted request gets a new key
  bool passed_over_first = false;  // who was passed over goes before who is preempted later
};

inline SequenceView view_of(const SequenceTable& sequences, RequestId request) {
  const Sequence& s = sequences[request];
  return {request,
          s.prompt_tokens,
          s.emitted(),
          s.num_computed,
          static_cast<std::int32_t>(s.blocks.size()),
          s.priority,
          s.arrival};
}

// A preempted request goes in front of all others, except by priority, where it takes its old place
// as in vLLM.
class WaitingQueue {
 public:
  WaitingQueue(const QueueConfig& config, SequenceTable& sequences)
      : config_(config), sequences_(sequences) {}

  bool empty() const { return listed_.empty() && sorted_.empty() && late_.empty(); }
  std::size_t size() const { return listed_.size() + sorted_.size() + late_.size(); }

  // The next request, as of `now`; requires !empty(). Also what `pop_front` takes, if nothing was
  // pushed in between.
  RequestId front(Ps now) {
    if (!ranked_.empty()) return ranked_.front();
    if (!listed_.empty()) return listed_.front();
    if (config_.order == QueueOrder::kSlack) set_late_aside(now);
    return std::get<2>(sorted_.empty() ? *late_.begin() : *sorted_.begin());
  }
  void push_back(RequestId request) {
    if (config_.order == QueueOrder::kKeyed) ask_key(request);
    if (keeps_list()) {
      listed_.push_back(request);
    } else {
      sorted_.insert(entry(request));
    }
  }
  void push_front(RequestId request) {
    if (config_.order == QueueOrder::kKeyed && !config_.preempted_first) {
      push_back(request);
    } else if (config_.order == QueueOrder::kPriority) {
      sorted_.insert(entry(request));
    } else {
      list_at(behind_passed_over(), request);
    }
  }
  void pop_front() {
    if (!ranked_.empty()) {
      listed_.erase(std::find(listed_.begin(), listed_.end(), ranked_.front()));
      ranked_.pop_front();
    } else if (!listed_.empty()) {
      listed_.pop_front();
    } else if (!sorted_.empty()) {
      sorted_.erase(sorted_.begin());
    } else {
      late_.erase(late_.begin());
    }
  }
  // The next request lets those behind it go first, until `return_passed_over`.
  void pass_over(Ps now) {
    const RequestId request = front(now);
    pop_front();
    add_passed_over(request);
  }
  // A request that is not in the queue comes in as if it had been passed over.
  void add_passed_over(RequestId request) {
    passed_over_.push_back(request);
    sequences_.set_aside(request);
  }
  // Puts them back in front, in their order.
  void return_passed_over() {
    for (; !passed_over_.empty(); passed_over_.pop_back()) {
      const RequestId request = passed_over_.back();
      if (keeps_sorted()) {
        sorted_.insert(entry(request));
      } else {
        list_at(listed_.begin(), request);
      }
    }
  }
  // Whether somebody waits who was not passed over.
  bool somebody_in_turn() const {
    bool found = false;
    each([&](RequestId request) { found |= sequences_[request].aside == 0; });
    return found;
  }
  // `request` is in the queue.
  void remove(RequestId request) {
    if (ranker_ != nullptr) std::erase(ranked_, request);
    const auto listed = std::find(listed_.begin(), listed_.end(), request);
    if (listed != listed_.end()) {
      listed_.erase(listed);
    } else if (sorted_.erase(entry(request)) == 0) {
      late_.erase(late_entry(request));
    }
  }

  // Who orders the queue from now on; the queue itself keeps the order of arrival.
  void rank_by(const Ranker* ranker) {
    ranker_ = ranker;
    config_.order = QueueOrder::kRanked;
  }
  // Takes over the order that the ranker has found for all who wait.
  void rank() {
    ranked_ = listed_;
    std::sort(ranked_.begin(), ranked_.end(), Before{ranker_});
  }
  // Calls see(request) for all who wait, in the order of the queue; by slack, as it was last.
  template <typename See>
  void each(See see) const {
    for (const RequestId request : listed_) see(request);
    for (const Entry& entry : sorted_) see(std::get<2>(entry));
    for (const Entry& entry : late_) see(std::get<2>(entry));
  }

 private:
  struct Before {
    const Ranker* ranker;
    bool operator()(RequestId a, RequestId b) const { return ranker->before(a, b); }
  };
  using Entry = std::tuple<std::int64_t, Ps, RequestId>;

  bool keeps_list() const {
    return config_.order == QueueOrder::kFcfs || config_.order == QueueOrder::kRanked;
  }
  Entry entry(RequestId request) const {
    const Sequence& s = sequences_[request];
    switch (config_.order) {
      case QueueOrder::kShortest:
        return {s.prompt_tokens, s.arrival, request};
      case QueueOrder::kSlack:  // the latest start that makes the target: slack, without the `now`
                                // that all share
        return {s.arrival + config_.ttft_target - s.prompt_tokens * config_.prefill_ps_per_token,
                s.arrival, request};
      case QueueOrder::kKeyed:
        return {keys_.at(request), s.arrival, request};
      default:
        return {s.priority, s.arrival, request};
    }
  }
  // A request whose key cannot be had because its policy was interrupted is in the queue
  // nevertheless.
  void ask_key(RequestId request) {
    keys_[request] = 0;
    try {
      keys_[request] = config_.key(view_of(sequences_, request));
    } catch (...) {
      sorted_.insert(entry(request));
      throw;
    }
  }
  Entry late_entry(RequestId request) const { return {0, sequences_[request].arrival, request}; }

  // Who must start first is late first, so the late ones are at the head.
  void set_late_aside(Ps now) {
    while (!sorted_.empty() && std::get<0>(*sorted_.begin()) < now) {
      late_.insert(late_entry(std::get<2>(*sorted_.begin())));
      sorted_.erase(sorted_.begin());
    }
  }

  // A request that lost its blocks goes in front of all others, or of all that were not passed
  // over.
  std::deque<RequestId>::iterator behind_passed_over() {
    if (!config_.passed_over_first) return listed_.begin();
    return std::find_if_not(listed_.begin(), listed_.end(),
                            [this](RequestId request) { return sequences_[request].aside > 0; });
  }
  void list_at(std::deque<RequestId>::iterator place, RequestId request) {
    listed_.insert(place, request);
    if (ranker_ == nullptr) return;
    ranked_.insert(std::upper_bound(ranked_.begin(), ranked_.end(), request, Before{ranker_}),
                   request);
  }
  // Also those that lost their blocks.
  bool keeps_sorted() const {
    return config_.order == QueueOrder::kPriority ||
           (config_.order == QueueOrder::kKeyed && !config_.preempted_first);
  }

  QueueConfig config_;
  SequenceTable& sequences_;
  std::deque<RequestId> listed_;  // first come first served; else, what was put back in front
  const Ranker* ranker_ = nullptr;
  std::deque<RequestId> ranked_;        // kRanked: of `listed_`, those that were ranked
  std::vector<RequestId> passed_over_;  // in this pass
  std::set<Entry> sorted_, late_;
  std::unordered_map<RequestId, std::int64_t>
      keys_;  // kKeyed: the last key of each request; looked up, never walked
};

}  // namespace llmsim
