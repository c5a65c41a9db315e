#include "engine/network/flow_bundles.h"

#include <algorithm>
#include <utility>

#include "engine/network/flow_lanes.h"

namespace astra_sim::engine {

using model::Bytes;
using model::BytesPerSecond;
using model::LinkId;
using model::Ps;

namespace {

// More sets than that, or more than one new set in so many solves, are not worth their cache.
constexpr std::size_t kMostSets = 4096;
constexpr std::uint64_t kFirstSets = 512;
constexpr std::uint64_t kSolvesPerSet = 16;
// Of the flows that find a set's rates; none of them ends.
constexpr Bytes kMuch = Bytes{1} << 40;

std::vector<LinkId> links_of(std::span<const Bundle> bundles) {
  std::vector<LinkId> links;
  for (const Bundle& bundle : bundles)
    for (const BundledFlow& flow : bundle)
      links.insert(links.end(), flow.route.begin(), flow.route.end());
  std::ranges::sort(links);
  const auto again = std::ranges::unique(links);
  links.erase(again.begin(), again.end());
  return links;
}

std::vector<BytesPerSecond> capacities_of(std::span<const BytesPerSecond> all,
                                          std::span<const LinkId> links) {
  std::vector<BytesPerSecond> capacities;
  for (const LinkId link : links) capacities.push_back(all[link]);
  return capacities;
}

}  // namespace

FlowBundles::FlowBundles(std::span<const BytesPerSecond> capacities, std::vector<Bundle> bundles)
    : bundles_(std::move(bundles)),
      lanes_of_(bundles_.size()),
      in_motion_(bundles_.size()),
      links_(links_of(bundles_)),
      solver_(capacities_of(capacities, links_)) {
  std::vector<ColouredFlow> flows;
  for (BundleId bundle = 0; bundle < bundles_.size(); ++bundle)
    for (const BundledFlow& flow : bundles_[bundle]) flows.push_back({bundle, flow.route});
  const std::vector<std::uint32_t> number = engine::lanes_of(capacities, flows);
  std::size_t first = 0;
  for (BundleId bundle = 0; bundle < bundles_.size(); first += bundles_[bundle++].size()) {
    std::map<std::uint32_t, std::uint32_t> lane_of;
    for (std::uint32_t i = 0; i < bundles_[bundle].size(); ++i) {
      const auto next = static_cast<std::uint32_t>(lanes_.size());
      const auto [found, is_new] = lane_of.try_emplace(number[first + i], next);
      if (is_new) {
        lanes_.emplace_back().bundle = bundle;
        lanes_of_[bundle].push_back(next);
      }
      Lane& lane = lanes_[found->second];
      lane.flows.push_back(i);
      lane.latency = std::max(lane.latency, bundles_[bundle][i].latency);
    }
  }
  set_ = settled_ = set_of({});
}

FlowBundles::Set* FlowBundles::set_of(std::vector<std::uint32_t> lanes) {
  const auto [found, is_new] = sets_.try_emplace(std::move(lanes));
  Set& set = found->second;
  if (is_new) {
    set.lanes = found->first;
    set.with.assign(bundles_.size(), nullptr);
    set.without.assign(lanes_.size(), nullptr);
  }
  return &set;
}

FlowBundles::Set* FlowBundles::with(Set& set, BundleId bundle) {
  if (set.with[bundle] != nullptr) return set.with[bundle];
  std::vector<std::uint32_t> lanes = set.lanes;
  lanes.insert(lanes.end(), lanes_of_[bundle].begin(), lanes_of_[bundle].end());
  std::ranges::sort(lanes);
  return set.with[bundle] = set_of(std::move(lanes));
}

FlowBundles::Set* FlowBundles::without(Set& set, std::uint32_t lane) {
  if (set.without[lane] != nullptr) return set.without[lane];
  std::vector<std::uint32_t> lanes = set.lanes;
  std::erase(lanes, lane);
  return set.without[lane] = set_of(std::move(lanes));
}

void FlowBundles::start(Ps now, BundleId bundle, Bytes bytes) {
  for (const std::uint32_t number : lanes_of_[bundle]) {
    Lane& lane = lanes_[number];
    lane.left = FairShare::volume_of(bytes);
    lane.since = now;
    lane.rate = 0;
    lane.end = FairShare::kNever;
  }
  in_motion_[bundle] = {static_cast<std::uint32_t>(lanes_of_[bundle].size()), now};
  set_ = with(*set_, bundle);
  changed_ = true;
}

void FlowBundles::end_due(Ps now, std::vector<Landing>& out) {
  if (next_end_ > now) return;
  for (const std::uint32_t number : settled_->lanes) {
    Lane& lane = lanes_[number];
    if (lane.end > now) continue;
    lane.end = FairShare::kNever;
    set_ = without(*set_, number);
    changed_ = true;
    InMotion& bundle = in_motion_[lane.bundle];
    bundle.lands = std::max(bundle.lands, now + lane.latency);
    if (--bundle.lanes == 0) out.push_back({lane.bundle, bundle.lands});
  }
  next_end_ = FairShare::kNever;
}

void FlowBundles::solve(Ps now) {
  if (!changed_) return;
  changed_ = false;
  settled_->lasted += now - settled_at_;
  settled_ = set_;
  settled_at_ = now;
  Set& set = *set_;
  ++solves_;
  if (set.rates.size() < set.lanes.size()) solve(set);
  next_end_ = FairShare::kNever;
  for (std::size_t i = 0; i < set.lanes.size(); ++i) {
    Lane& lane = lanes_[set.lanes[i]];
    if (lane.rate != set.rates[i]) {
      lane.left = left_at(lane, now);
      lane.since = now;
      lane.rate = set.rates[i];
      const auto rate = static_cast<Volume>(lane.rate);
      const Volume span = (lane.left + rate - 1) / rate;
      const auto limit = static_cast<Volume>(model::kHorizon - now);
      lane.end = span > limit ? model::kHorizon + 1 : now + static_cast<Ps>(span);
    }
    next_end_ = std::min(next_end_, lane.end);
  }
}

// The solver's flows start and stop at one time.
void FlowBundles::solve(Set& set) {
  ++solved_;
  std::vector<std::vector<FlowId>> flows;
  std::vector<LinkId> route;
  for (const std::uint32_t number : set.lanes) {
    const Lane& lane = lanes_[number];
    auto& of_lane = flows.emplace_back();
    for (const std::uint32_t flow : lane.flows) {
      route.clear();
      for (const LinkId link : bundles_[lane.bundle][flow].route)
        route.push_back(
            static_cast<LinkId>(std::ranges::lower_bound(links_, link) - links_.begin()));
      of_lane.push_back(solver_.start(0, route, kMuch));
    }
  }
  solver_.solve(0);
  for (const auto& of_lane : flows) {
    set.rates.push_back(solver_.rate(of_lane.front()));
    for (const FlowId flow : of_lane) solver_.stop(0, flow);
  }
  solver_.solve(0);
}

bool FlowBundles::repeats() const {
  return sets_.size() <= kMostSets && (solved_ <= kFirstSets || solved_ * kSolvesPerSet <= solves_);
}

std::vector<FlowBundles::Rest> FlowBundles::stop(Ps now) {
  std::vector<Rest> rest;
  for (const std::uint32_t number : set_->lanes) {
    const Lane& lane = lanes_[number];
    // Lanes of a bundle follow each other.
    if (rest.empty() || rest.back().bundle != lane.bundle)
      rest.push_back({lane.bundle, in_motion_[lane.bundle].lands, {}});
    for (const std::uint32_t flow : lane.flows)
      rest.back().flows.emplace_back(flow, left_at(lane, now));
  }
  set_ = set_of({});
  changed_ = true;
  solve(now);
  return rest;
}

Bytes FlowBundles::bytes_left_on(LinkId link, Ps now) const {
  Bytes left = 0;
  for (const std::uint32_t number : set_->lanes) {
    const Lane& lane = lanes_[number];
    const auto crosses = [&](std::uint32_t flow) {
      const auto& route = bundles_[lane.bundle][flow].route;
      return std::ranges::find(route, link) != route.end();
    };
    left += FairShare::bytes_of(left_at(lane, now)) * std::ranges::count_if(lane.flows, crosses);
  }
  return left;
}

Ps FlowBundles::busy_ps(LinkId link, Ps now) const {
  std::vector<bool> crosses(lanes_.size(), false);
  for (std::size_t number = 0; number < lanes_.size(); ++number)
    for (const std::uint32_t flow : lanes_[number].flows)
      for (const LinkId crossed : bundles_[lanes_[number].bundle][flow].route)
        if (crossed == link) crosses[number] = true;
  Ps busy = 0;
  for (const auto& [lanes, set] : sets_) {
    const bool here = std::ranges::any_of(lanes, [&](auto lane) { return crosses[lane]; });
    if (!here) continue;
    busy += set.lasted;
    if (&set == settled_) busy += now - settled_at_;
  }
  return busy;
}

}  // namespace astra_sim::engine
