#include "results/latency_breakdown.h"

#include <algorithm>
#include <optional>

#include "request/emission_spans.h"
#include "results/step_sums.h"

namespace llmsim {

namespace {

// Outputs before which requests were preempted, grouped by request: those of r are
// outputs[offsets[r] .. offsets[r + 1]); no offsets where nobody was.
struct Losses {
  explicit Losses(const RequestLog& log)
      : outputs(log.preempted_at.size()), groups(outputs.size()) {
    if (outputs.empty()) return;
    offsets.assign(log.finish.size() + 1, 0);
    for (const auto& loss : log.preempted_at) ++offsets[static_cast<std::size_t>(loss.request) + 1];
    for (std::size_t i = 1; i < offsets.size(); ++i) offsets[i] += offsets[i - 1];
    std::vector<std::size_t> next(offsets.begin(), offsets.end() - 1);
    for (const auto& loss : log.preempted_at) {
      const std::size_t place = next[static_cast<std::size_t>(loss.request)]++;
      outputs[place] = loss.output;
      groups[place] = loss.group;
    }
  }
  std::span<const std::int32_t> of(std::size_t request) const {
    if (offsets.empty()) return {};
    return std::span(outputs).subspan(offsets[request], offsets[request + 1] - offsets[request]);
  }
  // Those in one of the groups that had the request.
  std::span<const std::int32_t> of(RequestId request, std::int16_t group) const {
    if (offsets.empty()) return {};
    const auto from = groups.begin() + static_cast<std::ptrdiff_t>(offsets[at(request)]);
    const auto to = groups.begin() + static_cast<std::ptrdiff_t>(offsets[at(request) + 1]);
    const auto first = std::find(from, to, group);
    const auto last = std::find_if(first, to, [group](std::int16_t g) { return g != group; });
    return std::span(outputs).subspan(static_cast<std::size_t>(first - groups.begin()),
                                      static_cast<std::size_t>(last - first));
  }
  std::vector<std::size_t> offsets;
  std::vector<std::int32_t> outputs;
  std::vector<std::int16_t> groups;
};

// Splits one request's time as its events are walked in order.
class Walk {
 public:
  Walk(BlamedLatency& blame, const RequestLog& log, const std::vector<StepSums>& timelines,
       BlamedSpan span)
      : blame_(blame), log_(log), timelines_(timelines), span_(span) {}

  void request(RequestId id, Ps arrival, std::span<const RequestLog::Run> runs,
               std::span<const std::int32_t> losses) {
    const StepSums& t = timeline(log_, id);
    const Ps dropped = log_.cancelled[id];
    Clock clock{arrival, dropped};
    if (!log_.tokenized.empty()) frontend(id, clock.until(log_.tokenized[id]));
    blame_.api[id] += clock.until(log_.queued[id]);
    queued(id, log_, clock);
    if (clock.over) return;
    if (dropped != kNever)
      blame_.abandoned[id] =
          dropped - (runs.empty() ? log_.scheduled[id] : t.end(runs.back().last));
    if (!runs.empty()) answer(id, t, runs, losses);
    if (runs.empty() || dropped != kNever) return;
    streamed(id, t.end(span_ == BlamedSpan::FirstToken ? runs.front().first : runs.back().last));
  }

