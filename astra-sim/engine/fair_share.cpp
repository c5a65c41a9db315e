// Flows of the fair-share network: starts, ends, and when a solve is due; the solve itself is in fair_solve.cpp.
#include "engine/fair_share.h"

#include <algorithm>
#include <functional>
#include <string>

#include "model/errors.h"

namespace astra_sim::engine {

using model::LinkId;
using model::Ps;

namespace {
constexpr int kRateBits = 16;
constexpr unsigned __int128 kPsPerSecond = 1'000'000'000'000ULL;
}  // namespace

FairShare::FairShare(std::span<const model::BytesPerSecond> capacities, RateQuantum quantum) : quantum_(quantum) {
    links_.resize(capacities.size());
    cursors_.resize(capacities.size());
    for (std::size_t i = 0; i < capacities.size(); ++i) {
        if (capacities[i] >= model::BytesPerSecond{1} << (63 - kRateBits)) {
            throw model::OutOfRange("a link of " + std::to_string(capacities[i]) +
                                    " bytes/s is too fast for the fair-share network: less than 2^47 (140 TB/s) is "
                                    "possible");
        }
        links_[i].capacity = capacities[i] << kRateBits;
        loads_.push_back({links_[i].capacity});
    }
}

void FairShare::touch(LinkId link) {
    if (links_[link].dirty) return;
    links_[link].dirty = true;
    dirty_.push_back(link);
}

FlowId FairShare::start(Ps now, std::span<const LinkId> route, model::Bytes bytes) {
    const std::size_t length = route.size();
    if (free_flows_.empty()) {
        free_flows_.push_back(static_cast<FlowId>(flows_.size()));
        flows_.emplace_back();
    }
    const FlowId id = free_flows_.back();
    free_flows_.pop_back();
    Flow& flow = flows_[id];
    flow.volume = (static_cast<Volume>(bytes) << kRateBits) * kPsPerSecond;
    flow.rate = kNew;
    flow.owner = model::kNone;
    flow.length = static_cast<std::uint16_t>(length);
    flow.alive = true;
    if (length > kInline) {
        if (free_routes_.size() <= length) free_routes_.resize(length + 1);
        if (free_routes_[length].empty()) {
            free_routes_[length].push_back(static_cast<std::uint32_t>(routes_.size()));
            routes_.resize(routes_.size() + length);
        }
        flow.route[0] = free_routes_[length].back();
        free_routes_[length].pop_back();
        std::copy(route.begin(), route.end(), routes_.begin() + flow.route[0]);
    } else {
        std::copy(route.begin(), route.end(), flow.route);
    }
    for (const LinkId link_id : route) {
        Link& link = links_[link_id];
        if (link.count++ == 0) link.busy_since = now;
        link.list.push_back(id);
        link.peak = std::max(link.peak, link.count);
        touch(link_id);
    }
    started_.push_back(id);
    ++active_;
    return id;
}

// Leaves it in the lists of its links, which the next solve tidies.
void FairShare::remove(Ps now, FlowId id) {
    Flow& flow = flows_[id];
    lowest_ended_ = std::min(lowest_ended_, flow.rate);
    for (const LinkId link_id : route_of(flow)) {
        Link& link = links_[link_id];
        loads_[link_id].left += flow.rate;
        link.freed += flow.rate;
        if (quantum_.rate_ppm > 0 && !over_quantum_) {
            over_quantum_ = static_cast<Volume>(link.freed) * 1'000'000 >
                            static_cast<Volume>(link.capacity) * static_cast<Volume>(quantum_.rate_ppm);
        }
        if (--link.count == 0) link.busy += now - link.busy_since;
        touch(link_id);
    }
    flow.alive = false;
    ended_.push_back(id);
    --active_;
}

// The flows that a link limits are its last ones, those of its level.
void FairShare::end_due(Ps now, std::vector<FlowId>& out) {
    while (!due_.empty() && due_.front().first <= now) {
        const auto [end, id] = due_.front();
        std::pop_heap(due_.begin(), due_.end(), std::greater<>());
        due_.pop_back();
        Link& link = links_[id];
        if (link.end != end) continue;
        const Volume served = static_cast<Volume>(link.level) * static_cast<Volume>(now - link.since);
        Volume least = ~Volume{0};
        for (std::size_t at = link.list.size(); at-- > 0;) {
            const FlowId id_there = link.list[at];
            const Flow& flow = flows_[id_there];
            if (flow.rate < link.level) break;
            if (flow.owner != id || !flow.alive) continue;
            if (flow.volume <= served) {
                out.push_back(id_there);
                remove(now, id_there);
            } else {
                least = std::min(least, flow.volume);
            }
        }
        link.end = kNever;
        if (least != ~Volume{0}) {
            const auto rate = static_cast<Volume>(link.level);
            const Volume span = (least + rate - 1) / rate;
            const auto limit = static_cast<Volume>(model::kHorizon - link.since);
            set_end(id, span > limit ? model::kHorizon + 1 : link.since + static_cast<Ps>(span));
        }
    }
}

void FairShare::set_end(LinkId link, Ps end) {
    links_[link].end = end;
    if (end == kNever) return;
    due_.emplace_back(end, link);
    std::push_heap(due_.begin(), due_.end(), std::greater<>());
    if (due_.size() < 4 * links_.size() + 1024) return;
    const auto stale = [&](const Due& due) { return links_[due.second].end != due.first; };
    due_.erase(std::remove_if(due_.begin(), due_.end(), stale), due_.end());
    std::sort(due_.begin(), due_.end());
    due_.erase(std::unique(due_.begin(), due_.end()), due_.end());  // sorted upwards is a heap
}

// A stale entry may be earlier than the truth: then the caller asks again at that time.
Ps FairShare::next_end() const { return due_.empty() ? kNever : due_.front().first; }

model::Bytes FairShare::bytes_left(FlowId id, Ps now) const {
    const Flow& flow = flows_[id];
    const Volume served = static_cast<Volume>(flow.rate) * static_cast<Volume>(now - links_[flow.owner].since);
    const Volume unit = kPsPerSecond << kRateBits;
    return served >= flow.volume ? 0 : static_cast<model::Bytes>((flow.volume - served + unit - 1) / unit);
}

Ps FairShare::busy_ps(LinkId id, Ps now) const {
    const Link& link = links_[id];
    return link.busy + (link.count == 0 ? 0 : now - link.busy_since);
}

}  // namespace astra_sim::engine
