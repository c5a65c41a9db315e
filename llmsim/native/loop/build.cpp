// What a simulation is made of, until its first event.
#include <algorithm>

#include "group/lockstep/make_lockstep.h"
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

// Builds a part; what it refuses is said with the path of its field in front.
template <typename Build>
auto at_field(const std::string& path, Build build) {
  try {
    return build();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(path + ": " + error.what());
  }
}

template <typename Entries, typename Build>
void each_at_field(const std::string& list, const Entries& entries, Build build) {
  for (std::size_t i = 0; i < entries.size(); ++i)
    at_field(list + "[" + std::to_string(i) + "]", [&] { build(entries[i]); });
}

const SimulationConfig& checked(const SimulationConfig& config) {
  check(config);
  return config;
}

}  // namespace

Simulation::Simulation(const SimulationConfig& config)
    : live_(checked(config).live ? std::make_unique<LiveRequests>(*config.live) : nullptr),
      source_(live_ ? live_->source() : config.source),
      sequences_(source_->output_tokens,
                 std::shared_ptr<const ContentKeys>(source_, &source_->content)),
      log_(source_->output_tokens.size()),
      watched_(config.observers),
      series_(groups_, config.observers.series_interval),
      checks_(config.observers.check_every_step),
      horizon_(config.limits.horizon) {
  events_.set_next_look(horizon_);
  if (live_) log_.count_sources();
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& s = sequences_[static_cast<RequestId>(i)];
    s.prompt_tokens = s.num_tokens = source_->input_tokens[i];
    s.arrival = source_->arrival_ps[i];
    if (!source_->priority.empty()) s.priority = source_->priority[i];
    if (!source_->adapter.empty()) s.adapter = source_->adapter[i];
  }
  each_at_field("groups", config.groups, [this](const GroupSpec& spec) { make_group(spec); });
  each_at_field("lockstep", config.lockstep,
                [this](const LockstepSpec& spec) { build_lockstep(spec); });
  if (config.network) at_field("network", [&] { build_network(*config.network); });
  if (network_ && config.observers.transfers) network_->record_transfers();
  if (network_) network_->expect_end(horizon_);
  if (watched_.device_shares) log_.share_place.assign(sequences_.size(), 0);
  if (watched_.device_shares && prompts_) prompts_->log.share_place.assign(sequences_.size(), 0);
  for (const auto& group : groups_) watch(*group);
  each_at_field("contention", config.contention,
                [this](const ContentionSpec& spec) { build_contention(spec); });
  if (config.kv_tiers) at_field("kv_tiers", [&] { build_kv_tiers(*config.kv_tiers); });
  if (!config.kv_offloading.empty())
    at_field("kv_offloading", [&] { build_offloading(config.kv_offloading); });
  build_frontend(config.frontend);
  if (config.kv_transfer)
    at_field("kv_transfer",
             [&] { build_kv_transfers(*config.kv_transfer, config.frontend.make_decode_router); });
  for (const auto& group : groups_) connect(*group);
  start_routers();
  at_field("network", [this] { start_executors(); });
  clients_->begin();
  start_controllers(config.controllers);
  if (config.layouts) start_layouts(config.layouts);
}

Group& Simulation::make_group(const GroupSpec& spec) {
  const GroupConfig& config = spec.config;
  std::unique_ptr<Scheduler> scheduler =
      spec.make_scheduler(sequences_of(config.role), log_of(config.role));
  if (config.depth > scheduler->max_depth())
    throw std::invalid_argument("this scheduler has one batch in flight");
  const bool hands_over = config.role == Role::kPrefill || config.role == Role::kDecode;
  if (hands_over && scheduler->kv_connector() == nullptr)
    throw std::invalid_argument("this scheduler hands no KV over");
  if (config.role != Role::kFfn && scheduler->limits().usable_blocks < 1)
    throw std::invalid_argument("a pool needs at least 2 blocks");
  auto group = std::make_unique<Group>(config, std::move(scheduler), spec.make_costs(),
                                       sequences_of(config.role), log_of(config.role));
  group->use_executor(spec.make_executor(*group));
  if (spec.record_steps) group->steps = std::make_unique<StepRecorder>();
  if (live_) group->step_tokens = std::make_unique<StepTokens>();
  if (spec.record_schedule) group->schedule = std::make_unique<ScheduleRecorder>();
  enter(*group);
  for (const auto& server : group->api_servers().processes()) enter(*server);
  return *groups_.emplace_back(std::move(group));
}