  // Of a request that switches of layouts moved from group to group.
  struct Moved {
    RequestId id;
    Ps arrival, dropped;
    std::span<const RequestLog::Run> runs;
    std::span<const RequestLog::Move> moves;
    std::span<const KvTransfer> kv_transfers;  // all its hand-overs, in order of time
  };
  void moved_request(const Moved& one, const Losses& losses) {
    const RequestId id = one.id;
    Clock clock{one.arrival, one.dropped};
    const RequestLog& log = log_that_began(id);
    const Ps began = log.scheduled[id];
    for (const RequestLog::Move& move : one.moves) {
      if (began != kNever && move.from >= began) break;
      blame_.api[id] += clock.until(std::min(log.queued[id], move.from));
      blame_.queue[id] += clock.until(move.from);
      blame_.reconfigure[id] += clock.until(move.until);
    }
    Ps last = began;
    const KvTransfer* handed_over = nullptr;
    const bool interrupted = !one.runs.empty() && is_interrupted(one, began);
    if (!one.runs.empty() && !interrupted && &log != &log_) handed_over = first_of(one);
    if (handed_over != nullptr) {
      const auto group = static_cast<std::int16_t>(handed_over->prefill_group);
      until_decoded(id, clock, prompts_->losses.of(id, group), *handed_over);
    } else {
      if (!log_.tokenized.empty()) frontend(id, clock.until(log_.tokenized[id]));
      blame_.api[id] += clock.until(log.queued[id]);
      queued(id, log, clock);
    }
    if (clock.over) return;
    for (std::size_t begin = 0, end = 0; begin < one.runs.size(); begin = end) {
      const std::int16_t group = one.runs[begin].group;
      while (end < one.runs.size() && one.runs[end].group == group) ++end;
      const StepSums& t = timelines_[static_cast<std::size_t>(group)];
      const auto stay = one.runs.subspan(begin, end - begin);
      losses_ = losses.of(id, group);
      if (begin == 0 && !interrupted) {
        prefill(id, log_, t, stay.front().first);
      } else {
        lost_before(stay.front().first);
        blame_.reconfigure[id] += t.end(static_cast<std::size_t>(stay.front().first)) - last;
      }
      if (span_ == BlamedSpan::FirstToken) {
        if (one.dropped == kNever) streamed(id, t.end(stay.front().first));
        return;
      }
      tokens(id, t, stay);
      last = t.end(static_cast<std::size_t>(stay.back().last));
    }
    if (one.dropped != kNever) {
      blame_.abandoned[id] += one.dropped - last;
    } else {
      streamed(id, last);
    }
  }

  // Of requests whose prompts other groups compute.
  struct Prompts {
    const RequestLog& log;
    const Losses& losses;
    bool push;
  };
  void use_prompts(const Prompts& prompts) { prompts_ = &prompts; }

  // Disaggregated: two groups and the way between them, in the order of their events.
  void request(RequestId id, Ps arrival, std::span<const RequestLog::Run> runs,
               std::span<const std::int32_t> losses, const KvTransfer& kv_transfer, Ps dropped) {
    Clock clock{arrival, dropped};
    until_decoded(id, clock, prompts_->losses.of(static_cast<std::size_t>(id)), kv_transfer);
    if (clock.over) return;
    if (dropped != kNever)
      blame_.abandoned[id] +=
          dropped - (runs.empty() ? clock.at : timeline(log_, id).end(runs.back().last));
    if (!runs.empty()) answer(id, timeline(log_, id), runs, losses);
  }

 private:
  // Walks from one event to the next, and stops where the request was dropped.
  struct Clock {
    Ps at, dropped;  // kNever: it was not
    bool over = false;
    bool reaches(Ps time) const {
      return !over && time != kNever && (dropped == kNever || time <= dropped);
    }
    // How long it takes to the event, or to the end.
    Ps until(Ps time) {
      if (over) return 0;
      over = !reaches(time);
      const Ps from = at;
      at = over ? dropped : std::max(time, at);
      return at - from;
    }
  };

  // When all KV that the decode group waited for was there; kNever where the client left before.
  Ps all_there(RequestId id, const KvTransfer& kv_transfer) const {
    const bool loads = !log_.load_begin.empty() && log_.load_begin[id] != kNever;
    const Ps loaded = loads ? log_.load_end[id] : kv_transfer.landed;
    if (!kv_transfer.complete() || loaded == kNever) return kNever;
    return std::max(kv_transfer.landed, loaded);
  }

