// TimeBuckets: pending events by time; one heap entry per distinct time, so that lock-step traffic costs no heap work.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/types.h"

namespace astra_sim::engine {

// `pop` takes everything that is pending for the earliest time, in the order it was pushed; what is pushed for that
// same time afterwards forms the next batch (the next delta cycle). A small cache finds the bucket of a time; when it
// misses, a second bucket of that time is opened, and `pop` joins them in the order of their making.
template <class Event>
class TimeBuckets {
public:
    void push(model::Ps time, const Event& event) {
        CacheLine& line = cache_[index_of(time)];
        if (line.time != time) {
            line = {time, take_bucket()};
            heap_.push_back({time, next_serial_++, line.bucket});
            std::push_heap(heap_.begin(), heap_.end(), later);
        }
        buckets_[line.bucket].push_back(event);
    }

    bool empty() const { return heap_.empty(); }
    // Needs !empty().
    model::Ps next_time() const { return heap_.front().time; }

    // Needs !empty(). The batch may be changed and stays valid until the next pop, also while events are pushed.
    std::vector<Event>& pop() {
        batch_.clear();
        const model::Ps time = heap_.front().time;
        take_front();
        while (!heap_.empty() && heap_.front().time == time) append_front();
        CacheLine& line = cache_[index_of(time)];
        if (line.time == time) line = CacheLine{};
        return batch_;
    }

private:
    struct Entry {
        model::Ps time;
        std::uint64_t serial;
        std::uint32_t bucket;
    };
    struct CacheLine {
        model::Ps time = -1;  // no event has a negative time
        std::uint32_t bucket = 0;
    };

    static bool later(const Entry& a, const Entry& b) {
        return a.time != b.time ? a.time > b.time : a.serial > b.serial;
    }
    static std::size_t index_of(model::Ps time) {
        return (static_cast<std::uint64_t>(time) * 0x9e3779b97f4a7c15ULL) >> 56;
    }

    std::uint32_t take_bucket() {
        if (free_.empty()) {
            buckets_.emplace_back();
            return static_cast<std::uint32_t>(buckets_.size() - 1);
        }
        const std::uint32_t bucket = free_.back();
        free_.pop_back();
        return bucket;
    }

    std::uint32_t drop_front() {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        const std::uint32_t bucket = heap_.back().bucket;
        heap_.pop_back();
        free_.push_back(bucket);
        return bucket;
    }
    void take_front() { std::swap(batch_, buckets_[drop_front()]); }
    void append_front() {
        std::vector<Event>& bucket = buckets_[drop_front()];
        batch_.insert(batch_.end(), bucket.begin(), bucket.end());
        bucket.clear();
    }

    std::vector<Entry> heap_;
    std::vector<std::vector<Event>> buckets_;
    std::vector<std::uint32_t> free_;
    std::vector<Event> batch_;
    std::array<CacheLine, 256> cache_{};
    std::uint64_t next_serial_ = 0;
};

}  // namespace astra_sim::engine