void Simulation::build_lockstep(const LockstepSpec& spec) {
  std::vector<Group*> members;
  for (const std::size_t index : spec.groups) members.push_back(groups_[index].get());
  std::unique_ptr<StepExecutor> executor = spec.make_executor(members);
  lockstep_groups_.push_back(make_lockstep(std::move(members), std::move(executor),
                                           {spec.sync_interval, spec.syncs_first}));
}

void Simulation::build_network(const NetworkConfig& config) {
  network_ = std::make_unique<SharedNetwork>(config);
  network_events_ = std::make_unique<NetworkEvents>(*network_);
  enter(*network_events_);
  series_.sample_links(network_.get());
}

void Simulation::build_kv_tiers(const KvTiersConfig& config) {
  KvTiers::Callbacks callbacks;
  callbacks.opened = [this](std::int32_t group) { groups_[at(group)]->schedule_now(now()); };
  callbacks.loaded = [this](std::int32_t group, RequestId request) {
    groups_[at(group)]->loaded(request, now());
    groups_[at(group)]->wake_if_idle(now());
  };
  kv_tiers_ = std::make_unique<KvTiers>(config, *network_, std::move(callbacks));
  for (const auto& group : groups_) use_tiers(*group);
  series_.sample_tiers(kv_tiers_.get());
}

void Simulation::use_tiers(Group& group) {
  GroupTiers* tiers = kv_tiers_->of(group.config().index);
  if (tiers != nullptr) group.use_tiers(*tiers, kv_tiers_->parks());
}

void Simulation::build_offloading(const std::vector<GroupCopiesConfig>& groups) {
  OffloadingCopies::Callbacks callbacks;
  callbacks.opened = [this](std::int32_t group) { groups_[at(group)]->schedule_now(now()); };
  callbacks.ended = [this](std::int32_t group, RequestId request, bool load) {
    Group& mover = *groups_[at(group)];
    load ? mover.loaded(request, now()) : mover.transferred(request, now());
    mover.wake_if_idle(now());
  };
  offloading_copies_ = std::make_unique<OffloadingCopies>(*network_, std::move(callbacks));
  for (std::size_t i = 0; i < groups.size(); ++i) use_copies(*groups_[i], groups[i]);
}

void Simulation::use_copies(Group& group, const GroupCopiesConfig& config) {
  offloading_copies_->add_group(config);
  GroupCopies* copies = offloading_copies_->of(group.config().index);
  if (copies != nullptr) group.use_copies(*copies);
}

void Simulation::build_contention(const ContentionSpec& spec) {
  std::vector<GroupCosts*> costs;
  for (const std::size_t index : spec.groups) costs.push_back(&groups_[index]->costs());
  auto executor = std::make_unique<ContendedExecutor>(StepPricer(std::move(costs)), spec.links);
  Group& first = *groups_[spec.groups.front()];
  if (first.lockstep() != nullptr) {
    first.lockstep()->use_executor(std::move(executor));
  } else {
    first.use_executor(std::move(executor));
  }
}

void Simulation::watch(Group& group) {
  if (watched_.device_shares) group.shares = std::make_unique<DeviceShares>();
  if (watched_.transfers) group.costs().record_spans(group.config().index);
}

