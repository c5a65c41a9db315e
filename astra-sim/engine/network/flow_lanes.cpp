#include "engine/network/flow_lanes.h"

#include <algorithm>
#include <map>
#include <utility>

namespace astra_sim::engine {

namespace {

using Colour = std::uint32_t;
// What tells an entry from others: its colour, and those of its neighbours in order.
using Look = std::pair<Colour, std::vector<Colour>>;

// Gives equal looks equal colours, numbered by their first appearance; returns how many there are.
std::size_t recolour(std::vector<Look> looks, std::vector<Colour>& colours) {
  std::map<Look, Colour> known;
  for (std::size_t i = 0; i < looks.size(); ++i) {
    std::ranges::sort(looks[i].second);
    const auto number = static_cast<Colour>(known.size());
    colours[i] = known.try_emplace(std::move(looks[i]), number).first->second;
  }
  return known.size();
}

}  // namespace

std::vector<std::uint32_t> lanes_of(std::span<const model::BytesPerSecond> capacities,
                                    std::span<const ColouredFlow> flows) {
  std::map<model::LinkId, std::uint32_t> place;
  for (const ColouredFlow& flow : flows)
    for (const model::LinkId link : flow.route)
      place.try_emplace(link, static_cast<std::uint32_t>(place.size()));
  std::vector<Colour> of_flow(flows.size()), of_link(place.size());
  std::vector<Look> flow_looks, link_looks(place.size());
  for (const ColouredFlow& flow : flows) flow_looks.push_back({flow.bundle, {}});
  {
    std::map<model::BytesPerSecond, Colour> rates;
    for (const auto& [link, at] : place) {
      const auto number = static_cast<Colour>(rates.size());
      link_looks[at].first = rates.try_emplace(capacities[link], number).first->second;
    }
  }
  std::size_t colours = recolour(flow_looks, of_flow) + recolour(link_looks, of_link);
  for (std::size_t before = 0; before != colours;) {
    before = colours;
    for (std::size_t at = 0; at < link_looks.size(); ++at) link_looks[at] = {of_link[at], {}};
    for (std::size_t i = 0; i < flows.size(); ++i)
      for (const model::LinkId link : flows[i].route)
        link_looks[place.at(link)].second.push_back(of_flow[i]);
    const std::size_t links = recolour(link_looks, of_link);
    for (std::size_t i = 0; i < flows.size(); ++i) {
      flow_looks[i] = {of_flow[i], {}};
      for (const model::LinkId link : flows[i].route)
        flow_looks[i].second.push_back(of_link[place.at(link)]);
    }
    colours = links + recolour(flow_looks, of_flow);
  }
  return of_flow;
}

}  // namespace astra_sim::engine
