// FlowBundles: flows that start together, with fair shares that are cached by what is in motion.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/network/fair_share.h"

namespace astra_sim::engine {

using BundleId = std::uint32_t;

// One flow of a bundle. Its last byte is there `latency` after it has left.
struct BundledFlow {
  std::vector<model::LinkId> route;  // different links, at least one
  model::Ps latency = 0;
};

// Flows of equal bytes that start together, such as the messages of a ring. Not empty.
using Bundle = std::vector<BundledFlow>;

// Bundles that share links with each other and with nothing else. A bundle is in motion at most
// once at a time.
//
// Flows of one bundle that cross alike links in alike company have equal rates whatever else is in
// motion (flow_lanes.h); they are one lane. A fair share depends only on the set of lanes in
// motion. Few such sets come again and again while steps repeat their collectives, so that each set
// is solved once, by FairShare. What is left of a flow is the same integer as in FairShare, and so
// are all times.
class FlowBundles {
 public:
  struct Landing {
    BundleId bundle;
    model::Ps at;  // the last byte of its last flow is there
  };
  // A bundle that is taken out of motion.
  struct Rest {
    BundleId bundle;
    model::Ps lands;  // what has ended; earlier than now: nothing that matters
    std::vector<std::pair<std::uint32_t, FairShare::Volume>> flows;  // what is left of each
  };

  // `capacities` of all links. Throws OutOfRange as FairShare does.
  FlowBundles(std::span<const model::BytesPerSecond> capacities, std::vector<Bundle> bundles);
  FlowBundles(const FlowBundles&) = delete;
  FlowBundles& operator=(const FlowBundles&) = delete;

  // Needs bytes > 0. The flows move from `now` on, with rates from the next solve.
  void start(model::Ps now, BundleId bundle, model::Bytes bytes);
  // Appends the bundles of which the last flow ends at `now`.
  void end_due(model::Ps now, std::vector<Landing>& out);
  // Finds the rates that hold after all starts and ends at `now`. Throws OutOfRange when a share is
  // below one unit.
  void solve(model::Ps now);
  model::Ps next_end() const { return next_end_; }  // as of the last solve; kNever: nothing moves
  // Whether flows are in motion, those included that have just started.
  bool moves() const { return !set_->lanes.empty(); }
  // False: so many sets are new that a cache is no help.
  bool repeats() const;

  // Takes all flows out of motion.
  std::vector<Rest> stop(model::Ps now);

  std::span<const Bundle> bundles() const { return bundles_; }
  // Of all flows on the link, each rounded up.
  model::Bytes bytes_left_on(model::LinkId link, model::Ps now) const;
  model::Ps busy_ps(model::LinkId link, model::Ps now) const;  // with at least one flow
  std::uint64_t num_solved_sets() const { return solved_; }

 private:
  using Volume = FairShare::Volume;
  // Flows of one bundle that have equal rates at all times.
  struct Lane {
    BundleId bundle = 0;
    std::vector<std::uint32_t> flows;
    model::Ps latency = 0;  // the longest
    // While it is in motion:
    Volume left = 0;  // at `since`
    model::Ps since = 0;
    Rate rate = 0;
    model::Ps end = FairShare::kNever;
  };
  struct InMotion {
    std::uint32_t lanes = 0;
    model::Ps lands = 0;  // what has ended
  };
  // Lanes in motion.
  struct Set {
    std::vector<std::uint32_t> lanes;
    std::vector<Rate> rates;    // of each; empty until solved
    std::vector<Set*> with;     // by bundle: the set after its start; null: not known
    std::vector<Set*> without;  // by lane: the set after its end
    model::Ps lasted = 0;
  };

  Set* set_of(std::vector<std::uint32_t> lanes);
  Set* with(Set& set, BundleId bundle);
  Set* without(Set& set, std::uint32_t lane);
  void solve(Set& set);
  Volume left_at(const Lane& lane, model::Ps now) const {
    const Volume served = static_cast<Volume>(lane.rate) * static_cast<Volume>(now - lane.since);
    return served < lane.left ? lane.left - served : 0;
  }

  std::vector<Bundle> bundles_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<std::uint32_t>> lanes_of_;  // by bundle
  std::vector<InMotion> in_motion_;                   // by bundle
  std::vector<model::LinkId> links_;                  // of all bundles, ascending
  std::map<std::vector<std::uint32_t>, Set> sets_;    // by their lanes
  Set* set_ = nullptr;                                // in motion now
  Set* settled_ = nullptr;                            // since the last solve
  model::Ps settled_at_ = 0;
  bool changed_ = false;  // since then
  model::Ps next_end_ = FairShare::kNever;
  FairShare solver_;  // of links by their place in links_; nothing moves in it
  std::uint64_t solved_ = 0, solves_ = 0;
};

}  // namespace astra_sim::engine
