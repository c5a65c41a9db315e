// Names of node kinds and streams, and how messages refer to a node.
#include "model/graph/graph.h"

namespace astra_sim::model {

const char* name_of(NodeKind kind) {
    switch (kind) {
        case NodeKind::compute:
            return "compute";
        case NodeKind::collective:
            return "collective";
        case NodeKind::transfer:
            return "transfer";
        case NodeKind::send:
            return "send";
        case NodeKind::recv:
            return "recv";
        case NodeKind::memory_load:
            return "memory load";
        case NodeKind::memory_store:
            return "memory store";
    }
    return "unknown";
}

const char* name_of(Stream stream) {
    switch (stream) {
        case Stream::compute:
            return "compute";
        case Stream::comm:
            return "comm";
        case Stream::copy_in:
            return "copy_in";
        case Stream::copy_out:
            return "copy_out";
        case Stream::pim:
            return "pim";
        case Stream::host:
            return "host";
        case Stream::none:
            return "none";
    }
    return "unknown";
}

std::string ExecutionGraph::describe(NodeIndex node) const {
    const std::uint64_t number = id.empty() ? node : id[node];
    return "node " + std::to_string(number) + " (" + name_of(kind[node]) + " on device " +
           std::to_string(device[node]) + ")";
}

}  // namespace astra_sim::model
