// What a simulation is made of, until its first event.
#include <algorithm>

#include "loop/simulation.h"

namespace llmsim {

namespace {

// Where nobody chose a router.
class OnlyGroup final : public Router {
 public:
  std::size_t route(RequestId, Ps, std::span<Group* const>) override {
    throw std::invalid_argument("several groups serve a model, so a router is needed");
  }
};

// One entry per request, and rows that exist: what the loop reads without asking again.
void check(const Arrivals& arrivals, std::size_t n, const ContentKeys& content) {
  const bool priorities = arrivals.priority.empty() || arrivals.priority.size() == n;
  if (arrivals.arrival_ps.size() != n || arrivals.input_tokens.size() != n ||
      arrivals.model.size() != n || arrivals.next_call.size() != n ||
      arrivals.tool_delay_ps.size() != n || !priorities)
    throw std::invalid_argument("columns of the workload differ in length");
  const auto in_range = [n](std::int32_t next) { return next < static_cast<std::int64_t>(n); };
  if (!std::ranges::all_of(arrivals.next_call, in_range))
    throw std::invalid_argument("a call of a session is followed by a row that does not exist");
  if (content.granularity < 1) throw std::invalid_argument("content keys name at least one token");
  if (content.offsets.empty()) return;
  const bool whole = content.offsets.size() == n + 1 && content.offsets.front() == 0 &&
                     content.offsets.back() == static_cast<std::int64_t>(content.keys.size());
  if (!whole || !std::ranges::is_sorted(content.offsets))
    throw std::invalid_argument("content keys and their offsets do not fit the requests");
}

}  // namespace

Simulation::Simulation(Arrivals arrivals, std::vector<std::int32_t> output_tokens,
                       ContentKeys content, Ps series_interval)
    : arrivals_(std::move(arrivals)),
      sequences_(output_tokens, std::make_shared<const ContentKeys>(std::move(content))),
      log_(output_tokens.size()),
      series_interval_(series_interval),
      next_sample_(series_interval) {
  check(arrivals_, sequences_.size(), sequences_.content());
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& s = sequences_[static_cast<RequestId>(i)];
    s.prompt_tokens = s.num_tokens = arrivals_.input_tokens[i];
    s.arrival = arrivals_.arrival_ps[i];
    if (!arrivals_.priority.empty()) s.priority = arrivals_.priority[i];
    if (s.arrival >= 0) timed_.push_back(static_cast<RequestId>(i));
  }
}

void Simulation::add_group(std::unique_ptr<Group> group) {
  if (group->config().index != static_cast<std::int32_t>(groups_.size()))
    throw std::invalid_argument("group " + std::to_string(group->config().index) +
                                " is added as number " + std::to_string(groups_.size()));
  const auto model = static_cast<std::size_t>(group->config().model);
  if (groups_of_model_.size() <= model) groups_of_model_.resize(model + 1);
  if (group->config().role != Role::kDecode) groups_of_model_[model].push_back(group.get());
  group->on_timed([this](Group& timed) { expect(timed); });
  groups_.push_back(std::move(group));
  pump_at_.push_back(kEndOfTime);
  output_pending_.push_back(false);
  sampled_.emplace_back();
}

void Simulation::set_network(const NetworkConfig& config) {
  network_ = std::make_unique<SharedNetwork>(config);
  network_->on_start([this](Ps now) {
    if (!settle_posted_) post(now, Phase::kRebalance, 0);
    settle_posted_ = true;
  });
}

void Simulation::set_kv_tiers(const KvTiersConfig& config) {
  if (!network_) throw std::invalid_argument("KV tiers need the network");
  if (config.groups.size() != groups_.size())
    throw std::invalid_argument("KV tiers need an entry for every group");
  KvTiers::Callbacks callbacks;
  callbacks.opened = [this](std::int32_t index) {
    if (pump_at_[index] <= now_) return;
    pump_at_[index] = now_;
    post(now_, Phase::kSchedule, index);
  };
  callbacks.loaded = [this](std::int32_t index, RequestId request) {
    groups_[index]->loaded(request, now_);
    if (groups_[index]->idle()) wake(index);
  };
  kv_tiers_ = std::make_unique<KvTiers>(config, *network_, std::move(callbacks));
  for (const auto& group : groups_) {
    GroupTiers* tiers = kv_tiers_->of(group->config().index);
    if (tiers == nullptr) continue;
    group->use_tiers(tiers, config.parks);
  }
}

void Simulation::add_lockstep_group(std::unique_ptr<LockstepGroup> lockstep) {
  for (Group* member : lockstep->members()) {
    if (member->lockstep() != nullptr)
      throw std::invalid_argument("a group is a member of two lockstep_groups");
    member->join(lockstep.get());
  }
  lockstep_groups_.push_back(std::move(lockstep));
}

void Simulation::record_shares() {
  log_.share_place.assign(sequences_.size(), 0);
  if (prompts_) prompts_->log.share_place.assign(sequences_.size(), 0);
  for (const auto& group : groups_) group->shares = std::make_unique<DeviceShares>();
}

Simulation::Prompts& Simulation::prompts() {
  if (prompts_) return *prompts_;
  const std::size_t n = sequences_.size();
  prompts_ = std::make_unique<Prompts>(
      SequenceTable(std::vector<std::int32_t>(n, 1), sequences_.shared_content()), RequestLog(n));
  for (std::size_t i = 0; i < n; ++i) {
    const auto request = static_cast<RequestId>(i);
    prompts_->sequences[request] = sequences_[request];
  }
  return *prompts_;
}

void Simulation::set_kv_transfers(const KvTransferConfig& config) {
  if (!network_) throw std::invalid_argument("a hand-over needs the network");
  if (!decode_router_) decode_router_ = std::make_unique<OnlyGroup>();
  Prompts& prompts = this->prompts();
  kv_transfers_ = std::make_unique<KvTransfers>(
      config, *network_, groups_, std::move(decode_router_), KvTransfers::Side{sequences_, log_},
      KvTransfers::Side{prompts.sequences, prompts.log}, [this](std::int32_t index) {
        if (groups_[index]->idle()) wake(index);
      });
}

RouterContext Simulation::router_context() const {
  RouterContext context;
  context.input_tokens = arrivals_.input_tokens;
  context.content = &sequences_.content();
  return context;
}

void Simulation::start() {
  started_ = true;
  if (!router_) router_ = std::make_unique<OnlyGroup>();
  router_->start(groups_);
  if (kv_transfers_) kv_transfers_->router().start(groups_);
  for (const auto& group : groups_) group->start(network_.get());
  for (const auto& lockstep : lockstep_groups_) lockstep->start(network_.get());
  post_next_arrival();
}

}  // namespace llmsim
