// The stretches of outputs in which each request emitted, by request.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "request/request_log.h"

namespace llmsim {

// A view of a log that outlives neither it nor the next event.
class EmissionSpans {
 public:
  using Run = RequestLog::Run;

  // Closed runs come in order of closing, which stays that of each request.
  explicit EmissionSpans(const RequestLog& log) : log_(log) {
    if (log.runs.empty()) return;
    begins_.assign(log.run_first.size() + 1, 0);
    for (const Run& run : log.runs) ++begins_[at(run.request) + 1];
    for (std::size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
    std::vector<std::uint32_t> next(begins_.begin(), begins_.end() - 1);
    closed_.resize(log.runs.size());
    for (std::uint32_t i = 0; i < closed_.size(); ++i) closed_[next[at(log.runs[i].request)]++] = i;
  }

  // A request's, in order of time.
  std::vector<Run> of(RequestId request) const {
    std::vector<Run> runs;
    add(request, runs);
    return runs;
  }

  // Calls visit(request, its runs) for all requests, ascending; who emitted nothing has none.
  template <typename Visit>
  void each(Visit visit) const {
    std::vector<Run> runs;
    for (RequestId request = 0; request < static_cast<RequestId>(log_.run_first.size());
         ++request) {
      runs.clear();
      add(request, runs);
      visit(request, std::span<const Run>(runs));
    }
  }

 private:
  static std::size_t at(RequestId request) { return static_cast<std::size_t>(request); }

  void add(RequestId request, std::vector<Run>& runs) const {
    if (!begins_.empty())
      for (std::size_t i = begins_[at(request)]; i < begins_[at(request) + 1]; ++i)
        runs.push_back(log_.runs[closed_[i]]);
    if (log_.run_first[request] >= 0)
      runs.push_back(
          {request, log_.run_first[request], log_.run_last[request], log_.group[request]});
  }

  const RequestLog& log_;
  // Places of closed runs in the log, by request; those of r are closed_[begins_[r]] ..
  // closed_[begins_[r + 1] - 1]. Empty where no run was closed.
  std::vector<std::uint32_t> begins_, closed_;
};

}  // namespace llmsim
