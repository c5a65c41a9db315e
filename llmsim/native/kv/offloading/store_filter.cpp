#include "kv/offloading/store_filter.h"

#include <unordered_map>

#include "kv/offloading/key_list.h"

namespace llmsim {

namespace {

class Counts : public StoreFilter {
 public:
  Counts(std::int32_t threshold, std::int64_t most) : threshold_(threshold), most_(most) {}
  bool stores(Key key) const override {
    const auto found = counts_.find(key);
    return found != counts_.end() && found->second >= threshold_;
  }

 protected:
  std::int64_t size() const { return static_cast<std::int64_t>(order_.size()); }
  bool counts(Key key) const { return order_.contains(key); }
  bool full() const { return size() >= most_; }
  // False: it is not counted yet.
  bool count_again(Key key) {
    if (!counts(key)) return false;
    order_.push_back(key);
    ++counts_[key];
    return true;
  }
  void count_first(Key key) {
    order_.push_back(key);
    counts_[key] = 1;
  }
  void forget_oldest() {
    counts_.erase(order_.front());
    order_.pop_front();
  }
  void count(Key key) {
    if (count_again(key)) return;
    if (full()) forget_oldest();
    count_first(key);
  }

 private:
  std::int32_t threshold_;
  std::int64_t most_;
  KeyList order_;  // the least recently counted first
  std::unordered_map<Key, std::int32_t> counts_;
};

class LookUps final : public Counts {
 public:
  using Counts::Counts;
  void looked_up(Key key) override { count(key); }
};

class Offers final : public Counts {
 public:
  using Counts::Counts;
  void offered(std::span<const OffloadedChunk> chunks) override {
    for (const OffloadedChunk& chunk : chunks) count(chunk.key);
  }
};

// What was offered lately and is offered again is not forgotten for what is new.
class OffersTogether final : public Counts {
 public:
  using Counts::Counts;
  void offered(std::span<const OffloadedChunk> chunks) override {
    std::int64_t others = size();
    for (const OffloadedChunk& chunk : chunks) others -= count_again(chunk.key);
    for (const OffloadedChunk& chunk : chunks) {
      if (counts(chunk.key)) continue;
      if (full()) {
        if (others == 0) continue;
        forget_oldest();
        --others;
      }
      count_first(chunk.key);
    }
  }
};

}  // namespace

std::unique_ptr<StoreFilter> make_store_filter(std::int32_t threshold, std::int64_t most_counted,
                                               const OffloadingRules& rules) {
  if (threshold < 2) return std::make_unique<StoreFilter>();
  if (rules.remembers_offers) return std::make_unique<OffersTogether>(threshold, most_counted);
  if (rules.counts_offers) return std::make_unique<Offers>(threshold, most_counted);
  return std::make_unique<LookUps>(threshold, most_counted);
}

}  // namespace llmsim
