#include "strict/loop/memory.h"

#include "model/base/input_error.h"

namespace astra_sim::strict {

using config::MemoryKind;

Memory::Memory(const config::MemoryConfig& config, Clock& clock, std::uint32_t npus)
    : config_(config), clock_(clock) {
  if (config.kind == MemoryKind::kPool) servers_.resize(1);
  if (config.kind != MemoryKind::kPerNode) return;
  if (config.nodes > npus || config.npus_per_node > npus ||
      config.nodes * config.npus_per_node < npus) {
    throw model::InputError(config.path + ": num-nodes " + std::to_string(config.nodes) +
                            " of num-npus-per-node " + std::to_string(config.npus_per_node) +
                            " do not make the " + std::to_string(npus) + " NPUs of the network");
  }
  servers_.resize(static_cast<std::size_t>(config.nodes));
}

void Memory::access(std::uint32_t npu, std::uint32_t node, std::int64_t bytes) {
  const Request request{npu, node, config_.latency_ns + bytes / config_.bandwidth_bytes_per_ns};
  if (config_.kind == MemoryKind::kPerNpu) {
    clock_.local(npu, request.span_ns, {EventKind::kNodeDone, node});
    return;
  }
  const std::uint32_t server = config_.kind == MemoryKind::kPool
                                   ? 0
                                   : npu / static_cast<std::uint32_t>(config_.npus_per_node);
  if (servers_[server].busy) {
    servers_[server].waiting.push_back(request);
  } else {
    serve(server, request);
  }
}

void Memory::serve(std::uint32_t server, const Request& request) {
  servers_[server].busy = true;
  clock_.local(request.npu, request.span_ns, {EventKind::kNodeDone, request.node});
  clock_.local(request.npu, request.span_ns, {EventKind::kMemoryFree, server});
}

void Memory::server_free(std::uint32_t at) {
  Server& server = servers_[at];
  server.busy = false;
  if (server.waiting.empty()) return;
  const Request request = server.waiting.front();
  server.waiting.pop_front();
  serve(at, request);
}

}  // namespace astra_sim::strict