  // From its arrival until the group that answers runs it.
  void until_decoded(RequestId id, Clock& clock, std::span<const std::int32_t> prompt_losses,
                     const KvTransfer& kv_transfer) {
    const RequestLog& prompts = prompts_->log;
    if (prompts_->push) {
      blame_.api[id] += clock.until(log_.queued[id]);
      blame_.queue[id] += clock.until(kv_transfer.reserved);
      blame_.kv_transfer[id] += clock.until(prompts.queued[id]);  // the prefill group is told
    } else {
      blame_.api[id] += clock.until(prompts.queued[id]);
    }
    queued(id, prompts, clock);
    if (clock.reaches(kv_transfer.prefilled)) {
      losses_ = prompt_losses;
      prefill(id, prompts, timelines_[at(kv_transfer.prefill_group)], kv_transfer.prefill_step);
      clock.until(kv_transfer.prefilled);
    } else {
      blame_.abandoned[id] += clock.until(kv_transfer.prefilled);
    }
    if (!prompts_->push) {
      blame_.api[id] += clock.until(log_.queued[id]);
      blame_.queue[id] += clock.until(kv_transfer.reserved);
    }
    blame_.kv_transfer[id] += clock.until(all_there(id, kv_transfer));
    blame_.wait[id] += clock.until(log_.scheduled[id]);
  }

  // Whose group ran the request first, or, where none did, got it first.
  const RequestLog& log_that_began(RequestId id) const {
    if (prompts_ == nullptr || prompts_->log.queued[id] == kNever) return log_;
    const RequestLog& prompts = prompts_->log;
    const Ps prompt_ran = prompts.scheduled[id], ran = log_.scheduled[id];
    if (ran == kNever && prompt_ran == kNever) return prompts;
    return ran == kNever || (prompt_ran != kNever && prompt_ran <= ran) ? prompts : log_;
  }
  Ps first_token(const Moved& one) const {
    const RequestLog::Run& run = one.runs.front();
    return timelines_[static_cast<std::size_t>(run.group)].end(static_cast<std::size_t>(run.first));
  }
  // Whether it was moved between its first step and its first token.
  bool is_interrupted(const Moved& one, Ps began) const {
    const Ps until = first_token(one);
    return std::ranges::any_of(one.moves, [&](const RequestLog::Move& move) {
      return move.from >= began && move.from < until;
    });
  }
  // The hand-over behind which its first token came.
  const KvTransfer* first_of(const Moved& one) const {
    const Ps until = first_token(one);
    const KvTransfer* found = nullptr;
    for (const KvTransfer& kv_transfer : one.kv_transfers)
      if (kv_transfer.prefilled != kNever && kv_transfer.prefilled <= until) found = &kv_transfer;
    return found;
  }
  const StepSums& timeline(const RequestLog& log, RequestId id) const {
    return timelines_[static_cast<std::size_t>(log.group[id])];
  }

  void frontend(RequestId id, Ps time) {
    blame_.api[id] += time;
    blame_.frontend[id] += time;
  }

  // From the end of the step that gave the last token of the span until the client had it.
  void streamed(RequestId id, Ps step_end) {
    const bool first = span_ == BlamedSpan::FirstToken;
    const std::vector<Ps>& sent = first ? log_.first_streamed : log_.last_streamed;
    if (!sent.empty() && sent[id] != kNever) frontend(id, sent[id] - step_end);
  }

  // From being seen by a group until it was scheduled.
  void queued(RequestId id, const RequestLog& log, Clock& clock) {
    if (!log.load_begin.empty() && clock.reaches(log.load_begin[id])) {
      blame_.queue[id] += clock.until(log.load_begin[id]);
      blame_.kv_transfer[id] += clock.until(log.load_end[id]);
      blame_.wait[id] += clock.until(log.scheduled[id]);
    } else {
      blame_.queue[id] += clock.until(log.scheduled[id]);
    }
  }

  // From being scheduled by the group that answers.
  void answer(RequestId id, const StepSums& t, std::span<const RequestLog::Run> runs,
              std::span<const std::int32_t> losses) {
    losses_ = losses;
    prefill(id, log_, t, runs.front().first);
    if (span_ != BlamedSpan::FirstToken) tokens(id, t, runs);
  }

