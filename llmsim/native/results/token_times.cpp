#include "results/token_times.h"

#include <algorithm>

namespace llmsim {

TokenTimes::TokenTimes(const Simulation& simulation)
    : simulation_(simulation), runs_(simulation.log()), bursts_(simulation.log().bursts) {
  std::ranges::stable_sort(bursts_, {}, &RequestLog::Burst::request);
}

const std::vector<Ps>& TokenTimes::times_of(RequestId request) const {
  return simulation_.groups()[static_cast<std::size_t>(simulation_.log().group[request])]
      ->output_times();
}

WeightedValues TokenTimes::inter_token_latencies() const {
  const RequestLog& log = simulation_.log();
  const auto& groups = simulation_.groups();
  Histogram counts;
  // weight[k] of a group: how many requests emitted with outputs k - 1 and k, from a difference
  // array over the runs.
  std::vector<std::vector<std::int32_t>> weights;
  for (const auto& group : groups) weights.emplace_back(group->output_times().size() + 1, 0);
  runs_.each([&](RequestId request, std::span<const RequestLog::Run> runs) {
    if (runs.empty() || log.finish[request] == kNever) return;
    const auto& times = times_of(request);
    auto& weight = weights[static_cast<std::size_t>(log.group[request])];
    for (std::size_t r = 0; r < runs.size(); ++r) {
      ++weight[runs[r].first + 1];
      --weight[runs[r].last + 1];
      if (r > 0) counts.add(times[runs[r].first] - times[runs[r - 1].last], 1);
    }
  });
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& times = groups[g]->output_times();
    std::int64_t active = 0;
    for (std::size_t k = 0; k < times.size(); ++k) {
      active += weights[g][k];
      if (active > 0) counts.add(times[k] - times[k - 1], active);
    }
  }
  std::int64_t together = 0;
  for (const auto& burst : bursts_)
    if (log.finish[burst.request] != kNever) together += burst.extra;
  if (together > 0) counts.add(0, together);
  return counts.take();
}

std::vector<Ps> TokenTimes::inter_token_latencies_of(RequestId request) const {
  std::vector<std::int32_t> outputs;
  for (const RequestLog::Run& run : runs_.of(request))
    for (std::int32_t k = run.first; k <= run.last; ++k) outputs.push_back(k);
  for (const auto& burst :
       std::ranges::equal_range(bursts_, request, {}, &RequestLog::Burst::request))
    outputs.insert(outputs.end(), static_cast<std::size_t>(burst.extra), burst.output);
  std::sort(outputs.begin(), outputs.end());
  std::vector<Ps> gaps;
  if (outputs.empty()) return gaps;
  const auto& times = times_of(request);
  for (std::size_t i = 1; i < outputs.size(); ++i)
    gaps.push_back(times[outputs[i]] - times[outputs[i - 1]]);
  return gaps;
}

}  // namespace llmsim
