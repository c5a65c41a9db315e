// What happened to every request, as columns, and the emission runs from which inter-token
// latencies are rebuilt.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "request/request_progress.h"

namespace llmsim {

// Written by the group that serves a request (through its scheduler) and by the loop on arrival;
// read when the run ends. A token's time is its group's end of the step with that output index, so
// a request that decodes without a pause is one run of indices whatever its length.
class RequestLog : public RequestProgress {
 public:
  struct Run {
    RequestId request;
    std::int32_t first, last;  // output indices of the group, inclusive
    std::int16_t group;
  };
  struct Burst {
    RequestId request;
    std::int32_t output,
        extra;  // tokens beyond the first that came with this output (accepted drafts)
    std::int16_t group;
  };

  // Drafts of each request: proposed, verified, held, and tokens that verifications gave.
  struct Drafts {
    std::vector<std::int32_t> verifications, drafted, verified, accepted, committed;

    void resize(std::size_t n) {
      for (auto* column : {&verifications, &drafted, &verified, &accepted, &committed})
        column->resize(n, 0);
    }
    void add(RequestId request, std::int32_t drafts, std::int32_t held, std::int32_t tokens) {
      ++verifications[request];
      verified[request] += drafts;
      accepted[request] += held;
      committed[request] += tokens;
    }
    void forget(RequestId request) {
      if (verified.empty()) return;
      for (auto* column : {&verifications, &drafted, &verified, &accepted, &committed})
        (*column)[request] = 0;
    }
  };

  struct Preemption {
    RequestId request;
    std::int32_t output;  // of the step whose schedule took its blocks away
    std::int16_t group;
  };

  // A switch of layouts during which no group had the request: from its leaving one, or its
  // arrival, until the next one opened.
  struct Move {
    RequestId request;
    std::int16_t group;  // that had run it before; -1: it had not run
    Ps from, until;
  };

  explicit RequestLog(std::size_t n)
      : RequestProgress(n), first_step(n, -1), run_first(n, -1), run_last(n, -1) {}

  // Called by the group before its scheduler builds the batch that will have this output index.
  void begin_build(std::int32_t output_index) { building_ = output_index; }
  // The request runs for the first time.
  void first_scheduled(RequestId request, Ps now, std::int32_t cached) {
    scheduled[request] = now;
    first_step[request] = building_;
    cached_tokens[request] = cached;
  }
  // It is parked while the tiers below fill its blocks; counts until it runs for the first time.
  void begin_load(RequestId request, Ps now) {
    if (scheduled[request] != kNever) return;
    if (load_begin.empty()) load_begin = load_end = std::vector<Ps>(scheduled.size(), kNever);
    load_begin[request] = now;
  }
  void end_load(RequestId request, Ps now) {
    if (scheduled[request] == kNever && !load_begin.empty() && load_begin[request] != kNever)
      load_end[request] = now;
  }
  // Where its prompt comes from, as a live simulation counts it: tokens that it had when it first
  // ran, and what it then had from below the devices.
  void count_sources() {
    began_with_.assign(group.size(), 0);
    external_.assign(group.size(), 0);
  }
  void began_with(RequestId request, std::int32_t tokens) {
    if (!began_with_.empty()) began_with_[request] = tokens;
  }
  void found_external(RequestId request, std::int32_t tokens) {
    if (!external_.empty()) external_[request] = tokens;
  }
  std::int32_t began_with(RequestId request) const {
    return began_with_.empty() ? 0 : began_with_[request];
  }
  std::int32_t external_tokens(RequestId request) const {
    return external_.empty() ? 0 : external_[request];
  }
  void preempted(RequestId request) {
    ++preemptions[request];
    preempted_at.push_back({request, building_, group[request]});
  }
  // Called by the group before its scheduler completes a batch.
  void begin_output(std::int32_t output_index, Ps now) {
    output_ = output_index;
    now_ = now;
  }
  // Of the batch that completes.
  Ps output_time() const { return now_; }

