// A switch that all ranks hang on reduces and multicasts.
#include <string>
#include <vector>

#include "model/base/errors.h"
#include "model/collective/schedule.h"
#include "model/topology/topology.h"

namespace astra_sim::model {

namespace patterns {

void in_switch(ScheduleBuilder& out, const Line& line, CollectiveKind kind) {
  using enum CollectiveKind;
  const std::uint32_t n = line.size();
  const Topology& topology = out.topology();
  std::vector<LinkId> up(n);
  std::vector<LinkId> down(n);
  std::vector<LinkId> route;
  for (std::uint32_t at = 0; at < n; ++at) {
    const DeviceId device = out.device(line, at);
    const DeviceId other = out.device(line, (at + 1) % n);
    route.clear();
    topology.route(device, other, route);
    up[at] = route.front();
    route.clear();
    topology.route(other, device, route);
    down[at] = route.back();
    const Link& first = topology.links()[up[0]];
    const bool same = topology.links()[up[at]].to == first.to &&
                      topology.links()[down[at]].from == topology.links()[down[0]].from;
    if (!same || first.to < topology.num_devices()) {
      throw InvalidTopology("an in-switch " + std::string(name_of(kind)) +
                            " needs all its ranks on one switch, but devices " +
                            std::to_string(out.device(line, 0)) + " and " + std::to_string(device) +
                            " are not: make it one dimension of a plan of several");
    }
  }
  const std::uint32_t agent = out.add_switch(line, topology.links()[up[0]].to);
  Ids heard;
  const std::int64_t part = kind == kReduceScatter ? line.units / n : line.units;
  for (std::uint32_t at = 0; at < n; ++at) {
    const bool sends = kind == kBroadcast ? at == line.root : kind != kReduce || at != line.root;
    if (sends)
      heard.push_back(out.add(line, at, agent, line.first[at], line.units, {}, false, up[at]));
  }
  for (std::uint32_t at = 0; at < n; ++at) {
    const bool hears = kind == kReduce ? at == line.root : kind != kBroadcast || at != line.root;
    const std::int64_t first = kind == kReduceScatter ? line.first[at] + at * part : line.first[0];
    if (hears)
      out.add(line, agent, at, first, kind == kAllGather ? part * n : part, heard, false, down[at]);
  }
}

}  // namespace patterns

}  // namespace astra_sim::model
