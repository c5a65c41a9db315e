// Remote memory under upstream's rules: a latency and a bandwidth, and FIFO servers where NPUs
// share it.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "formats/config/memory.h"
#include "strict/base/clock.h"

namespace astra_sim::strict {

class Memory {
 public:
  // Throws model::InputError where the nodes of the configuration do not hold all NPUs.
  Memory(const config::MemoryConfig& config, Clock& clock, std::uint32_t npus);

  bool present() const { return config_.kind != config::MemoryKind::kNone; }
  // Needs present(). The end comes as node_done of `node` on `npu`.
  void access(std::uint32_t npu, std::uint32_t node, std::int64_t bytes);
  void server_free(std::uint32_t server);

 private:
  struct Request {
    std::uint32_t npu;
    std::uint32_t node;
    Ns span_ns;
  };
  struct Server {
    bool busy = false;
    std::deque<Request> waiting;
  };
  void serve(std::uint32_t server, const Request& request);

  config::MemoryConfig config_;
  Clock& clock_;
  std::vector<Server> servers_;
};

}  // namespace astra_sim::strict
