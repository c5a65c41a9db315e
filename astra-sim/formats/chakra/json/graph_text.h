// Traces as graphs for other programs: DOT (graphviz) and GraphML (yEd, Gephi, networkx), record by
// record.
#pragma once

#include <string>

#include "formats/chakra/node.h"

namespace astra_sim::chakra {

// Data dependencies are plain arrows, control dependencies end in a bar.
struct Dot {
  static std::string begin(const std::string& name);
  static std::string node(const Node& node);  // with the edges from its parents
  static std::string end();
};

// Attributes of a node become data of the keys id, name, type, duration_micros, comm_size,
// comm_type, tensor_size, num_ops; of an edge: kind (data or control).
struct GraphMl {
  static std::string begin(const std::string& name);
  static std::string node(const Node& node);
  static std::string end();
};

}  // namespace astra_sim::chakra
