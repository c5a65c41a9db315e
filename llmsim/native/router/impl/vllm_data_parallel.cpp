// VLLM_DP: the balancer of vLLM 0.33 between its data-parallel engines (v1/engine/core_client.py,
// DPLBAsyncMPClient).
#include <algorithm>
#include <utility>

#include "router/registry.h"

namespace llmsim {

namespace {

// Each API server ("client") knows how many of its own requests an engine has, and what the engines
// last reported of waiting, running and KV usage. The coordinator passes reports on when the
// waiting or running requests of an engine have changed, and a period has passed since it last did
// (v1/engine/coordinator.py); in between a client adds its own choices to the reported waiting
// requests. Requests are spread over the clients in turn.
class VllmDataParallel final : public Router {
 public:
  VllmDataParallel(std::size_t num_requests, std::size_t num_clients, Ps period)
      : period_(period), clients_(num_clients), sent_to_(num_requests, -1) {
    next_look_ = 0;
  }

  void group_added(Group& group) override {
    groups_.push_back(&group);
    const auto models = static_cast<std::size_t>(group.config().model) + 1;
    for (Client& client : clients_) {
      client.engines.resize(groups_.size());
      if (client.first.size() < models) client.first.resize(models, -1);
    }
  }

  // What is seen is the state at `next_look_`, the earliest time of a report or the last event.
  bool look(Ps next_event) override {
    next_look_ = reported() ? next_look_ + period_ : next_event;
    return true;
  }

  std::size_t route(RequestId request, Ps, std::span<Group* const> candidates) override {
    Client& client = client_of(request);
    const auto n = static_cast<std::int64_t>(candidates.size());
    std::int64_t& first = client.first[static_cast<std::size_t>(candidates[0]->config().model)];
    if (first < 0)
      first =
          n * (&client - clients_.data()) / num_clients();  // clients begin at different engines
    first %= n;  // not every engine can run every request
    std::size_t best = static_cast<std::size_t>(first);
    double least = score(client, *candidates[best]);
    for (std::int64_t k = 1; k < n; ++k) {
      const auto i = static_cast<std::size_t>((first + k) % n);
      const double other = score(client, *candidates[i]);
      if (other >= least) continue;
      best = i;
      least = other;
    }
    first = (first + 1) % n;  // so that ties do not favour an engine
    Engine& chosen = client.engines[index_of(*candidates[best])];
    chosen.waiting += num_clients();
    ++chosen.in_flight;
    sent_to_[static_cast<std::size_t>(request)] = candidates[best]->config().index;
    return best;
  }

  void finished(RequestId request) override {
    const std::int32_t group = sent_to_[static_cast<std::size_t>(request)];
    if (group >= 0) --client_of(request).engines[static_cast<std::size_t>(group)].in_flight;
  }

 private:
  // Whether an engine has other waiting or running requests than at the last report, which is then
  // made.
  bool reported() {
    counts_.resize(2 * groups_.size(), 0);
    bool changed = false;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const Gauges gauges = groups_[i]->scheduler().gauges();
      changed |= gauges.waiting != std::exchange(counts_[2 * i], gauges.waiting);
      changed |= gauges.running != std::exchange(counts_[2 * i + 1], gauges.running);
    }
    if (changed) report();
    return changed;
  }

  void report() {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const Gauges gauges = groups_[i]->scheduler().gauges();
      const PoolState& pool = gauges.pool;
      const double usage =
          1.0 - static_cast<double>(pool.free) / static_cast<double>(pool.total - 1);
      for (Client& client : clients_) {
        Engine& engine = client.engines[i];
        engine.waiting = gauges.waiting;
        engine.running = gauges.running;
        engine.kv_usage = usage;
      }
    }
  }

  struct Engine {
    std::int64_t waiting = 0, running = 0, in_flight = 0;
    double kv_usage = 0;
  };
  struct Client {
    std::vector<Engine> engines;  // by group
    std::vector<std::int64_t>
        first;  // per model: which candidate is looked at first; -1: not known yet
  };

  std::int64_t num_clients() const { return static_cast<std::int64_t>(clients_.size()); }
  Client& client_of(RequestId request) {
    return clients_[static_cast<std::size_t>(request) % clients_.size()];
  }
  static std::size_t index_of(const Group& group) {
    return static_cast<std::size_t>(group.config().index);
  }

  // A queue at an engine short of KV drains slowly: up to three times its length more.
  double score(const Client& client, const Group& group) const {
    const Engine& e = client.engines[index_of(group)];
    const auto busy =
        static_cast<double>(std::max(num_clients() * e.in_flight, e.waiting + e.running));
    return busy + static_cast<double>(e.waiting) * 6.0 * std::max(0.0, e.kv_usage - 0.5);
  }

  Ps period_;
  std::vector<Client> clients_;
  std::vector<std::int32_t> sent_to_;  // group of each request, or -1
  std::vector<const Group*> groups_;   // by index
  std::vector<std::int32_t> counts_;   // waiting and running of each group, as last reported
};

}  // namespace

RouterKind vllm_data_parallel() {
  return {"VLLM_DP",
          "vLLM's data-parallel balancer, on statistics that arrive periodically",
          {{"clients", 1, 1, 1024, "API servers that share the load"},
           {"period_ms", 100, 0.001, 1e9, "least time between two reports of the engines"}},
          [](const RouterContext& context, const OptionValues& options) {
            return std::unique_ptr<Router>(std::make_unique<VllmDataParallel>(
                context.input_tokens.size(), static_cast<std::size_t>(options.at("clients")),
                ps_of_ms(options.at("period_ms"))));
          }};
}

}  // namespace llmsim
