// VLLM_DP: the balancer of vLLM between its data-parallel engines (v1/engine/core_client.py,
// DPLBAsyncMPClient), with the rules of the release that the groups run (BalancerRules).
#include <algorithm>
#include <utility>

#include "router/registry.h"

namespace llmsim {

namespace {

constexpr Ps kPsPerMs = 1'000'000'000;
constexpr Ps kIdlePeriod = 5000 * kPsPerMs;

Ps whole_ms(Ps time) { return time / kPsPerMs * kPsPerMs; }

// Each API server ("client") knows how many of its own requests an engine has, and what the engines
// last reported of waiting, running and KV usage. The coordinator passes reports on when it has
// heard of an engine and a period has passed since it last did, else every 5 s
// (v1/engine/coordinator.py); in between a client adds its own choices to the reported waiting
// requests. Requests are spread over the clients in turn.
//
// The coordinator starts with the run. It counts whole milliseconds, and waits for the rest of a
// period from each message on: its report comes so much into a millisecond as the last message.
// Messages of API servers, which tell of a first request behind a report, are no news to report.
class VllmDataParallel final : public Router {
 public:
  VllmDataParallel(std::size_t num_requests, std::size_t num_clients, Ps period)
      : period_(period), clients_(num_clients), sent_to_(num_requests, -1) {
    next_look_ = 0;
  }

  void group_added(Group& group) override {
    if (groups_.empty()) rules_ = group.config().balancer;
    groups_.push_back(&group);
    if (rules_.hears_loads) group.publish_load();
    const auto models = static_cast<std::size_t>(group.config().model) + 1;
    for (Client& client : clients_) {
      client.engines.resize(groups_.size());
      if (client.first.size() < models) client.first.resize(models, -1);
    }
  }

  bool in_api_server() const override { return true; }

  // Nothing happens between `next_look_` and the next event. With that, an engine may publish its
  // load and be reported at once, unless a period has to pass first.
  bool look(Ps next_event) override {
    for (Ps due = next_report(); due < next_event; due = next_report()) {
      const bool idle = !has_news();
      report(idle ? due + (next_event - 1 - due) / kIdlePeriod * kIdlePeriod : due);
    }
    const Ps earliest = reported_at_ < 0 ? 0 : whole_ms(reported_at_) + period_;
    next_look_ = std::max(next_event, earliest);
    return true;
  }

  std::size_t route(RequestId request, Ps now, std::span<Group* const> candidates) override {
    Client& client = client_of(request);
    if (rules_.hears_of_first_requests && !std::exchange(client.has_told, true)) told_at_ = now;
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
  // When the coordinator last heard of an engine.
  Ps heard() const {
    if (!rules_.hears_loads) return 0;
    Ps last = 0;
    for (const Group* group : groups_) last = std::max(last, group->load().at);
    return last;
  }

  bool has_news() const { return heard() > reported_at_; }

  // When it reports, with what has happened so far.
  Ps next_report() const {
    const Ps heard_at = std::max(heard(), told_at_);
    if (reported_at_ < 0) return rules_.quiet > 0 ? heard_at + rules_.quiet : 0;
    const Ps last = std::max(heard_at, reported_at_);
    const Ps period = has_news() ? period_ : kIdlePeriod;
    const Ps due = std::max(whole_ms(last), whole_ms(reported_at_) + period) + last % kPsPerMs;
    return last > reported_at_ ? std::max(due, last + rules_.quiet) : due;
  }

  void report(Ps now) {
    reported_at_ = now;
    for (Client& client : clients_) client.has_told = false;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const PublishedLoad load = rules_.hears_loads ? groups_[i]->load() : PublishedLoad{};
      for (Client& client : clients_) {
        Engine& engine = client.engines[i];
        engine.waiting = load.waiting;
        engine.running = load.running;
        engine.kv_usage = load.kv_usage;
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
        first;              // per model: which candidate is looked at first; -1: not known yet
    bool has_told = false;  // the coordinator, of a request behind its last report
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

  Ps period_;
  BalancerRules rules_;
  Ps reported_at_ = -1;  // -1: not yet
  Ps told_at_ = -1;      // when an API server last told of a request; -1: never
  std::vector<Client> clients_;
  std::vector<std::int32_t> sent_to_;  // group of each request, or -1
  std::vector<const Group*> groups_;   // by index
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
