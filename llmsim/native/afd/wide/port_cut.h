// The graph of a step as it runs beside open ports: its members by class, and the rows of each
// port.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "afd/wide/runs.h"

namespace llmsim {

inline constexpr std::size_t kNoPort = ~std::size_t{0};
inline constexpr int kPlaceBits = 16;  // of a row's place among those of its port

bool is_row(const StepNode& node);

struct PortCut : WideCut {
  struct Position {
    std::size_t port, place;
  };
  // The port that a row of a member takes; kNoPort: nobody else uses it.
  using PortOf = std::function<std::size_t(const StepNode& row, std::size_t member)>;

  // Of the rows that take `ports`, of `num_ports`, the mover is asked; where it records spans, of
  // all nodes that begin a unit. Members on these ports are classes of their own. Throws
  // std::invalid_argument where a port has more rows than places.
  PortCut(const WideGraph& graph, std::vector<MemberClass> classes, const MemberKinds& kinds,
          std::span<const std::size_t> ports, std::size_t num_ports, const PortOf& port_of,
          bool records);

  std::vector<Position> position;  // by node: its port and its place among that one's rows
  std::vector<std::vector<std::int32_t>> row_nodes;  // by port, in order
  std::vector<std::vector<std::int32_t>> last_rows;  // by class: the last row of each stream
  std::vector<std::int32_t> class_of;                // by member
  std::vector<std::size_t> in_class;                 // by member: where it is in it
};

}  // namespace llmsim
