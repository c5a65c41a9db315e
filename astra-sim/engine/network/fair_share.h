// FairShare: flows that share links max-min fairly, in integers; re-solved only where a start or an
// end can matter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "model/base/types.h"

namespace astra_sim::engine {

using FlowId = std::uint32_t;
using Rate = std::int64_t;  // units of 2^-16 bytes/s

// When a re-solve after ends may wait: while more than `above_flows` flows are in motion and on no
// link more than `rate_ppm` millionths of its capacity lie idle because of ends since the last one.
// Starts never wait. 0: exact.
struct RateQuantum {
  std::int64_t rate_ppm = 0;
  std::size_t above_flows = 65'536;
};

// What a queue in a switch does to a burst of many senders (incast). Each message on the link
// brings at most `burst_bytes` before its sender hears of congestion. What of their sum the buffer
// takes passes at the link's speed, the rest at `efficiency_ppm` of it: retransmissions, pauses and
// senders that recover slowly. So bursts of b bytes at a buffer of B have b / (B + (b - B) / e) of
// the link. A buffer of 0: none of this.
struct Incast {
  model::Bytes buffer_bytes = 0;
  model::Bytes burst_bytes = 0;
  std::int64_t efficiency_ppm = 1'000'000;

  bool off() const { return buffer_bytes == 0; }
  // Of a link's capacity, for that many bytes at once; never more for more bytes.
  Rate capacity(Rate full, model::Bytes bursts) const;
};

// Rates by level filling: s = the least floor(capacity left / flows left) of any link; every link
// with that share is frozen at once, its flows get s, and so on; what a frozen link has left is
// less than one unit per flow and stays unused. So rates do not depend on any order and connected
// components do not meet.
//
// A flow belongs to the link that limits it. All flows of a link have its level as their rate, so
// the link keeps one clock for them, the volume that each has been served (2^-16 bytes/s * ps): a
// flow ends when the clock is at its target, and nothing is done per flow when a level changes.
//
// Levels rise, and a flow is frozen at the lowest level of its links. So what happens to flows of
// rate >= L changes no level below L: a solve begins at the lowest rate of a flow that ended, or
// the least equal share that a started flow can get, and takes up only links of at least that level
// that are connected to the change. It moves their flows as one, by how many of them cross each
// other link, and looks at single flows only where one gets another owner. Equal to solving
// everything anew, bit for bit.
class FairShare {
 public:
  static constexpr model::Ps kNever = std::numeric_limits<model::Ps>::max();
  using Volume = unsigned __int128;  // 2^-16 bytes/s * ps
  static Volume volume_of(model::Bytes bytes);
  static model::Bytes bytes_of(Volume volume);  // rounded up

  // Throws OutOfRange for a capacity of 2^47 bytes/s or more.
  explicit FairShare(std::span<const model::BytesPerSecond> capacities, RateQuantum quantum = {});
  // Needs to come before all flows. `links` begin at a switch.
  void crowd(const Incast& incast, std::span<const model::LinkId> links);

  // Needs bytes > 0 and a route of different links. The flow moves from `now` on, with a rate from
  // the next solve.
  FlowId start(model::Ps now, std::span<const model::LinkId> route, model::Bytes bytes);
  // The same for what is left of a flow that has begun elsewhere; it may be 0.
  FlowId go_on(model::Ps now, std::span<const model::LinkId> route, Volume left);
  // Appends the flows that end at `now` and forgets them; their numbers are given to later flows.
  void end_due(model::Ps now, std::vector<FlowId>& out);
  // Takes a flow out before its end. Needs a flow that was solved and is in motion.
  void stop(model::Ps now, FlowId flow) { remove(now, flow); }
  // Finds the rates that hold after all starts and ends at `now`. Throws OutOfRange when a share is
  // below one unit.
  void solve(model::Ps now);
  model::Ps next_end() const;  // as of the last solve; kNever when nothing moves

  Rate rate(FlowId flow) const { return links_[flows_[flow].owner].level; }
  bool in_motion(FlowId flow) const { return flow < flows_.size() && flows_[flow].alive; }
  std::span<const model::LinkId> route(FlowId flow) const { return route_of(flows_[flow]); }
  // What has not left yet, rounded up. Needs a flow that was solved and is in motion.
  model::Bytes bytes_left(FlowId flow, model::Ps now) const;
  // Of all flows on the link, each rounded up.
  model::Bytes bytes_left_on(model::LinkId link, model::Ps now) const;
  std::size_t num_flows() const { return active_; }
  std::uint32_t flows_on(model::LinkId link) const { return links_[link].count; }
  std::uint32_t peak_flows_on(model::LinkId link) const { return links_[link].peak; }
  model::Ps busy_ps(model::LinkId link, model::Ps now) const;  // with at least one flow
  std::uint64_t num_solves() const { return num_solves_; }
  std::uint64_t num_visits() const { return num_visits_; }  // flows whose rates solves found anew
  // Starts that found, or made, more than its buffer on a link of `crowd`.
  std::uint64_t num_overflows() const { return num_overflows_; }
  std::uint64_t num_deferred() const {
    return num_deferred_;
  }  // re-solves put off by the quantum; 0: exact

