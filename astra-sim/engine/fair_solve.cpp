// The incremental solve of FairShare: which flows a change can touch, and level filling among them.
#include <algorithm>
#include <functional>
#include <string>

#include "engine/fair_share.h"
#include "model/errors.h"

namespace astra_sim::engine {

using model::LinkId;
using model::Ps;

namespace {
constexpr std::size_t kAhead = 12;  // flows to fetch before they are needed
}  // namespace

// True when no flow's rate can differ, or the quantum lets the solve wait.
bool FairShare::nothing_to_do(bool& deferred) {
    deferred = false;
    if (!started_.empty()) return false;
    if (dirty_.empty()) return true;
    for (; checked_ < dirty_.size() && !waiting_; ++checked_) {
        std::vector<FlowId>& list = links_[dirty_[checked_]].list;
        while (!list.empty() && !flows_[list.back()].alive) list.pop_back();
        waiting_ = !list.empty() && flows_[list.back()].rate >= lowest_ended_;
    }
    if (!waiting_) return true;
    deferred = quantum_.rate_ppm > 0 && active_ > quantum_.above_flows && !over_quantum_;
    return deferred;
}

// No level below this one can change.
Rate FairShare::lowest_level() const {
    Rate lowest = lowest_ended_;
    for (const FlowId id : started_) {
        for (const LinkId link : route_of(flows_[id])) {
            lowest = std::min(lowest, links_[link].capacity / static_cast<Rate>(links_[link].count));
        }
    }
    return lowest;
}

void FairShare::solve(Ps now) {
    bool deferred = false;
    if (nothing_to_do(deferred) && deferred) {
        ++num_deferred_;
        return;
    }
    if (!started_.empty() || waiting_) {
        ++num_solves_;
        gather(now, lowest_level());
        fill(now);
    }
    forget_changes();
    while (!due_.empty() && links_[due_.front().second].end != due_.front().first) {
        std::pop_heap(due_.begin(), due_.end(), std::greater<>());
        due_.pop_back();
    }
}

void FairShare::forget_changes() {
    for (const FlowId flow : ended_) {
        const std::uint16_t length = flows_[flow].length;
        if (length > kInline) free_routes_[length].push_back(flows_[flow].route[0]);
        free_flows_.push_back(flow);
    }
    ended_.clear();
    for (const LinkId link : dirty_) {
        links_[link].dirty = false;
        links_[link].freed = 0;
    }
    dirty_.clear();
    started_.clear();
    checked_ = 0;
    lowest_ended_ = kNew;
    over_quantum_ = false;
    waiting_ = false;
}

// Settles all flows of at least the lowest rate that are connected to a change, and takes their rates away.
void FairShare::gather(Ps now, Rate lowest) {
    ++stamp_;
    affected_.clear();
    const std::uint32_t stamp = stamp_;
    const auto reach = [&, stamp](LinkId id) {
        Load& load = loads_[id];
        if (load.stamp != stamp) {
            load.stamp = stamp;
            load.open = 0;
            affected_.push_back(id);
        }
        return &load;
    };
    for (const LinkId id : dirty_) reach(id);
    for (std::size_t next = 0; next < affected_.size(); ++next) {
        const LinkId id = affected_[next];
        Link& link = links_[id];
        const auto slower = [&](FlowId flow, Rate bound) { return flows_[flow].rate < bound; };
        const auto split = std::lower_bound(link.list.begin(), link.list.end(), lowest, slower);
        link.fixed = static_cast<std::uint32_t>(split - link.list.begin());
        const std::size_t wanted = link.count - link.fixed;  // those that ended are not among the fixed
        for (std::size_t at = link.list.size(); loads_[id].open < wanted; --at) {
            if (at > kAhead) __builtin_prefetch(&flows_[link.list[at - 1 - kAhead]]);
            Flow& flow = flows_[link.list[at - 1]];
            if (!flow.alive || flow.owner == kTaken) continue;
            Rate rate = 0;  // it keeps the old one for the order of the lists until it gets another
            if (flow.rate != kNew) {
                rate = flow.rate;
                flow.volume -= static_cast<Volume>(rate) * static_cast<Volume>(now - links_[flow.owner].since);
            }
            flow.owner = kTaken;
            ++num_visits_;
            for (const LinkId crossed : route_of(flow)) {
                Load* load = reach(crossed);
                load->left += rate;
                ++load->open;
            }
        }
    }
}

// Shares only rise while links are frozen, so a heap of lower bounds finds the least. All links of one level are found
// before any of them is frozen: that would raise the others' shares by what divisions have left over.
void FairShare::fill(Ps now) {
    const auto share_of = [&](LinkId id) { return loads_[id].left / static_cast<Rate>(loads_[id].open); };
    shares_.clear();
    for (const LinkId id : affected_) {
        if (loads_[id].open == 0) continue;  // all its flows are slower than the change: what it limits stays as it is
        shares_.emplace_back(share_of(id), id);
        links_[id].end = kNever;
        links_[id].level = kFree;
    }
    std::make_heap(shares_.begin(), shares_.end(), std::greater<>());
    const auto pop = [&] {
        std::pop_heap(shares_.begin(), shares_.end(), std::greater<>());
        const LinkId id = shares_.back().second;
        shares_.pop_back();
        return id;
    };
    while (!shares_.empty()) {
        Rate level = kNew;
        level_.clear();
        while (!shares_.empty() && shares_.front().first <= level) {
            const Rate bound = shares_.front().first;
            const LinkId id = pop();
            if (loads_[id].open == 0) continue;
            const Rate share = share_of(id);
            if (share > bound) {
                shares_.emplace_back(share, id);
                std::push_heap(shares_.begin(), shares_.end(), std::greater<>());
            } else {
                level = share;  // the least of all bounds, hence of all shares
                level_.push_back(id);
            }
        }
        for (const LinkId id : level_) freeze(now, id, level);
    }
    rebuild_lists();
}

// The flows that got a rate, in rising order, after those that kept theirs.
void FairShare::rebuild_lists() {
    for (const LinkId id : affected_) {
        Link& link = links_[id];
        link.list.resize(link.count);  // exact: ended flows are among those that lost their rate
        cursors_[id] = link.list.data() + link.fixed;
    }
    for (std::size_t at = 0; at < order_.size(); ++at) {
        if (at + kAhead < order_.size()) __builtin_prefetch(&flows_[order_[at + kAhead]]);
        for (const LinkId id : route_of(flows_[order_[at]])) *cursors_[id]++ = order_[at];
    }
    order_.clear();
}

void FairShare::freeze(Ps now, LinkId id, Rate share) {
    if (share <= 0) {
        throw model::OutOfRange("too many messages share a link: each would get less than 2^-16 bytes/s");
    }
    Link& link = links_[id];
    link.level = share;
    link.since = now;
    Volume least = ~Volume{0};
    for (std::size_t at = link.fixed; loads_[id].open > 0; ++at) {
        if (at + kAhead < link.list.size()) __builtin_prefetch(&flows_[link.list[at + kAhead]]);
        Flow& flow = flows_[link.list[at]];
        if (flow.owner != kTaken) continue;  // ended, or frozen at a level before
        flow.rate = share;
        flow.owner = id;
        least = std::min(least, flow.volume);
        order_.push_back(link.list[at]);
        for (const LinkId crossed : route_of(flow)) {
            --loads_[crossed].open;
            loads_[crossed].left -= share;
        }
    }
    if (least == ~Volume{0}) return;
    const Volume span = (least + static_cast<Volume>(share) - 1) / static_cast<Volume>(share);
    const auto limit = static_cast<Volume>(model::kHorizon - now);
    set_end(id, span > limit ? model::kHorizon + 1 : now + static_cast<Ps>(span));
}

}  // namespace astra_sim::engine