  // After the first token of these runs of one group: all steps up to the last token but those in
  // gaps, which are a few between two runs.
  void tokens(RequestId id, const StepSums& t, std::span<const RequestLog::Run> runs) {
    StepSums::Sums without;
    for (std::size_t i = 1; i < runs.size(); ++i)
      gap(id, t, runs[i - 1].last, runs[i].first, without);
    add(id, sums(t, runs.front().first + 1, runs.back().last) - without, blame_.decode);
  }

  // Steps first .. last, the device idle before each of them included.
  void stretch(RequestId id, const StepSums& t, std::int32_t first, std::int32_t last,
               std::vector<Ps>& part) {
    add(id, sums(t, first, last), part);
  }

  static StepSums::Sums sums(const StepSums& t, std::int32_t first, std::int32_t last) {
    if (first > last) return {};
    return t.over(static_cast<std::size_t>(first), static_cast<std::size_t>(last));
  }

  void add(RequestId id, const StepSums::Sums& sums, std::vector<Ps>& part) {
    part[id] += sums.compute;
    blame_.communication[id] += sums.collective;
    blame_.m2n[id] += sums.m2n;
    blame_.offload[id] += sums.offload;
    blame_.encoder[id] += sums.encoder;
    blame_.wait[id] += sums.waiting + sums.others;
    blame_.kv_transfer[id] += sums.recall;
    blame_.host[id] += sums.idle;
  }

  // One step of a pipeline, from `from` on.
  void step(RequestId id, const StepSums& t, std::int32_t k, Ps from, std::vector<Ps>& part) {
    const auto split = t.step(static_cast<std::size_t>(k), from);
    part[id] += split.compute;
    blame_.communication[id] += split.collective;
    blame_.m2n[id] += split.m2n;
    blame_.offload[id] += split.offload;
    blame_.encoder[id] += split.encoder;
    blame_.wait[id] += split.waiting;
  }

  // From being scheduled to the end of the step that gave the first token.
  void prefill(RequestId id, const RequestLog& log, const StepSums& t, std::int32_t last) {
    const std::int32_t first = log.first_step[id];
    if (lost_before(last)) {
      blame_.preemption[id] += t.end(last) - log.scheduled[id];
      return;
    }
    const auto begun = static_cast<std::size_t>(first);
    if (t.overlaps) {
      idle(id, t, begun, log.scheduled[id], t.start(first));
      blame_.prefill[id] +=
          t.start(last) - t.start(first);  // the chunks before, of which several are under way
      return step(id, t, last, t.start(last), blame_.prefill);
    }
    idle(id, t, begun, log.scheduled[id], t.start(first));
    first_step(id, t, begun);
    stretch(id, t, first + 1, last, blame_.prefill);
  }

  // From its start, without what came before.
  void first_step(RequestId id, const StepSums& t, std::size_t k) {
    const Ps before = k > 0 ? t.end(k - 1) : t.start(k);
    const auto split = t.step(k, std::max(t.start(k), before));
    blame_.prefill[id] += split.compute;
    blame_.communication[id] += split.collective;
    blame_.m2n[id] += split.m2n;
    blame_.offload[id] += split.offload;
    blame_.encoder[id] += split.encoder;
    blame_.wait[id] += split.waiting;
  }

  // Before step k began, nothing else of this request going on.
  void idle(RequestId id, const StepSums& t, std::size_t k, Ps from, Ps to) {
    const auto pause = t.paused(k, from, to);
    blame_.kv_transfer[id] += pause.recall;
    blame_.host[id] += pause.host;
    blame_.wait[id] += std::max<Ps>(0, to - from) - pause.recall - pause.host;
  }

  // Between the outputs `before` and `after`, of which only the second gave a token. Adds the
  // steps that are not the request's, or have their parts from here, to `without`.
  void gap(RequestId id, const StepSums& t, std::int32_t before, std::int32_t after,
           StepSums::Sums& without) {
    if (lost_before(after)) {
      blame_.preemption[id] += t.end(after) - t.end(before);
      without += sums(t, before + 1, after);
    } else if (t.overlaps) {
      idle(id, t, static_cast<std::size_t>(after), t.end(before), t.start(after));
      step(id, t, after, std::max(t.start(after), t.end(before)), blame_.decode);
      without += sums(t, before + 1, after);
    } else {
      blame_.wait[id] += t.end(after - 1) - t.end(before);
      without += sums(t, before + 1, after - 1);
    }
  }

