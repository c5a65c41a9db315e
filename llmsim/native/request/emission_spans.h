// The stretches of outputs in which each request emitted, by request.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "request/request_log.h"

namespace llmsim {

// A view of a log that outlives neither it nor the next event; most requests have one run, which
// costs nothing here.
class EmissionSpans {
 public:
  using Run = RequestLog::Run;

  // Closed runs come in order of closing, which stays that of each request.
  explicit EmissionSpans(const RequestLog& log) : log_(log), closed_(log.runs) {
    std::ranges::stable_sort(closed_, {}, &Run::request);
  }

  // A request's, in order of time.
  std::vector<Run> of(RequestId request) const {
    const auto found = std::ranges::equal_range(closed_, request, {}, &Run::request);
    std::vector<Run> runs(found.begin(), found.end());
    add_open(request, runs);
    return runs;
  }

  // Calls visit(request, its runs) for all requests, ascending; who emitted nothing has none.
  template <typename Visit>
  void each(Visit visit) const {
    std::vector<Run> runs;
    auto closed = closed_.begin();
    for (RequestId request = 0; request < static_cast<RequestId>(log_.run_first.size());
         ++request) {
      runs.clear();
      for (; closed != closed_.end() && closed->request == request; ++closed)
        runs.push_back(*closed);
      add_open(request, runs);
      visit(request, std::span<const Run>(runs));
    }
  }

 private:
  void add_open(RequestId request, std::vector<Run>& runs) const {
    if (log_.run_first[request] >= 0)
      runs.push_back(
          {request, log_.run_first[request], log_.run_last[request], log_.group[request]});
  }

  const RequestLog& log_;
  std::vector<Run> closed_;
};

}  // namespace llmsim
