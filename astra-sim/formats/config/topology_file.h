// Our own network file (JSON): regular dimensions, or devices, switches and full-duplex links one
// by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/config/network.h"

namespace astra_sim::config {

// Bandwidths in GB/s of 10^9 bytes, per direction and cable; latencies in ns per link. A bisection
// of 0 says that the switch does not block.
struct TopologyDimension {
  NetworkShape shape;
  std::uint32_t size;
  double gb_per_s;
  double latency_ns;
  double bisection_gb_per_s;
};

struct TopologySwitch {
  double bisection_gb_per_s;
  std::uint32_t spread;  // choice among equal paths by destination / spread; 0: by hash
};

struct TopologyLink {
  std::uint32_t a;  // devices first, then switches in the order of the file
  std::uint32_t b;
  double gb_per_s;
  double latency_ns;
};

struct TopologyFile {
  std::string path;
  std::vector<TopologyDimension> dimensions;  // else:
  std::uint32_t devices = 0;
  bool devices_relay = false;
  std::vector<TopologySwitch> switches;
  std::vector<TopologyLink> links;
  std::vector<std::vector<std::uint32_t>> routes;  // of one ordered pair of devices each
};

// Throws model::InputError naming file, line, column and field. Unknown fields are errors: the
// format is ours.
TopologyFile read_topology_file(const std::string& path);

}  // namespace astra_sim::config
