// FairShare: flows that share links max-min fairly, in integers; re-solved only where a start or an end can matter.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "model/types.h"

namespace astra_sim::engine {

using FlowId = std::uint32_t;
using Rate = std::int64_t;  // units of 2^-16 bytes/s

// When a re-solve after ends may wait: while more than `above_flows` flows are in motion and on no link more than
// `rate_ppm` millionths of its capacity lie idle because of ends since the last one. Starts never wait. 0: exact.
struct RateQuantum {
    std::int64_t rate_ppm = 0;
    std::size_t above_flows = 65'536;
};

// Rates by level filling: s = the least floor(capacity left / flows left) of any link; every link with that share is
// frozen at once, its flows get s, and so on; what a frozen link has left is less than one unit per flow and stays
// unused. So rates do not depend on any order and connected components do not meet. Volumes are kept in
// (2^-16 bytes/s * ps), settled when a flow's rate may change: V -= rate * (t - t0); a flow ends at t0 + ceil(V /
// rate).
//
// Levels rise, and a flow is frozen at the lowest level of its links. So what happens to flows of rate >= L changes no
// level below L: a solve begins at the lowest rate of a flow that ended, or the least equal share that a started flow
// can get, and visits only flows of at least that rate that are connected to the change. The flows of a link stand in
// the order of their rates, so that these are the last ones. Equal to solving everything anew, bit for bit.
class FairShare {
public:
    static constexpr model::Ps kNever = std::numeric_limits<model::Ps>::max();

    // Throws OutOfRange for a capacity of 2^47 bytes/s or more.
    explicit FairShare(std::span<const model::BytesPerSecond> capacities, RateQuantum quantum = {});

    // Needs bytes > 0 and a route of different links. The flow moves from `now` on, with a rate from the next solve.
    FlowId start(model::Ps now, std::span<const model::LinkId> route, model::Bytes bytes);
    // Appends the flows that end at `now` and forgets them; their numbers are given to later flows.
    void end_due(model::Ps now, std::vector<FlowId>& out);
    // Takes a flow out before its end. Needs a flow that was solved and is in motion.
    void stop(model::Ps now, FlowId flow) { remove(now, flow); }
    // Finds the rates that hold after all starts and ends at `now`. Throws OutOfRange when a share is below one unit.
    void solve(model::Ps now);
    model::Ps next_end() const;  // as of the last solve; kNever when nothing moves

    Rate rate(FlowId flow) const { return flows_[flow].rate; }
    bool in_motion(FlowId flow) const { return flow < flows_.size() && flows_[flow].alive; }
    std::span<const model::LinkId> route(FlowId flow) const { return route_of(flows_[flow]); }
    // What has not left yet, rounded up. Needs a flow that was solved and is in motion.
    model::Bytes bytes_left(FlowId flow, model::Ps now) const;
    std::size_t num_flows() const { return active_; }
    std::uint32_t flows_on(model::LinkId link) const { return links_[link].count; }
    std::uint32_t peak_flows_on(model::LinkId link) const { return links_[link].peak; }
    model::Ps busy_ps(model::LinkId link, model::Ps now) const;  // with at least one flow
    std::uint64_t num_solves() const { return num_solves_; }
    std::uint64_t num_visits() const { return num_visits_; }      // flows that solves looked at
    std::uint64_t num_deferred() const { return num_deferred_; }  // re-solves put off by the quantum; 0: exact

private:
    using Volume = unsigned __int128;
    static constexpr Rate kNew = std::numeric_limits<Rate>::max();   // of a flow not yet solved
    static constexpr model::LinkId kTaken = model::kNone - 1;        // owner of a flow during a solve
    static constexpr Rate kFree = std::numeric_limits<Rate>::max();  // level of a link that limits nobody

    static constexpr std::size_t kInline = 8;
    // One cache line; longer routes are kept apart.
    struct alignas(64) Flow {
        Volume volume;
        Rate rate;
        model::LinkId owner;   // the link that limits it; its volume is as of that link's `since`
        std::uint16_t length;  // of its route
        bool alive;
        model::LinkId route[kInline];  // too long: route[0] says where in routes_
    };
    // What a solve touches for every hop of every flow: small, to stay in the first cache.
    struct Load {
        Rate left;               // capacity that flows with a rate do not use
        std::uint32_t open = 0;  // flows without one
        std::uint32_t stamp = 0;
    };
    struct Link {
        Rate capacity;
        std::uint32_t count = 0;   // flows
        std::uint32_t fixed = 0;   // during a solve: list[0 .. fixed) keep their rates
        std::vector<FlowId> list;  // by rate; may hold flows that ended since the last solve
        Rate level = kFree;
        model::Ps since = 0;
        model::Ps end = kNever;  // when the first flow that it limits ends
        Rate freed = 0;
        std::uint32_t peak = 0;
        bool dirty = false;
        model::Ps busy_since = 0;
        model::Ps busy = 0;
    };
    using Due = std::pair<model::Ps, model::LinkId>;
    using Share = std::pair<Rate, model::LinkId>;

    void touch(model::LinkId link);
    void remove(model::Ps now, FlowId flow);
    bool nothing_to_do(bool& deferred);
    Rate lowest_level() const;
    void gather(model::Ps now, Rate lowest);
    void fill(model::Ps now);
    void freeze(model::Ps now, model::LinkId link, Rate share);
    void rebuild_lists();
    void forget_changes();
    std::span<const model::LinkId> route_of(const Flow& flow) const {
        return {flow.length <= kInline ? flow.route : &routes_[flow.route[0]], flow.length};
    }
    void set_end(model::LinkId link, model::Ps end);

    RateQuantum quantum_;
    std::vector<Load> loads_;  // by link
    std::vector<Link> links_;
    std::vector<Flow> flows_;
    std::vector<model::LinkId> routes_;
    std::vector<FlowId> free_flows_;
    std::vector<std::vector<std::uint32_t>> free_routes_;  // by length, of the long ones
    std::size_t active_ = 0;
    std::vector<Due> due_;  // heap; entries that differ from their link's `end` are stale
    // Since the last solve:
    std::vector<model::LinkId> dirty_;
    std::size_t checked_ = 0;  // of dirty_, for flows that the quantum keeps waiting
    std::vector<FlowId> started_;
    std::vector<FlowId> ended_;
    Rate lowest_ended_ = kNew;
    bool over_quantum_ = false;
    bool waiting_ = false;
    // Scratch of a solve:
    std::uint32_t stamp_ = 0;
    std::vector<model::LinkId> affected_;
    std::vector<Share> shares_;  // heap of lower bounds
    std::vector<model::LinkId> level_;
    std::vector<FlowId> order_;     // in which flows were frozen
    std::vector<FlowId*> cursors_;  // by link: where its next flow goes
    std::uint64_t num_solves_ = 0;
    std::uint64_t num_visits_ = 0;
    std::uint64_t num_deferred_ = 0;
};

}  // namespace astra_sim::engine
