// The network file: upstream's YAML, one entry per dimension, the first varying fastest in the
// number of an NPU; or our JSON (topology_file.h), told by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace astra_sim::config {

enum class NetworkShape : std::uint8_t { kRing, kFullyConnected, kSwitched };

struct NetworkDimension {
  NetworkShape shape;
  std::uint32_t npus;
  double bandwidth_gb_per_s;  // as written; what a GB is (2^30 upstream, 10^9 by default, unless
                              // the file says it) is the executor's rule
  double latency_ns;          // per hop
};

struct TopologyFile;

struct NetworkConfig {
  std::vector<NetworkDimension> dimensions;
  // Where the file is one of ours: then the dimensions are its own, or one that stands for all its
  // devices.
  std::shared_ptr<const TopologyFile> file;
  std::vector<std::uint32_t> logical;  // sizes of the dimensions of collectives; empty: the same
  bool in_gib = false;                 // the file says that its GB have 2^30 bytes
  std::vector<std::string> notes;

  std::uint32_t npus() const;
  // Of a dimension, in GB of 10^9 bytes: by default rules, and in GB of 2^30: by upstream's.
  double decimal_gb_per_s(const NetworkDimension& dimension) const;
  double binary_gb_per_s(const NetworkDimension& dimension) const;
  // As collectives see it: one dimension per logical one.
  NetworkConfig as_seen_by_collectives() const;
};

// Throws model::InputError naming file, line and key.
NetworkConfig read_network(const std::string& path);

// The logical dimensions of a file in JSON, {"logical-dims": [8, 4]}, as upstream's ns-3 and HTSim
// frontends take it; their product is `npus`. Throws model::InputError.
std::vector<std::uint32_t> read_logical_dimensions(const std::string& path, std::uint32_t npus);

}  // namespace astra_sim::config
