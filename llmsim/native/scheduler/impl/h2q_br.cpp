// H2Q-BR: history-aware two-queue scheduling with bounded release (Y. Feng et al., "Frontier",
// arXiv:2605.21312, Algorithm 2), as a ranking of vLLM's running and waiting requests.
//
// A slice is one request while its engine has it; its session is that of `Sessions`. What the paper
// leaves open is decided here as follows. The short queue whose oldest slice a release must not
// overtake holds waiting slices (B.3); the queue of which liveness takes the oldest holds waiting
// and running ones. A preempted slice keeps its queue: it does not arrive again. A slice is in
// prefill while a token of its prompt is not computed. A batch is accounted when it ends, with the
// release that was chosen when it was formed, however many are in flight.
#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/registry.h"

namespace llmsim {

namespace {

class H2qBr final : public Ranking, public RankEvents {
 public:
  // Prompts above L tokens are long; a session above C served tokens has a long history; after B
  // short slices in a row the oldest long one goes first.
  static constexpr Param kLongPrompt{"L", 4096, 0, (std::int64_t{1} << 31) - 1};
  static constexpr Param kServed{"C", 8192, 0, std::int64_t{1} << 62};
  static constexpr Param kStreak{"B", 32, 1, std::int64_t{1} << 62};
  static constexpr Param kParams[] = {kLongPrompt, kServed, kStreak};

  H2qBr(const SchedulerConfig& config, const ParamValues& values)
      : sessions_(config.sessions),
        long_prompt_(value_of(kLongPrompt, values)),
        served_cap_(value_of(kServed, values)),
        streak_cap_(value_of(kStreak, values)) {}

  RankedLists lists() const override { return {.waiting = true, .running = true, .victims = true}; }
  RankEvents* events() override { return this; }

  // Algorithm 2, OnArrivalOrReentry.
  void added(RequestId request, const Sequence& sequence, Ps) override {
    const History& history = histories_[session_of(request)];
    const std::int64_t grown = sequence.prompt_tokens - history.last_prompt;
    const std::int64_t prompt = std::max<std::int64_t>(grown, 0);
    const bool is_long = history.is_long || history.served > served_cap_ || prompt > long_prompt_;
    slices_[request] = {sequence.prompt_tokens, prompt, is_long, false};
  }

  // BeforeSchedulingPass.
  void rank(Ps, const RankView& view, std::span<RankKey> keys) override {
    released_ = release(view);
    const RequestId alive = streak_ >= streak_cap_ ? oldest_long(view) : kNone;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const RequestId row = view.candidates[i].row;
      const Sequence& s = view.sequences[row];
      const Slice& slice = slices_.at(row);
      const std::int64_t decodes = s.num_computed >= s.prompt_tokens ? 1 : 0;
      if (row == released_ || row == alive || slice.is_long) {
        const std::int64_t first = row == released_ ? -2 : row == alive ? -1 : 1;
        keys[i] = {first, 1 - decodes, s.arrival, 0};
      } else {
        keys[i] = {0, slice.new_prompt, decodes, s.arrival};
      }
    }
  }
  void scheduled(Ps, const Batch& batch) override {
    if (!batch.empty()) in_flight_.push_back(released_);
  }

  // OnBatchCompletion.
  void executed(const Batch& batch) override {
    if (batch.empty()) return;
    const RequestId released = in_flight_.front();
    in_flight_.pop_front();
    bool long_ran = false;
    std::int64_t short_ran = 0;
    for (const Item& item : batch.items) {
      Slice& slice = slices_.at(item.request);
      History& history = histories_[session_of(item.request)];
      history.served += item.tokens;
      if (item.computed_before + item.tokens < slice.prompt) {
        history.is_long = history.carries = true;
        slice.is_long = true;
      }
      if (item.request == released) history.carries = false;
      long_ran = long_ran || slice.is_long;
      short_ran += slice.is_long ? 0 : 1;
    }
    streak_ = long_ran ? 0 : streak_ + short_ran;
    if (in_flight_.empty()) forget_gone();
  }
  void left(RequestId request) override {
    Slice& slice = slices_.at(request);
    histories_[session_of(request)].last_prompt = slice.prompt;
    slice.gone = true;
    gone_.push_back(request);
  }

 private:
  static constexpr RequestId kNone = -1;
  // Of a session: z, H, T_last and c of the paper.
  struct History {
    bool is_long = false;
    std::int64_t served = 0;
    std::int64_t last_prompt = 0;
    bool carries = false;
  };
  struct Slice {
    std::int32_t prompt = 0;
    std::int64_t new_prompt = 0;  // beyond the session's last round
    bool is_long = false;         // in the queue of long histories
    bool gone = false;
  };

  std::int32_t session_of(RequestId request) const {
    return sessions_ == nullptr ? request : sessions_->session[at(request)];
  }

  RequestId release(const RankView& view) const {
    Ps oldest_short = kEndOfTime;
    for (const Candidate& one : view.candidates) {
      if (one.standing == Standing::kWaiting && !slices_.at(one.row).is_long)
        oldest_short = std::min(oldest_short, view.sequences[one.row].arrival);
    }
    const RequestId carried = oldest(view, [this](RequestId row) {
      const auto found = histories_.find(session_of(row));
      return found != histories_.end() && found->second.carries;
    });
    if (carried == kNone || view.sequences[carried].arrival > oldest_short) return kNone;
    return carried;
  }
  RequestId oldest_long(const RankView& view) const {
    return oldest(view, [this](RequestId row) { return slices_.at(row).is_long; });
  }
  // The first one to arrive, by arrival and row, of those that can run.
  template <typename Which>
  RequestId oldest(const RankView& view, Which which) const {
    RequestId found = kNone;
    for (const Candidate& one : view.candidates) {
      if (one.standing == Standing::kParked || !which(one.row)) continue;
      const auto age = [&](RequestId row) { return std::pair(view.sequences[row].arrival, row); };
      if (found == kNone || age(one.row) < age(found)) found = one.row;
    }
    return found;
  }
  // A slice that has left may still be in a batch in flight.
  void forget_gone() {
    for (const RequestId request : gone_) {
      const auto found = slices_.find(request);
      if (found != slices_.end() && found->second.gone) slices_.erase(found);
    }
    gone_.clear();
  }

  std::shared_ptr<const Sessions> sessions_;
  std::int64_t long_prompt_, served_cap_, streak_cap_;
  std::unordered_map<std::int32_t, History> histories_;  // by session
  std::unordered_map<RequestId, Slice> slices_;
  std::vector<RequestId> gone_;
  std::int64_t streak_ = 0;          // short slices since a long one ran
  RequestId released_ = kNone;       // by the last pass
  std::deque<RequestId> in_flight_;  // what the pass of each batch had released
};

const RegisterRanking kH2qBr({"h2q_br",
                              [](const SchedulerConfig& config, const ParamValues& values) {
                                return std::shared_ptr<Ranking>(
                                    std::make_shared<H2qBr>(config, values));
                              },
                              H2qBr::kParams});

}  // namespace

}  // namespace llmsim
