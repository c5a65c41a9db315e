// The order of events under strict rules against a slow model of it, while events schedule others.
#include "strict/base/clock.h"

#include <deque>
#include <map>
#include <vector>

#include "tests/check.h"

using astra_sim::strict::Clock;
using astra_sim::strict::Event;
using astra_sim::strict::EventKind;
using astra_sim::strict::Ns;
using astra_sim::test::Random;

namespace {

constexpr std::uint32_t kNpus = 5, kGlobal = kNpus;
constexpr std::uint32_t kEvents = 5'000;

// By time: turns in order, each of one NPU or of one global event, with the numbers of its events.
class SlowClock {
 public:
  void add(std::uint32_t npu, Ns time, std::uint32_t number) {
    auto& turns = turns_[time];
    if (npu != kGlobal)
      for (Turn& turn : turns)
        if (turn.npu == npu) return turn.events.push_back(number);
    turns.push_back({npu, {number}});
  }
  // The next event, after which its turn is over where it was the last one of it.
  bool next(Ns& now, std::uint32_t& number) {
    end_turn();
    if (turns_.empty()) return false;
    now = turns_.begin()->first;
    number = turns_.begin()->second.front().events.front();
    turns_.begin()->second.front().events.pop_front();
    running_ = true;
    return true;
  }

 private:
  struct Turn {
    std::uint32_t npu;
    std::deque<std::uint32_t> events;
  };
  void end_turn() {
    if (!running_ || !turns_.begin()->second.front().events.empty()) return;
    turns_.begin()->second.pop_front();
    if (turns_.begin()->second.empty()) turns_.erase(turns_.begin());
    running_ = false;
  }
  std::map<Ns, std::deque<Turn>> turns_;
  bool running_ = false;
};

class Run {
 public:
  explicit Run(std::uint64_t seed) : random_(seed) {}

  void run() {
    for (int i = 0; i < 20; ++i) schedule();
    for (auto events = clock_.take(); !events.empty(); events = clock_.take()) {
      for (Event event : events) {
        const std::uint32_t npu = event.npu();
        const bool local = event.of_one_npu();
        carry_out(event);
        while (local && clock_.pop_joined(npu, event)) carry_out(event);
      }
    }
    Ns time = 0;
    std::uint32_t number = 0;
    CHECK(!slow_.next(time, number));
    CHECK_EQUAL(done_, kEvents);
  }

 private:
  void carry_out(const Event& event) {
    Ns time = -1;
    std::uint32_t number = 0;
    CHECK(slow_.next(time, number));
    CHECK_EQUAL(clock_.now(), time);
    CHECK_EQUAL(event.a(), number);
    ++done_;
    for (std::int64_t more = random_.between(0, 3); more > 0; --more) schedule();
  }

  // Few different times, so that many events meet, on both sides of the wheel's end.
  void schedule() {
    if (numbers_ == kEvents) return;
    static constexpr Ns kDelays[] = {0, 0, 1, 2, 3, 10, 16'383, 16'384, 16'385, 50'000};
    const Ns delay = kDelays[random_.between(0, 9)];
    const auto npu = static_cast<std::uint32_t>(random_.between(0, kNpus));
    slow_.add(npu, clock_.now() + delay, numbers_);
    if (npu == kGlobal) {
      clock_.global(delay, {EventKind::kArrival, numbers_++});
    } else {
      clock_.local(npu, delay, {EventKind::kCredit, numbers_++});
    }
  }

  Random random_;
  Clock clock_{kNpus};
  SlowClock slow_;
  std::uint32_t numbers_ = 0, done_ = 0;
};

}  // namespace

int main() {
  for (std::uint64_t seed = 0; seed < 20; ++seed) Run(seed).run();
  return astra_sim::test::finish("clock");
}