  void emit(RequestId request, std::int32_t count) {
    if (emitted_tokens[request] == 0) {
      first_token[request] = now_;
      run_first[request] = output_;
    } else if (run_last[request] + 1 != output_) {
      close_run(request);
      run_first[request] = output_;
    }
    run_last[request] = output_;
    emitted_tokens[request] += count;
    if (count > 1) bursts.push_back({request, output_, count - 1, group[request]});
  }

  // The request leaves its group with the answer so far, or waits for a group since its arrival.
  void moved(RequestId request, Ps from, Ps until) {
    const bool ran = scheduled[request] != kNever;
    moves.push_back({request, ran ? group[request] : std::int16_t{-1}, from, until});
    close_run(request);
    run_first[request] = -1;
    run_last[request] = -2;  // the next output begins a run
    will_resume(request);
  }
  // It leaves its group; the next one may run it.
  void will_resume(RequestId request) {
    if (scheduled[request] == kNever) return;
    if (resumes_.empty()) resumes_.assign(group.size(), false);
    resumes_[request] = true;
  }
  // When the next group opened that took what was moved since `first`, an index of `moves`.
  void opened(std::size_t first, Ps until) {
    for (std::size_t i = first; i < moves.size(); ++i) moves[i].until = until;
  }
  // Whether the request runs for the first time since it was moved; true once.
  bool resumes(RequestId request, Ps now) {
    if (resumes_.empty() || !resumes_[request]) return false;
    if (resumed.empty()) resumed.assign(group.size(), kNever);
    resumed[request] = now;
    resumes_[request] = false;
    return true;
  }

  void finished(RequestId request) { finish[request] = now_; }

  // API servers take time; before the first event.
  void use_api_servers() {
    const std::vector<Ps> never(finish.size(), kNever);
    if (tokenized.empty()) tokenized = first_streamed = last_streamed = never;
  }

  // Nothing has happened to these requests. O(everything that is noted).
  void forget(const std::vector<RequestId>& requests) {
    if (requests.empty()) return;
    std::vector<bool> forgotten(run_first.size(), false);
    for (const RequestId request : requests) {
      forgotten[request] = true;
      RequestProgress::forget(request);
      drafts.forget(request);
      first_step[request] = run_first[request] = run_last[request] = -1;
      if (!external_.empty()) began_with_[request] = external_[request] = 0;
      if (!load_begin.empty()) load_begin[request] = load_end[request] = kNever;
      if (!tokenized.empty())
        tokenized[request] = first_streamed[request] = last_streamed[request] = kNever;
    }
    const auto is_forgotten = [&](const auto& noted) { return forgotten[noted.request]; };
    std::erase_if(preempted_at, is_forgotten);
    std::erase_if(runs, is_forgotten);
    std::erase_if(bursts, is_forgotten);
    std::erase_if(moves, is_forgotten);
    if (!resumes_.empty())
      for (const RequestId request : requests) resumes_[request] = false;
    if (!resumed.empty())
      for (const RequestId request : requests) resumed[request] = kNever;
  }

  std::vector<Ps> load_begin, load_end;  // empty unless somebody was parked so
  // When its API server passed the prompt on, and sent the first and the last chunk; empty unless
  // some group's API server takes time.
  std::vector<Ps> tokenized, first_streamed, last_streamed;
  std::vector<std::int32_t> first_step;   // output index of the step in which it ran first
  std::vector<Preemption> preempted_at;   // in order of time
  std::vector<std::int32_t> share_place;  // for DeviceShares; empty unless some group records them
  std::vector<std::int32_t> run_first, run_last;  // the open (last) run of each request
  std::vector<Run> runs;                          // closed runs, in order of closing
  std::vector<Burst> bursts;
  Drafts drafts;            // empty unless some group speculates
  std::vector<Move> moves;  // in order of time
  std::vector<Ps> resumed;  // when it last ran again after a move; empty: nobody was moved

 private:
  void close_run(RequestId request) {
    if (run_first[request] >= 0)
      runs.push_back({request, run_first[request], run_last[request], group[request]});
  }

  std::vector<std::int32_t> began_with_, external_;  // empty unless somebody counts them
  std::vector<bool> resumes_;                        // empty where no request was ever moved
  std::int32_t output_ = 0, building_ = 0;
  Ps now_ = 0;
};

}  // namespace llmsim
