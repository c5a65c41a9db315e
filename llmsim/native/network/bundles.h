// Flows that start together on the shared network, such as those of a collective.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "engine/network/flow_bundles.h"
#include "model/base/types.h"

namespace llmsim {

using BundleId = std::uint32_t;

// All bundles of a network, with their routes. Those that share links are one component. While
// nothing else crosses the links of a component, its fair shares come from FlowBundles, which finds
// them in a cache. When something does, its flows are flows like all others until its links are
// silent.
class Bundles {
 public:
  using LinkId = astra_sim::model::LinkId;
  static constexpr std::uint32_t kNone = astra_sim::model::kNone;

  struct Flow {
    std::vector<LinkId> route;  // empty: inside a node
    Ps latency = 0;
  };
  struct Landing {
    BundleId bundle;
    Ps at;
  };
  // What is left of a bundle of a component that is dissolved.
  struct Rest {
    BundleId bundle;
    Ps lands;  // what has left; earlier than now: nothing that matters
    std::vector<std::pair<std::size_t, astra_sim::engine::FairShare::Volume>> flows;
  };
  struct Carried {
    std::int64_t bytes = 0, transfers = 0;  // that have begun
    Ps busy = 0;                            // with a flow of a component in motion
  };

  // Throws std::logic_error after the first start.
  BundleId add(std::vector<Flow> flows);
  std::span<const Flow> flows(BundleId bundle) const { return bundles_[bundle]; }
  // The first start is to come: `capacities` of all links.
  void build(std::span<const std::int64_t> capacities);
  bool built() const { return built_; }

  // The component whose links nothing else has crossed; kNone.
  std::uint32_t component_of(BundleId bundle) const { return component_of_[bundle]; }
  std::uint32_t component_on(LinkId link) const { return built_ ? component_on_[link] : kNone; }
  // Counts a start, in a component or elsewhere.
  void count(BundleId bundle, std::int64_t bytes);
  // In its component; bytes > 0.
  void start(Ps now, BundleId bundle, std::int64_t bytes);
  void end_due(Ps now, std::vector<Landing>& out);
  void solve(Ps now);
  Ps next_end() const { return due_.empty() ? kEndOfTime : due_.top().first; }
  // Other flows may cross its links from now on.
  std::vector<Rest> dissolve(std::uint32_t component, Ps now);
  // The component that the bundle was in when it was built; kNone.
  std::uint32_t home_of(BundleId bundle) const { return home_of_[bundle]; }
  std::span<const LinkId> links(std::uint32_t component) const {
    return components_[component].links;
  }
  // Nothing moves on the links of a component that was dissolved: its bundles start in it again.
  void join_again(std::uint32_t component);
  // Whether flows of a component are in motion.
  bool moves(std::uint32_t component) const { return components_[component].flows->moves(); }
  // Whether its shares come from the cache often enough.
  bool repeats(std::uint32_t component) const { return components_[component].flows->repeats(); }

  Carried carried(LinkId link, Ps now) const;
  std::int64_t bytes_left_on(LinkId link, Ps now) const;

 private:
  struct Component {
    std::unique_ptr<astra_sim::engine::FlowBundles> flows;
    std::vector<BundleId> bundles;  // by the numbers of `flows`
    std::vector<LinkId> links;
    Ps next_end = kEndOfTime;
    bool changed = false;
  };
  struct Crossing {
    BundleId bundle;
    std::int64_t flows;
  };
  using Due = std::pair<Ps, std::uint32_t>;

  std::vector<std::uint32_t> joined(std::size_t num_links) const;
  void change(std::uint32_t component);

  std::vector<std::vector<Flow>> bundles_;
  std::vector<Carried> carried_;                         // by bundle; `busy` is not used
  std::vector<std::uint32_t> component_of_, number_in_;  // by bundle; kNone: none, or dissolved
  std::vector<std::uint32_t> component_on_;              // by link; kNone: none, or dissolved
  std::vector<std::uint32_t> home_of_, was_on_;          // the same with dissolved ones
  std::vector<std::vector<Crossing>> crossing_;          // by link
  std::vector<Component> components_;
  std::vector<std::uint32_t> changed_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<astra_sim::engine::FlowBundles::Landing> landed_;  // scratch
  bool built_ = false;
};

}  // namespace llmsim
