// The network file (YAML): one entry per dimension, the first varies fastest in the number of an NPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace astra_sim::config {

enum class NetworkShape : std::uint8_t { ring, fully_connected, switched };

struct NetworkDimension {
    NetworkShape shape;
    std::uint32_t npus;
    double bandwidth_gb_per_s;  // as written; what a GB is (2^30 upstream, 10^9 by default) is the executor's rule
    double latency_ns;          // per hop
};

struct NetworkConfig {
    std::vector<NetworkDimension> dimensions;
    std::vector<std::string> notes;

    std::uint32_t npus() const;
};

// Throws model::InputError naming file, line and key.
NetworkConfig read_network(const std::string& path);

}  // namespace astra_sim::config