  // Whether a preemption happened since the last call, up to the step with this output; such
  // preemptions are used up.
  bool lost_before(std::int32_t output) {
    bool lost = false;
    while (!losses_.empty() && losses_.front() <= output) {
      losses_ = losses_.subspan(1);
      lost = true;
    }
    return lost;
  }

  BlamedLatency& blame_;
  const RequestLog& log_;
  const std::vector<StepSums>& timelines_;
  const BlamedSpan span_;
  const Prompts* prompts_ = nullptr;  // null: no group computes prompts for others
  std::span<const std::int32_t> losses_;
};

// Those of requests that were moved, by request and in order of time.
class HandOvers {
 public:
  explicit HandOvers(const KvTransfers* kv_transfers) : kv_transfers_(kv_transfers) {
    if (kv_transfers == nullptr) return;
    earlier_ = kv_transfers->earlier();
    std::ranges::stable_sort(earlier_, {}, &KvTransfers::Earlier::request);
  }
  std::vector<KvTransfer> of(RequestId request) const {
    std::vector<KvTransfer> found;
    if (kv_transfers_ == nullptr) return found;
    for (const KvTransfers::Earlier& one :
         std::ranges::equal_range(earlier_, request, {}, &KvTransfers::Earlier::request))
      found.push_back(one.kv_transfer);
    found.push_back(kv_transfers_->of(request));
    return found;
  }

 private:
  const KvTransfers* kv_transfers_;  // null: nothing is handed over
  std::vector<KvTransfers::Earlier> earlier_;
};

}  // namespace

BlamedLatency blame(const Simulation& simulation, BlamedSpan span) {
  const RequestLog& log = simulation.log();
  std::vector<StepSums> timelines;
  timelines.reserve(simulation.groups().size());
  for (const auto& group : simulation.groups()) timelines.emplace_back(*group);
  const Losses losses(log);
  const KvTransfers* kv_transfers = simulation.kv_transfers();
  const Losses prompt_losses(kv_transfers != nullptr ? *simulation.prompt_log() : RequestLog(0));

  std::vector<RequestLog::Move> moves = log.moves;
  std::ranges::stable_sort(moves, {}, &RequestLog::Move::request);

  BlamedLatency result(log.finish.size());
  result.frontend.resize(log.tokenized.size());
  Walk walk(result, log, timelines, span);
  const HandOvers hand_overs(kv_transfers);
  std::optional<Walk::Prompts> prompts;
  if (kv_transfers != nullptr) {
    prompts.emplace(*simulation.prompt_log(), prompt_losses, kv_transfers->pushes());
    walk.use_prompts(*prompts);
  }
  EmissionSpans(log).each([&](RequestId request, std::span<const RequestLog::Run> runs) {
    const auto i = static_cast<std::size_t>(request);
    const Ps dropped =
        kv_transfers == nullptr ? log.cancelled[i] : kv_transfers->cancelled(request);
    if (log.finish[i] == kNever && dropped == kNever) return;
    const Ps arrival = simulation.sequences()[request].arrival;
    const auto moved = std::ranges::equal_range(moves, request, {}, &RequestLog::Move::request);
    if (!moved.empty()) {
      const std::vector<KvTransfer> handed_over = hand_overs.of(request);
      return walk.moved_request(
          {request, arrival, dropped, runs, {moved.begin(), moved.end()}, handed_over}, losses);
    }
    if (kv_transfers == nullptr || kv_transfers->of(request).prefill_group < 0) {
      walk.request(request, arrival, runs, losses.of(i));
    } else {
      walk.request(request, arrival, runs, losses.of(i), kv_transfers->of(request), dropped);
    }
  });
  return result;
}

}  // namespace llmsim
