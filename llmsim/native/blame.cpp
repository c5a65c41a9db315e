#include "blame.h"

#include <algorithm>

namespace llmsim {

namespace {

// A stretch of device time by what it went to.
struct Split {
  Ps compute = 0, collective = 0, waiting = 0;
};

// Sums over a group's completed steps, so that any stretch of steps is two subtractions: [k] covers steps 0 .. k - 1.
// Where steps overlap (pipeline stages), each counts from the end of the one before.
struct Timeline {
  explicit Timeline(const Group& group)
      : end(group.output_times()),
        start(group.output_starts()),
        communication(group.output_communication()),
        waited(group.output_waiting()),
        overlaps(group.evaluator().overlaps()),
        recalls(group.recalls()) {
    const std::size_t n = end.size();
    compute.assign(n + 1, 0);
    collective.assign(n + 1, 0);
    waiting.assign(waited.empty() ? 0 : n + 1, 0);
    idle.assign(n + 1, 0);
    for (std::size_t k = 0; k < n; ++k) {
      const Ps before = k > 0 ? end[k - 1] : start[k];
      const Split split = step(k, std::max(start[k], before));
      collective[k + 1] = collective[k] + split.collective;
      compute[k + 1] = compute[k] + split.compute;
      if (!waiting.empty()) waiting[k + 1] = waiting[k] + split.waiting;
      idle[k + 1] = idle[k] + std::max<Ps>(0, start[k] - before);
    }
  }

  // What step k did from `from` (not before its start) until its end.
  Split step(std::size_t k, Ps from) const {
    const Ps span = end[k] - from;
    Split split;
    split.collective = std::min(communication[k], span);
    if (k < waited.size()) split.waiting = std::min(waited[k], span - split.collective);
    split.compute = span - split.collective - split.waiting;
    return split;
  }

  const std::vector<Ps>&end, &start, &communication, &waited;
  bool overlaps;
  bool recalls;  // steps wait for KV from the tiers, and for nothing else
  std::vector<Ps> compute, collective, waiting, idle;
};

// Splits one request's time as its events are walked in order.
class Walk {
 public:
  Walk(Blame& blame, const RequestLog& log, const std::vector<Timeline>& timelines)
      : blame_(blame), log_(log), timelines_(timelines) {}

  void request(RequestId id, Ps arrival, std::span<const RequestLog::Run> runs, std::span<const std::int32_t> losses) {
    const Timeline& t = timeline(log_, id);
    blame_.api[id] = log_.queued[id] - arrival;
    const Ps dropped = log_.cancelled[id];
    if (log_.scheduled[id] == kNever) {
      blame_.queue[id] = dropped - log_.queued[id];
      return;
    }
    blame_.queue[id] = log_.scheduled[id] - log_.queued[id];
    if (dropped != kNever)
      blame_.abandoned[id] = dropped - (runs.empty() ? log_.scheduled[id] : t.end[runs.back().last]);
    if (!runs.empty()) answer(id, t, runs, losses);
  }

  // Disaggregated: two groups and the way between them, in the order of their events.
  void request(RequestId id, Ps arrival, std::span<const RequestLog::Run> runs, std::span<const std::int32_t> losses,
               const RequestLog& prompts, std::span<const std::int32_t> prompt_losses, const Handover& handover,
               bool push) {
    const Ps reserving = handover.reserved - log_.queued[id], told = prompts.queued[id] - handover.reserved;
    const Ps there = std::max(handover.prefilled, handover.landed);
    blame_.api[id] = (push ? log_ : prompts).queued[id] - arrival + (push ? 0 : log_.queued[id] - handover.prefilled);
    blame_.queue[id] = prompts.scheduled[id] - prompts.queued[id] + reserving;
    blame_.kv_transfer[id] = push ? told + there - handover.prefilled : handover.landed - handover.reserved;
    blame_.wait[id] = log_.scheduled[id] - there;
    losses_ = prompt_losses;
    prefill(id, prompts, timeline(prompts, id), prompts.run_first[id]);
    answer(id, timeline(log_, id), runs, losses);
  }

 private:
  const Timeline& timeline(const RequestLog& log, RequestId id) const {
    return timelines_[static_cast<std::size_t>(log.group[id])];
  }

  // From being scheduled by the group that answers.
  void answer(RequestId id, const Timeline& t, std::span<const RequestLog::Run> runs,
              std::span<const std::int32_t> losses) {
    losses_ = losses;
    prefill(id, log_, t, runs.front().first);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      stretch(id, t, runs[i].first + 1, runs[i].last, blame_.decode);
      if (i + 1 < runs.size()) gap(id, t, runs[i].last, runs[i + 1].first);
    }
  }

  // Steps first .. last, the device idle before each of them included.
  void stretch(RequestId id, const Timeline& t, std::int32_t first, std::int32_t last, std::vector<Ps>& part) {
    if (first > last) return;
    part[id] += t.compute[last + 1] - t.compute[first];
    blame_.communication[id] += t.collective[last + 1] - t.collective[first];
    if (!t.waiting.empty())
      (t.recalls ? blame_.kv_transfer : blame_.wait)[id] += t.waiting[last + 1] - t.waiting[first];
    blame_.host[id] += t.idle[last + 1] - t.idle[first];
  }

