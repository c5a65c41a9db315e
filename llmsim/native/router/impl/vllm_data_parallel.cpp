// VLLM_DP: the balancer of vLLM between its data-parallel engines (v1/engine/core_client.py,
// DPLBAsyncMPClient), with the rules of the release that the groups run (BalancerRules).
#include <algorithm>
#include <utility>

#include "router/coordinator.h"
#include "router/registry.h"

namespace llmsim {

namespace {

// Each API server ("client") knows how many of its own requests an engine has, and what the
// coordinator last reported of waiting, running and KV usage; in between it adds its own choices to
// the reported waiting requests. Requests are spread over the clients in turn.
class VllmDataParallel final : public Router, private ReportListener {
 public:
  VllmDataParallel(std::size_t num_requests, std::size_t num_clients, Ps period, bool decode_side)
      : coordinator_(period, *this),
        clients_(num_clients),
        sent_to_(num_requests, -1),
        decode_side_(decode_side) {}

  void group_added(Group& group) override {
    ++num_groups_;
    coordinator_.add_group();
    if (is_of_its_server(group)) hear_of(group);
    const auto models = static_cast<std::size_t>(group.config().model) + 1;
    for (Client& client : clients_) {
      client.engines.resize(num_groups_);
      if (client.first.size() < models) client.first.resize(models, -1);
    }
  }

  bool in_api_server() const override { return true; }

  std::size_t route(RequestId request, Ps now, std::span<Group* const> candidates) override {
    Client& client = client_of(request);
    coordinator_.report_until(now);
    if (rules_.hears_of_first_requests && !std::exchange(client.has_told, true))
      coordinator_.first_request(candidates[0]->lockstep() != nullptr, now);
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
    if (rules_.rotates) first = (first + 1) % n;  // so that ties do not favour an engine
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
  // Engines of another role have a server, and so a coordinator, of their own.
  bool is_of_its_server(const Group& group) const {
    return (group.config().role == Role::kDecode) == decode_side_;
  }

  void hear_of(Group& group) {
    if (!std::exchange(has_rules_, true)) {
      rules_ = group.config().balancer;
      coordinator_.use_rules(rules_);
    }
    if (rules_.hears_loads) group.publish_load(coordinator_);
  }

  void reported(std::span<const PublishedLoad> loads, bool in_wave) override {
    for (Client& client : clients_) {
      for (std::size_t i = 0; i < loads.size(); ++i) {
        Engine& engine = client.engines[i];
        engine.waiting = loads[i].waiting;
        engine.running = loads[i].running;
        engine.kv_usage = loads[i].kv_usage;
      }
    }
    wave_reported(in_wave);
  }

  void wave_reported(bool in_wave) override {
    for (Client& client : clients_) client.has_told = in_wave;
  }

  struct Engine {
    std::int64_t waiting = 0, running = 0, in_flight = 0;
    double kv_usage = 0;
  };
  struct Client {
    std::vector<Engine> engines;  // by group
    std::vector<std::int64_t>
        first;              // per model: which candidate is looked at first; -1: not known yet
    bool has_told = false;  // the coordinator, of a request behind its last report, or a wave runs
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
    if (!rules_.by_requests_in_flight) return static_cast<double>(4 * e.waiting + e.running);
    const auto busy =
        static_cast<double>(std::max(num_clients() * e.in_flight, e.waiting + e.running));
    return busy + static_cast<double>(e.waiting) * 6.0 * std::max(0.0, e.kv_usage - 0.5);
  }

  BalancerRules rules_;
  Coordinator coordinator_;
  std::size_t num_groups_ = 0;
  std::vector<Client> clients_;
  std::vector<std::int32_t> sent_to_;  // group of each request, or -1
  bool decode_side_;
  bool has_rules_ = false;
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
                ps_of_ms(options.at("period_ms")), context.decode_side));
          }};
}

}  // namespace llmsim
