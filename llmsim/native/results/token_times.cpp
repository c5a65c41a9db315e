#include "results/token_times.h"

#include <algorithm>
#include <map>

namespace llmsim {

TokenTimes::TokenTimes(const Simulation& simulation)
    : simulation_(simulation), runs_(simulation.log()), bursts_(simulation.log().bursts) {
  std::ranges::stable_sort(bursts_, {}, &RequestLog::Burst::request);
}

const std::vector<Ps>& TokenTimes::times_of(RequestId request, std::int16_t group) const {
  return simulation_.groups()[static_cast<std::size_t>(group)]->client_times(request);
}

WeightedValues TokenTimes::inter_token_latencies() const {
  const RequestLog& log = simulation_.log();
  Histogram counts;
  // weight[k] of a group: how many requests emitted with outputs k - 1 and k, from a difference
  // array over the runs.
  // Steps have times of their own for each process of an API server.
  std::map<const std::vector<Ps>*, std::vector<std::int32_t>> weights;
  runs_.each([&](RequestId request, std::span<const RequestLog::Run> runs) {
    if (runs.empty() || log.finish[request] == kNever) return;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const std::vector<Ps>& times = times_of(request, runs[r].group);
      std::vector<std::int32_t>& weight =
          weights.try_emplace(&times, times.size() + 1).first->second;
      ++weight[runs[r].first + 1];
      --weight[runs[r].last + 1];
      if (r == 0) continue;
      const Ps before = times_of(request, runs[r - 1].group)[runs[r - 1].last];
      counts.add(times[runs[r].first] - before, 1);
    }
  });
  for (const auto& [found, weight] : weights) {
    const std::vector<Ps>& times = *found;
    std::int64_t active = 0;
    for (std::size_t k = 0; k < times.size(); ++k) {
      active += weight[k];
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
  std::vector<Ps> emitted;
  for (const RequestLog::Run& run : runs_.of(request))
    for (std::int32_t k = run.first; k <= run.last; ++k)
      emitted.push_back(times_of(request, run.group)[static_cast<std::size_t>(k)]);
  for (const auto& burst :
       std::ranges::equal_range(bursts_, request, {}, &RequestLog::Burst::request))
    emitted.insert(emitted.end(), static_cast<std::size_t>(burst.extra),
                   times_of(request, burst.group)[static_cast<std::size_t>(burst.output)]);
  std::sort(emitted.begin(), emitted.end());
  std::vector<Ps> gaps;
  for (std::size_t i = 1; i < emitted.size(); ++i) gaps.push_back(emitted[i] - emitted[i - 1]);
  return gaps;
}

}  // namespace llmsim