  // One step of a pipeline, from `from` on.
  void step(RequestId id, const Timeline& t, std::int32_t k, Ps from, std::vector<Ps>& part) {
    const Split split = t.step(static_cast<std::size_t>(k), from);
    part[id] += split.compute;
    blame_.communication[id] += split.collective;
    blame_.wait[id] += split.waiting;
  }

  // From being scheduled to the end of the step that gave the first token.
  void prefill(RequestId id, const RequestLog& log, const Timeline& t, std::int32_t last) {
    const std::int32_t first = log.first_step[id];
    if (lost_before(last)) {
      blame_.preemption[id] += t.end[last] - log.scheduled[id];
      return;
    }
    blame_.wait[id] += t.start[first] - log.scheduled[id];
    if (t.overlaps) {
      blame_.prefill[id] += t.start[last] - t.start[first];  // the chunks before, of which several are under way
      return step(id, t, last, t.start[last], blame_.prefill);
    }
    stretch(id, t, first, last, blame_.prefill);
    blame_.host[id] -= t.idle[first + 1] - t.idle[first];  // idle before its first step is queueing or waiting
  }

  // Between the outputs `before` and `after`, of which only the second gave a token.
  void gap(RequestId id, const Timeline& t, std::int32_t before, std::int32_t after) {
    if (lost_before(after)) {
      blame_.preemption[id] += t.end[after] - t.end[before];
      return;
    }
    if (t.overlaps) {
      blame_.wait[id] += std::max<Ps>(0, t.start[after] - t.end[before]);
      return step(id, t, after, std::max(t.start[after], t.end[before]), blame_.decode);
    }
    blame_.wait[id] += t.end[after - 1] - t.end[before];
    stretch(id, t, after, after, blame_.decode);
  }

  // Whether a preemption happened since the last call, up to the step with this output; such preemptions are used up.
  bool lost_before(std::int32_t output) {
    bool lost = false;
    while (!losses_.empty() && losses_.front() <= output) {
      losses_ = losses_.subspan(1);
      lost = true;
    }
    return lost;
  }

  Blame& blame_;
  const RequestLog& log_;
  const std::vector<Timeline>& timelines_;
  std::span<const std::int32_t> losses_;
};

// Outputs before which requests were preempted, grouped by request: those of r are outputs[offsets[r] .. offsets[r +
// 1]).
struct Losses {
  explicit Losses(const RequestLog& log) : offsets(log.finish.size() + 1, 0), outputs(log.preempted_at.size()) {
    for (const auto& loss : log.preempted_at) ++offsets[static_cast<std::size_t>(loss.request) + 1];
    for (std::size_t i = 1; i < offsets.size(); ++i) offsets[i] += offsets[i - 1];
    std::vector<std::size_t> next(offsets.begin(), offsets.end() - 1);
    for (const auto& loss : log.preempted_at) outputs[next[static_cast<std::size_t>(loss.request)]++] = loss.output;
  }
  std::span<const std::int32_t> of(std::size_t request) const {
    return std::span(outputs).subspan(offsets[request], offsets[request + 1] - offsets[request]);
  }
  std::vector<std::size_t> offsets;
  std::vector<std::int32_t> outputs;
};

}  // namespace

Blame blame(const Simulation& simulation) {
  const RequestLog& log = simulation.log();
  const std::size_t n = log.finish.size();
  std::vector<Timeline> timelines;
  for (const auto& group : simulation.groups()) timelines.emplace_back(*group);

  std::vector<RequestLog::Run> runs = log.runs;  // closed ones in order of closing; stable by request keeps that order
  for (std::size_t i = 0; i < n; ++i)
    if (log.run_first[i] >= 0) runs.push_back({static_cast<RequestId>(i), log.run_first[i], log.run_last[i]});
  const auto by_request = [](const auto& a, const auto& b) { return a.request < b.request; };
  std::stable_sort(runs.begin(), runs.end(), by_request);
  const Losses losses(log);
  const Handovers* handovers = simulation.handovers();
  const Losses prompt_losses(handovers != nullptr ? *simulation.prompt_log() : RequestLog(0));

  Blame result(n);
  Walk walk(result, log, timelines);
  std::size_t run = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t first_run = run;
    while (run < runs.size() && runs[run].request == static_cast<RequestId>(i)) ++run;
    if (log.finish[i] == kNever && log.cancelled[i] == kNever) continue;
    const auto request = static_cast<RequestId>(i);
    const Ps arrival = simulation.arrivals().arrival_ps[i];
    const auto own = std::span(runs).subspan(first_run, run - first_run);
    if (handovers == nullptr || handovers->of(request).prefill_group < 0) {
      walk.request(request, arrival, own, losses.of(i));
    } else {
      walk.request(request, arrival, own, losses.of(i), *simulation.prompt_log(), prompt_losses.of(i),
                   handovers->of(request), handovers->pushes());
    }
  }
  return result;
}

}  // namespace llmsim
