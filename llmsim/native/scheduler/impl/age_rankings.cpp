// Rankings of waiting requests and victims by priority and age, after BLIS's priority policies
// "slo-based" and "inverted-slo" and its order "reverse-priority". BLIS's base is one constant;
// here a request's base is its priority, of which each step is worth `base` milliseconds of
// waiting.
#include <memory>

#include "scheduler/registry.h"

namespace llmsim {

namespace {

constexpr Param kBase{"base", 1000, 0, 1'000'000'000};
constexpr Param kWeight{"weight", 1, 0, 1'000'000};
constexpr Param kAgeParams[] = {kBase, kWeight};

// A number of up to 126 bits as two parts of a key.
RankKey key_of(int128 value) {
  constexpr int128 kLow = int128{1} << 62;
  const int128 low = ((value % kLow) + kLow) % kLow;
  return {static_cast<std::int64_t>((value - low) / kLow), static_cast<std::int64_t>(low), 0, 0};
}

// The least of priority x base - sign x weight x age goes first: with sign 1 requests gain
// precedence as they wait, with sign -1 they lose it, and the oldest starve.
class AgeRanking final : public Ranking {
 public:
  AgeRanking(const ParamValues& values, int sign)
      : base_(int128{value_of(kBase, values)} * (kPsPerSecond / 1000)),
        weight_(int128{value_of(kWeight, values)} * sign) {}

  RankedLists lists() const override { return {.waiting = true, .victims = true}; }
  void rank(Ps now, const RankView& view, std::span<RankKey> keys) override {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Sequence& s = view.sequences[view.candidates[i].row];
      keys[i] = key_of(base_ * s.priority - weight_ * (now - s.arrival));
    }
  }

 private:
  int128 base_, weight_;  // base in ps
};

// The highest number of `priority` first, then the earlier arrival: the urgent ones starve.
struct ReversePriority final : public Ranking {
  RankedLists lists() const override { return {.waiting = true, .victims = true}; }
  void rank(Ps, const RankView& view, std::span<RankKey> keys) override {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Sequence& s = view.sequences[view.candidates[i].row];
      keys[i] = {-std::int64_t{s.priority}, s.arrival, 0, 0};
    }
  }
};

template <int sign>
std::shared_ptr<Ranking> by_age(const SchedulerConfig&, const ParamValues& values) {
  return std::make_shared<AgeRanking>(values, sign);
}

const RegisterRanking kSloAge({"slo_age", by_age<1>, kAgeParams});
const RegisterRanking kInvertedSlo({"inverted-slo", by_age<-1>, kAgeParams});
const RegisterRanking kReversePriority({"reverse-priority",
                                        [](const SchedulerConfig&, const ParamValues&) {
                                          return std::shared_ptr<Ranking>(
                                              std::make_shared<ReversePriority>());
                                        },
                                        {}});

}  // namespace

}  // namespace llmsim
