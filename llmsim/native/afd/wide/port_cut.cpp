#include "afd/wide/port_cut.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace llmsim {

bool is_row(const StepNode& node) {
  return node.role == NodeRole::kM2nSend || node.role == NodeRole::kM2nReceive;
}

PortCut::PortCut(const WideGraph& all, std::vector<MemberClass> of_members,
                 const MemberKinds& kinds, std::span<const std::size_t> ports,
                 std::size_t num_ports, const PortOf& port_of, bool records)
    : WideCut(all, std::move(of_members)),
      position(all.nodes.size(), {kNoPort, 0}),
      row_nodes(num_ports),
      last_rows(classes.size()),
      class_of(kinds.num_members(), 0),
      in_class(kinds.num_members(), 0) {
  for (std::size_t c = 0; c < classes.size(); ++c)
    for (std::size_t i = 0; i < classes[c].members.size(); ++i) {
      class_of[at(classes[c].members[i])] = static_cast<std::int32_t>(c);
      in_class[at(classes[c].members[i])] = i;
    }
  std::vector<std::int32_t> last(at(graph->graph.units * kNumDeviceStreams), -1);
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(graph->nodes.size()); ++i) {
    const StepNode& node = graph->graph.nodes[at(i)];
    asks[at(i)] = records && begins_unit(node);
    if (!is_row(node)) continue;
    last[at(node.stream)] = i;
    const MemberClass& mine = classes[at(node.member)];
    const std::size_t port = port_of(node, at(mine.members[0]));
    if (mine.members.size() > 1 || !std::ranges::count(ports, port)) continue;
    std::vector<std::int32_t>& rows = row_nodes[port];
    if (rows.size() >> kPlaceBits != 0)
      throw std::invalid_argument("a step with too many layers and lanes");
    asks[at(i)] = true;
    position[at(i)] = {port, rows.size()};
    rows.push_back(i);
  }
  for (const std::int32_t node : last)
    if (node >= 0) last_rows[at(graph->graph.nodes[at(node)].member)].push_back(node);
}

}  // namespace llmsim