 private:
  static constexpr std::size_t kInline = 8;
  static constexpr std::size_t kFew = 4;  // so many flows are walked one by one
  // One cache line; longer routes are kept apart.
  struct alignas(64) Flow {
    Volume target;         // of its owner's clock, at its end; without an owner: its volume
    model::LinkId owner;   // the link that limits it; kNone until solved
    std::uint32_t place;   // in its owner's heap
    std::uint16_t length;  // of its route
    std::uint16_t held;    // by the lists of so many links
    bool alive;
    model::LinkId route[kInline];  // too long: route[0] says where in routes_
  };
  // What a solve touches for every crossing: small, to stay in the first cache.
  struct Load {
    Rate left;               // capacity that flows with a rate do not use
    std::uint32_t open = 0;  // flows without one
    std::uint32_t stamp = 0;
  };
  // So many of a link's own flows cross that link.
  struct Crossing {
    model::LinkId link;
    std::uint32_t flows;
  };
  struct Link {
    Rate capacity;
    Rate level = 0;  // the rate of the flows that it limits
    model::Ps since = 0;
    Volume served = 0;                // its clock at `since`
    std::vector<FlowId> heap;         // the flows that it limits, by target
    std::vector<Crossing> crossings;  // of these, by link; when known
    bool known = false;
    bool dirty = false;
    std::uint32_t opened = 0;  // stamps of the solves that took and gave its level
    std::uint32_t frozen = 0;
    std::uint32_t sorted = ~0U;  // stamp of the solve since which the list is in the order of rates
    std::vector<FlowId> list;    // all flows; may hold some that ended
    std::size_t first = 0;       // those of the list in front of it have ended
    std::uint32_t count = 0;     // flows that have not
    std::uint32_t peak = 0;
    std::uint32_t place = 0;  // in owning_
    Rate freed = 0;
    model::Ps end = kNever;  // when the first flow that it limits ends
    model::Ps busy_since = 0;
    model::Ps busy = 0;
  };
  using Due = std::pair<model::Ps, model::LinkId>;
  struct Share {
    Rate bound;
    model::LinkId link;
  };

  void touch(model::LinkId link);
  // A flow's burst comes to its links, or goes: their capacities follow.
  void add_burst(FlowId flow, bool comes);
  void remove(model::Ps now, FlowId flow);
  void tidy(Link& link);
  void skip_ended(Link& link);
  void let_go(FlowId flow);
  // A link's own flows.
  void own(model::LinkId link, FlowId flow);
  void disown(FlowId flow);
  void sift(Link& link, std::size_t at);
  void recount(Link& link, FlowId flow, bool more);
  void know(Link& link);
  template <class Each>
  void for_crossings(Link& link, const Each& each);
  Volume clock(const Link& link, model::Ps now) const {
    return link.served + static_cast<Volume>(link.level) * static_cast<Volume>(now - link.since);
  }
  void find_end(model::LinkId link);
  void set_end(model::LinkId link, model::Ps end);
  // A solve.
  bool nothing_to_do(bool& deferred);
  bool has_fast_flow(Link& link);
  Rate lowest_level() const;
  void gather(model::Ps now, Rate lowest);
  void reach(model::LinkId link);
  void open(model::Ps now, model::LinkId link);
  bool open_rest(model::Ps now, Rate lowest, std::size_t budget);
  template <class Wanted>
  bool touches(Link& link, const Wanted& wanted, std::size_t& looked_at);
  void fill(model::Ps now);
  void sink(std::size_t at, Share share);
  void freeze(model::Ps now, model::LinkId link, Rate share);
  void take_over(model::Ps now, model::LinkId link);
  // The same where all that it lacks has just started, without a look at its other flows; false,
  // with nothing done, where it may be otherwise.
  bool take_started(model::LinkId link, std::size_t missing);
  void forget_changes();
  std::span<const model::LinkId> route_of(const Flow& flow) const {
    return {flow.length <= kInline ? flow.route : &routes_[flow.route[0]], flow.length};
  }
  bool crosses(const Flow& flow, model::LinkId link) const {
    return std::ranges::find(route_of(flow), link) != route_of(flow).end();
  }

  // A link of `crowd`.
  struct SwitchQueue {
    Rate full = 0;  // the link's capacity without bursts; 0: no such link
    model::Bytes bursts = 0;
  };

  RateQuantum quantum_;
  Incast incast_;
  std::vector<SwitchQueue> queues_;   // by link; empty where bursts cost nothing
  std::vector<model::Bytes> bursts_;  // by flow; empty as well
  std::uint64_t num_overflows_ = 0;
  std::vector<Load> loads_;  // by link
  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<model::LinkId> routes_;
  std::vector<FlowId> free_flows_;
  std::vector<std::vector<std::uint32_t>> free_routes_;  // by length, of the long ones
  std::size_t active_ = 0;
  std::vector<model::LinkId> owning_;  // links that limit flows, in any order
  std::vector<Due> due_;  // heap; entries that differ from their link's `end` are stale
  // Since the last solve:
  std::vector<model::LinkId> dirty_;
  std::size_t checked_ = 0;  // of dirty_, for flows that the quantum keeps waiting
  std::vector<FlowId> started_;
  Rate lowest_ended_ = kUnlimited;
  bool over_quantum_ = false;
  bool waiting_ = false;
  // Scratch of a solve:
  static constexpr Rate kUnlimited = std::numeric_limits<Rate>::max();
  std::uint32_t stamp_ = 0;
  std::vector<model::LinkId> affected_;
  std::vector<model::LinkId> rest_;
  std::size_t left_to_freeze_ = 0;  // flows
  std::vector<Share> shares_;       // heap of lower bounds
  std::vector<model::LinkId> level_;
  std::vector<std::uint32_t> tally_;  // by link, all 0
  std::vector<FlowId> newcomers_;     // of a link that takes them over
  std::uint64_t num_solves_ = 0;
  std::uint64_t num_visits_ = 0;
  std::uint64_t num_deferred_ = 0;
};

}  // namespace astra_sim::engine
