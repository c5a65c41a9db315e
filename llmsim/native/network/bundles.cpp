#include "network/bundles.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>

namespace llmsim {

namespace engine = astra_sim::engine;

BundleId Bundles::add(std::vector<Flow> flows) {
  bundles_.push_back(std::move(flows));
  carried_.emplace_back();
  return static_cast<BundleId>(bundles_.size() - 1);
}

// By link: one of those that bundles join it with, the same for all of them.
std::vector<std::uint32_t> Bundles::joined(std::size_t num_links) const {
  std::vector<std::uint32_t> root(num_links);
  std::iota(root.begin(), root.end(), 0U);
  const auto find = [&root](std::uint32_t link) {
    while (root[link] != link) link = root[link] = root[root[link]];
    return link;
  };
  for (const auto& flows : bundles_) {
    std::uint32_t first = kNone;
    for (const Flow& flow : flows) {
      for (const LinkId link : flow.route) {
        if (first == kNone) first = link;
        root[find(link)] = find(first);
      }
    }
  }
  for (std::uint32_t link = 0; link < num_links; ++link) root[link] = find(link);
  return root;
}

void Bundles::build(std::span<const std::int64_t> capacities) {
  for (const Component& component : components_)
    if (component.next_end != kEndOfTime)
      throw std::logic_error("bundles are added while others of the same network move");
  components_.clear();
  crossing_.clear();
  changed_.clear();
  due_ = {};
  built_ = true;
  component_on_.assign(capacities.size(), kNone);
  crossing_.resize(capacities.size());
  component_of_.assign(bundles_.size(), kNone);
  number_in_.assign(bundles_.size(), kNone);
  const std::vector<std::uint32_t> root = joined(capacities.size());
  std::map<std::uint32_t, std::uint32_t> component_at;  // by root
  std::vector<std::vector<engine::Bundle>> routes;
  for (BundleId bundle = 0; bundle < bundles_.size(); ++bundle) {
    engine::Bundle moving;
    for (const Flow& flow : bundles_[bundle])
      if (!flow.route.empty()) moving.push_back({flow.route, flow.latency});
    if (moving.empty()) continue;
    const auto next = static_cast<std::uint32_t>(routes.size());
    const auto component =
        component_at.try_emplace(root[moving.front().route.front()], next).first->second;
    if (component == next) {
      routes.emplace_back();
      components_.emplace_back();
    }
    for (const engine::BundledFlow& flow : moving) {
      for (const LinkId link : flow.route) {
        component_on_[link] = component;
        auto& crossing = crossing_[link];
        if (crossing.empty() || crossing.back().bundle != bundle) crossing.push_back({bundle, 0});
        ++crossing.back().flows;
      }
    }
    component_of_[bundle] = component;
    number_in_[bundle] = static_cast<std::uint32_t>(routes[component].size());
    components_[component].bundles.push_back(bundle);
    routes[component].push_back(std::move(moving));
  }
  home_of_ = component_of_;
  was_on_ = component_on_;
  for (LinkId link = 0; link < component_on_.size(); ++link)
    if (component_on_[link] != kNone) components_[component_on_[link]].links.push_back(link);
  for (std::size_t i = 0; i < components_.size(); ++i)
    components_[i].flows = std::make_unique<engine::FlowBundles>(capacities, std::move(routes[i]));
}

void Bundles::count(BundleId bundle, std::int64_t bytes) {
  carried_[bundle].bytes += bytes;
  ++carried_[bundle].transfers;
}

void Bundles::change(std::uint32_t component) {
  if (components_[component].changed) return;
  components_[component].changed = true;
  changed_.push_back(component);
}

void Bundles::start(Ps now, BundleId bundle, std::int64_t bytes) {
  const std::uint32_t component = component_of_[bundle];
  components_[component].flows->start(now, number_in_[bundle], bytes);
  change(component);
}

// Entries that differ from their component's `next_end` are stale.
void Bundles::end_due(Ps now, std::vector<Landing>& out) {
  for (; !due_.empty() && due_.top().first <= now; due_.pop()) {
    const std::uint32_t number = due_.top().second;
    Component& component = components_[number];
    if (component.next_end != due_.top().first) continue;
    component.next_end = kEndOfTime;
    landed_.clear();
    component.flows->end_due(now, landed_);
    change(number);
    for (const auto& landing : landed_)
      out.push_back({component.bundles[landing.bundle], landing.at});
  }
}

void Bundles::solve(Ps now) {
  for (const std::uint32_t number : changed_) {
    Component& component = components_[number];
    component.changed = false;
    component.flows->solve(now);
    const Ps next = component.flows->next_end();
    if (next == component.next_end) continue;
    component.next_end = next;
    if (next != kEndOfTime) due_.emplace(next, number);
  }
  changed_.clear();
  while (!due_.empty() && components_[due_.top().second].next_end != due_.top().first) due_.pop();
}

std::vector<Bundles::Rest> Bundles::dissolve(std::uint32_t number, Ps now) {
  Component& component = components_[number];
  std::vector<Rest> rests;
  for (const auto& stopped : component.flows->stop(now)) {
    Rest& rest = rests.emplace_back(Rest{component.bundles[stopped.bundle], stopped.lands, {}});
    std::vector<std::size_t> moving;  // flows inside a node are not in the component
    const auto& flows = bundles_[rest.bundle];
    for (std::size_t flow = 0; flow < flows.size(); ++flow)
      if (!flows[flow].route.empty()) moving.push_back(flow);
    for (const auto& [flow, volume] : stopped.flows) rest.flows.emplace_back(moving[flow], volume);
  }
  component.next_end = kEndOfTime;
  for (const BundleId bundle : component.bundles) component_of_[bundle] = kNone;
  for (const LinkId link : component.links) component_on_[link] = kNone;
  return rests;
}

void Bundles::join_again(std::uint32_t number) {
  for (const BundleId bundle : components_[number].bundles) component_of_[bundle] = number;
  for (const LinkId link : components_[number].links) component_on_[link] = number;
}

Bundles::Carried Bundles::carried(LinkId link, Ps now) const {
  Carried sum;
  if (!built_ || crossing_[link].empty()) return sum;
  for (const Crossing& crossing : crossing_[link]) {
    sum.bytes += carried_[crossing.bundle].bytes * crossing.flows;
    sum.transfers += carried_[crossing.bundle].transfers * crossing.flows;
  }
  sum.busy = components_[was_on_[link]].flows->busy_ps(link, now);
  return sum;
}

std::int64_t Bundles::bytes_left_on(LinkId link, Ps now) const {
  const std::uint32_t component = component_on(link);
  return component == kNone ? 0 : components_[component].flows->bytes_left_on(link, now);
}

}  // namespace llmsim
