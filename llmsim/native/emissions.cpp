#include "emissions.h"

#include <algorithm>

namespace llmsim {

Emissions::Emissions(const Simulation& simulation) : simulation_(simulation) {
  const RequestLog& log = simulation.log();
  const std::size_t n = log.run_first.size();
  runs_.offsets.assign(n + 1, 0);
  bursts_.offsets.assign(n + 1, 0);
  for (const auto& run : log.runs) ++runs_.offsets[static_cast<std::size_t>(run.request) + 1];
  for (const auto& burst : log.bursts) ++bursts_.offsets[static_cast<std::size_t>(burst.request) + 1];
  for (std::size_t i = 0; i < n; ++i) {
    runs_.offsets[i + 1] += runs_.offsets[i] + (log.run_first[i] >= 0);
    bursts_.offsets[i + 1] += bursts_.offsets[i];
  }
  runs_.values.resize(static_cast<std::size_t>(runs_.offsets[n]));
  bursts_.values.resize(static_cast<std::size_t>(bursts_.offsets[n]));
  std::vector<std::int64_t> next(runs_.offsets.begin(), runs_.offsets.end() - 1);
  for (const auto& run : log.runs) runs_.values[next[run.request]++] = {run.first, run.last};
  for (std::size_t i = 0; i < n; ++i)
    if (log.run_first[i] >= 0) runs_.values[next[i]] = {log.run_first[i], log.run_last[i]};
  next.assign(bursts_.offsets.begin(), bursts_.offsets.end() - 1);
  for (const auto& burst : log.bursts) bursts_.values[next[burst.request]++] = {burst.output, burst.extra};
}

const std::vector<Ps>& Emissions::times_of(RequestId request) const {
  return simulation_.groups()[static_cast<std::size_t>(simulation_.log().group[request])]->output_times();
}

WeightedValues Emissions::inter_token_latencies() const {
  const RequestLog& log = simulation_.log();
  const auto& groups = simulation_.groups();
  // weight[k] of a group: how many requests emitted with outputs k - 1 and k, from a difference array over the runs.
  std::vector<std::vector<std::int64_t>> weights;
  for (const auto& group : groups) weights.emplace_back(group->output_times().size() + 1, 0);
  std::vector<std::pair<Ps, std::int64_t>> pairs;
  for (std::size_t i = 0; i + 1 < runs_.offsets.size(); ++i) {
    const std::int64_t begin = runs_.offsets[i], end = runs_.offsets[i + 1];
    if (begin == end || log.finish[i] == kNever) continue;
    const auto& times = times_of(static_cast<RequestId>(i));
    auto& weight = weights[static_cast<std::size_t>(log.group[i])];
    for (std::int64_t r = begin; r < end; ++r) {
      const Span run = runs_.values[r];
      ++weight[run.first + 1];
      --weight[run.last + 1];
      if (r > begin) pairs.emplace_back(times[run.first] - times[runs_.values[r - 1].last], 1);
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& times = groups[g]->output_times();
    std::int64_t active = 0;
    for (std::size_t k = 0; k < times.size(); ++k) {
      active += weights[g][k];
      if (active > 0) pairs.emplace_back(times[k] - times[k - 1], active);
    }
  }
  std::int64_t together = 0;
  for (const auto& burst : log.bursts)
    if (log.finish[burst.request] != kNever) together += burst.extra;
  if (together > 0) pairs.emplace_back(0, together);

  std::sort(pairs.begin(), pairs.end());
  WeightedValues out;
  for (const auto& [value, count] : pairs) {
    if (!out.value.empty() && out.value.back() == value) {
      out.count.back() += count;
    } else {
      out.value.push_back(value);
      out.count.push_back(count);
    }
  }
  return out;
}

std::vector<Ps> Emissions::inter_token_latencies_of(RequestId request) const {
  std::vector<std::int32_t> outputs;
  for (std::int64_t r = runs_.offsets[request]; r < runs_.offsets[request + 1]; ++r)
    for (std::int32_t k = runs_.values[r].first; k <= runs_.values[r].last; ++k) outputs.push_back(k);
  for (std::int64_t b = bursts_.offsets[request]; b < bursts_.offsets[request + 1]; ++b)
    outputs.insert(outputs.end(), static_cast<std::size_t>(bursts_.values[b].last), bursts_.values[b].first);
  std::sort(outputs.begin(), outputs.end());
  std::vector<Ps> gaps;
  if (outputs.empty()) return gaps;
  const auto& times = times_of(request);
  for (std::size_t i = 1; i < outputs.size(); ++i) gaps.push_back(times[outputs[i]] - times[outputs[i - 1]]);
  return gaps;
}

}  // namespace llmsim