Simulation::Prompts& Simulation::prompts() {
  if (prompts_) return *prompts_;
  const std::size_t n = sequences_.size();
  prompts_ = std::make_unique<Prompts>(
      SequenceTable(std::vector<std::int32_t>(n, 1), sequences_.shared_content()), RequestLog(n));
  if (live_) prompts_->log.count_sources();
  for (std::size_t i = 0; i < n; ++i) {
    const auto request = static_cast<RequestId>(i);
    prompts_->sequences[request] = sequences_[request];
  }
  prompts_->log.share_place = log_.share_place;  // a stale place is noticed
  return *prompts_;
}

RouterContext Simulation::router_context(bool decode_side) const {
  RouterContext context;
  context.input_tokens = source_->input_tokens;
  context.content = &source_->content;
  context.decode_side = decode_side;
  return context;
}

void Simulation::build_frontend(const FrontendConfig& config) {
  std::unique_ptr<Router> router = std::make_unique<OnlyGroup>();
  if (config.make_router)
    router = at_field("frontend.router", [&] { return config.make_router(router_context(false)); });
  Admission admission;
  if (config.make_admission) admission = config.make_admission(router_context(false));
  frontend_ = std::make_unique<Frontend>(sequences_, log_, std::move(router), std::move(admission));
  clients_ = std::make_unique<Clients>(source_, sequences_, *frontend_);
  frontend_->serve(*clients_);
  if (live_) clients_->use_live(*live_);
  enter(*clients_);
  if (frontend_->router().in_api_server()) enter(frontend_->reader());
}

void Simulation::build_kv_transfers(const KvTransferConfig& config,
                                    const RouterMaker& make_router) {
  std::unique_ptr<Router> router = std::make_unique<OnlyGroup>();
  if (make_router) router = make_router(router_context(true));
  Prompts& prompts = this->prompts();
  kv_transfers_ = std::make_unique<KvTransfers>(config, *network_, groups_, std::move(router),
                                                KvTransfers::Side{sequences_, log_},
                                                KvTransfers::Side{prompts.sequences, prompts.log});
  kv_transfer_delivery_ = std::make_unique<KvTransferDelivery>(*kv_transfers_, *frontend_);
  if (kv_transfers_->reads_first()) enter(kv_transfers_->reader());
}

void Simulation::connect(Group& group) {
  switch (group.config().role) {
    case Role::kBoth:
      group.answer_to(*frontend_);
      return frontend_->add_candidate(group, frontend_->direct());
    case Role::kPrefill:
      group.answer_to(kv_transfer_delivery_->prefill_side());
      return frontend_->add_candidate(group, *kv_transfer_delivery_);
    case Role::kDecode:
      return group.answer_to(kv_transfer_delivery_->decode_side());
    case Role::kFfn:
      return group.answer_to(no_completion_);
  }
}

// Series first: they show the state before the routers' own.
void Simulation::start_routers() {
  observe(series_);
  const auto start = [this](const std::string& field, Router& router) {
    at_field(field, [&] {
      for (const auto& group : groups_) router.group_added(*group);
    });
    observe(router);
  };
  start("frontend.router", frontend_->router());
  if (kv_transfers_) start("frontend.decode_router", kv_transfers_->router());
}

// Copies that run ahead of steps begin.
void Simulation::start_executors() {
  for (const auto& group : groups_) group->start(network_.get(), now());
  for (const auto& lockstep : lockstep_groups_) lockstep->start(network_.get(), now());
}

void Simulation::start_layouts(const std::shared_ptr<const LayoutsConfig>& layouts) {
  auto layout_switch = std::make_unique<LayoutSwitch>(layouts);
  layout_switch_ = layout_switch.get();
  enter(*layout_switch);
  controllers_.push_back(std::move(layout_switch));
  layout_switch_->begin(*this);
}

void Simulation::start_controllers(const std::vector<ControllerMaker>& makers) {
  for (const ControllerMaker& make : makers) {
    Controller& controller = *controllers_.emplace_back(make());
    enter(controller);
    controller.begin(*this);
  }
}

}  // namespace llmsim
