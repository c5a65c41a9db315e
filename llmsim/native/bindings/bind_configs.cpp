// Configuration of schedulers, groups and expanded collectives for Python.
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "offload/offload_config.h"
#include "program/drafter.h"
#include "scheduler/registry.h"
#include "step/executors/expanded.h"

using namespace nanobind::literals;

namespace llmsim {
namespace {

SchedulerConfig with_policies(const SchedulerConfig& config, const Policies& policies) {
  SchedulerConfig changed = config;
  if (policies.queue_key) {
    changed.queue.order = QueueOrder::kKeyed;
    changed.queue.key = policies.queue_key;
    changed.queue.preempted_first = policies.preempted_first;
  }
  if (policies.eviction) changed.kv.eviction = policies.eviction;
  if (policies.ranking) changed.ranking = policies.ranking;
  if (policies.victim) changed.victim = policies.victim;
  return changed;
}

nb::list params_of(std::span<const Param> params) {
  nb::list all;
  for (const Param& param : params)
    all.append(nb::make_tuple(param.name, param.value, param.low, param.high));
  return all;
}

nb::list known_schedulers() {
  nb::list all;
  for (const SchedulerKind& kind : scheduler_kinds()) {
    nb::dict one, defaults, lacks;
    for (const OptionDefault& option : kind.defaults)
      std::visit([&](auto value) { defaults[option.option] = value; }, option.value);
    for (const Lack& lack : kind.lacks) lacks[lack.feature] = lack.reason;
    one["name"] = kind.name;
    one["parameters"] = params_of(kind.params);
    one["defaults"] = defaults;
    one["lacks"] = lacks;
    all.append(one);
  }
  return all;
}

void bind_kv_configs(nb::module_& m) {
  nb::enum_<QueueOrder>(m, "QueueOrder")
      .value("FCFS", QueueOrder::kFcfs)
      .value("PRIORITY", QueueOrder::kPriority)
      .value("SHORTEST", QueueOrder::kShortest)
      .value("SLACK", QueueOrder::kSlack);
  nb::class_<QueueConfig>(m, "QueueConfig",
                          "Order of a waiting queue; the times (ps) are for SLACK.")
      .def(nb::init<>())
      .def_rw("order", &QueueConfig::order)
      .def_rw("ttft_target_ps", &QueueConfig::ttft_target)
      .def_rw("prefill_ps_per_token", &QueueConfig::prefill_ps_per_token);
  nb::enum_<FreeOrder>(m, "FreeOrder")
      .value("APPEND", FreeOrder::kAppend)
      .value("UNKEYED_FIRST", FreeOrder::kUnkeyedFirst);
  nb::class_<CachedStatesConfig>(m, "CachedStates", "Which states a prefix cache keeps.")
      .def(nb::init<>())
      .def_rw("on", &CachedStatesConfig::on)
      .def_rw("match_unit", &CachedStatesConfig::match_unit)
      .def_rw("cuts_last_block", &CachedStatesConfig::cuts_last_block)
      .def_rw("frees_past_gaps", &CachedStatesConfig::frees_past_gaps)
      .def_rw("registers_again", &CachedStatesConfig::registers_again)
      .def_rw("checkpoint_alignment", &CachedStatesConfig::checkpoint_alignment);
  nb::class_<KvTablesConfig>(m, "KvTables",
                             "Tables of blocks of layers that keep different parts of a sequence.")
      .def(nb::init<>())
      .def_rw("windows", &KvTablesConfig::windows)
      .def_rw("block_sizes", &KvTablesConfig::block_sizes)
      .def_rw("step_tokens", &KvTablesConfig::step_tokens)
      .def_rw("frees_processed", &KvTablesConfig::frees_processed)
      .def_rw("retention", &KvTablesConfig::retention)
      .def_rw("held_behind", &KvTablesConfig::held_behind)
      .def_rw("states", &KvTablesConfig::states);
  nb::class_<KvCacheConfig>(m, "KvCacheConfig")
      .def(nb::init<>())
      .def_rw("num_blocks", &KvCacheConfig::num_blocks)
      .def_rw("block_size", &KvCacheConfig::block_size)
      .def_rw("max_model_len", &KvCacheConfig::max_model_len)
      .def_rw("prefix_caching", &KvCacheConfig::prefix_caching)
      .def_rw("tables", &KvCacheConfig::tables)
      .def_rw("drops_last_hit", &KvCacheConfig::drops_last_hit)
      .def_rw("key_lookahead", &KvCacheConfig::key_lookahead)
      .def_rw("unsettled_tokens", &KvCacheConfig::unsettled_tokens)
      .def_rw("free_order", &KvCacheConfig::free_order);
  nb::class_<StepLimitsConfig>(m, "StepLimits", "Limits of a step beyond its token budget.")
      .def(nb::init<>())
      .def_rw("long_prefill_token_threshold", &StepLimitsConfig::long_prefill_token_threshold)
      .def_rw("adaptive_threshold", &StepLimitsConfig::adaptive_threshold)
      .def_rw("lone_prompt_uncapped", &StepLimitsConfig::lone_prompt_uncapped)
      .def_rw("input_budget", &StepLimitsConfig::input_budget)
      .def_rw("draft_slots", &StepLimitsConfig::draft_slots)
      .def_rw("pads_new_decodes", &StepLimitsConfig::pads_new_decodes)
      .def_rw("pads_hits", &StepLimitsConfig::pads_hits)
      .def_rw("pads_within_context", &StepLimitsConfig::pads_within_context)
      .def_rw("paces_itself", &StepLimitsConfig::paces_itself)
      .def_rw("max_num_active_seqs", &StepLimitsConfig::max_num_active_seqs)
      .def_rw("max_loras", &StepLimitsConfig::max_loras)
      .def_rw("prefill_schedule_interval", &StepLimitsConfig::prefill_schedule_interval);
  nb::class_<VersionRules>(m, "VersionRules",
                           "What releases of vLLM after 0.24 decide otherwise; all off.")
      .def(nb::init<>())
      .def_rw("counts_every_victim", &VersionRules::counts_every_victim)
      .def_rw("passes_own_victim", &VersionRules::passes_own_victim)
      .def_rw("awaits_output", &VersionRules::awaits_output)
      .def_rw("passed_over_first", &VersionRules::passed_over_first)
      .def_rw("keys_processed", &VersionRules::keys_processed)
      .def_rw("admits_last_token", &VersionRules::admits_last_token)
      .def_rw("loads_without_drafts", &VersionRules::loads_without_drafts)
      .def_rw("loads_spare_verification", &VersionRules::loads_spare_verification)
      .def_rw("joins_verification", &VersionRules::joins_verification)
      .def_rw("passes_over_cut", &VersionRules::passes_over_cut)
      .def_rw("counts_running_loras", &VersionRules::counts_running_loras)
      .def_rw("holders_first", &VersionRules::holders_first)
      .def_rw("delivers_kv", &VersionRules::delivers_kv)
      .def_rw("spares_busy_victims", &VersionRules::spares_busy_victims);
}

void bind_load_failures(nb::module_& m) {
  nb::class_<LoadFailuresConfig>(m, "LoadFailuresConfig",
                                 "Chance that a load of KV fails, in 2^-53, and what comes of it.")
      .def(nb::init<>())
      .def_rw("chance", &LoadFailuresConfig::chance)
      .def_rw("seed", &LoadFailuresConfig::seed)
      .def_rw("recomputes", &LoadFailuresConfig::recomputes)
      .def_rw("loses_all", &LoadFailuresConfig::loses_all);
  nb::class_<LoadFailures>(m, "LoadFailures", "Says of each load how much of it comes.")
      .def(nb::init<const LoadFailuresConfig&>(), "config"_a)
      .def("next", &LoadFailures::next, "request"_a, "first"_a, "end"_a, "piece"_a,
           "Up to where KV is there after the request's next load, of the tokens [first, end).");
}

void bind_speculation(nb::module_& m) {
  nb::class_<Acceptance>(m, "Acceptance",
                         "Chance of each draft, in 2^-53, given that those before it hold.")
      .def(nb::init<>())
      .def_rw("chance", &Acceptance::chance)
      .def_rw("seed", &Acceptance::seed)
      .def("accepted", &Acceptance::accepted, "request"_a, "emitted"_a, "drafts"_a,
           "How many of the drafts hold that follow the request's `emitted` tokens.");
  nb::class_<RequestSpeculation>(m, "RequestSpeculation",
                                 "What a trace says of the drafts of each request, by row.")
      .def(
          "__init__",
          [](RequestSpeculation* all, const In<std::int32_t>& depth,
             const In<std::int64_t>& chance_offsets, const In<std::uint64_t>& chances,
             const In<std::int64_t>& counts_offsets, const In<std::int32_t>& accepted_counts) {
            new (all)
                RequestSpeculation{to_vector(depth), to_vector(chance_offsets), to_vector(chances),
                                   to_vector(counts_offsets), to_vector(accepted_counts)};
          },
          "depth"_a, "chance_offsets"_a, "chances"_a, "counts_offsets"_a, "accepted_counts"_a);
  nb::class_<SpeculationConfig>(m, "SpeculationConfig", "vLLM's speculative_config, resolved.")
      .def(nb::init<>())
      .def_rw("tokens", &SpeculationConfig::tokens)
      .def_rw("lookahead", &SpeculationConfig::lookahead)
      .def_rw("prompt_lookahead", &SpeculationConfig::prompt_lookahead)
      .def_rw("tokens_by_sequences", &SpeculationConfig::tokens_by_sequences)
      .def_rw("proposal_chance", &SpeculationConfig::proposal_chance)
      .def_rw("acceptance", &SpeculationConfig::acceptance)
      .def_prop_rw(
          "requests", [](const SpeculationConfig& c) { return c.requests != nullptr; },
          [](SpeculationConfig& c, std::shared_ptr<RequestSpeculation> requests) {
            c.requests = std::move(requests);
          },
          nb::for_setter(nb::arg("requests").none()))
      .def("drafts_after", &SpeculationConfig::drafts_after, "sequences"_a)
      .def("proposes", &SpeculationConfig::proposes, "request"_a, "emitted"_a);
  nb::class_<Drafter>(
      m, "Drafter",
      "The model that proposes drafts: its first pass, and the pass of each further one.")
      .def(
          "__init__",
          [](Drafter* drafter, std::shared_ptr<Program> first, std::shared_ptr<Program> next,
             std::int32_t slots, bool parallel, std::int32_t branches) {
            new (drafter) Drafter(std::move(first), std::move(next), slots, parallel, branches);
          },
          "first"_a, "next"_a, "slots"_a, "parallel"_a, "branches"_a = 1)
      .def(
          "expand",
          [](Drafter& drafter, std::shared_ptr<ExpandedConfig> first,
             std::shared_ptr<ExpandedConfig> next) {
            drafter.expand(std::move(first), std::move(next));
          },
          "first"_a, "next"_a, "Every rank's nodes of its passes run in the engine.");
}

void bind_encoder(nb::module_& m) {
  nb::class_<EncoderInputs>(m, "EncoderInputs",
                            "Parts of prompts that an encoder computes, by row.")
      .def(
          "__init__",
          [](EncoderInputs* all, const std::vector<std::int64_t>& offsets,
             const std::vector<std::tuple<std::int32_t, std::int32_t, std::int64_t>>& inputs) {
            new (all) EncoderInputs{offsets, {}};
            for (const auto& [offset, tokens, content] : inputs)
              all->inputs.push_back({offset, tokens, content});
          },
          "offsets"_a, "inputs"_a,
          "inputs: first token, tokens and content; offsets: where each row's begin, and the end.");
  nb::class_<EncoderRules>(m, "EncoderRules", "What vLLM after 0.24 decides otherwise.")
      .def(nb::init<>())
      .def_rw("encodes_ahead", &EncoderRules::encodes_ahead)
      .def_rw("holds_repeated", &EncoderRules::holds_repeated)
      .def_rw("counts_repeated", &EncoderRules::counts_repeated)
      .def_rw("keeps_first_whole", &EncoderRules::keeps_first_whole)
      .def_rw("frees_at_once", &EncoderRules::frees_at_once);
  nb::class_<EncoderConfig>(m, "EncoderConfig", "Tokens that an encoder computes, and keeps.")
      .def(nb::init<>())
      .def_rw("rules", &EncoderConfig::rules)
      .def_rw("step_tokens", &EncoderConfig::step_tokens)
      .def_rw("cache_tokens", &EncoderConfig::cache_tokens)
      .def_rw("whole_inputs", &EncoderConfig::whole_inputs)
      .def_rw("pair_tokens", &EncoderConfig::pair_tokens, "0: its time is not modelled.")
      .def_prop_rw(
          "inputs", [](const EncoderConfig& c) { return c.inputs != nullptr; },
          [](EncoderConfig& c, std::shared_ptr<EncoderInputs> inputs) {
            c.inputs = std::move(inputs);
          },
          nb::for_setter(nb::arg("inputs").none()));
}

void bind_lora_slots(nb::module_& m) {
  nb::class_<LoraSlotsConfig>(m, "LoraSlotsConfig", "Adapters on the devices and in host memory.")
      .def(nb::init<>())
      .def_rw("slots", &LoraSlotsConfig::slots, "0: nobody asks where adapters are.")
      .def_rw("host_slots", &LoraSlotsConfig::host_slots)
      .def_rw("experts", &LoraSlotsConfig::experts,
              "By tokens of one adapter: experts that they are expected to need.");
  nb::class_<LoraSlots>(m, "LoraSlots", "Where the adapters of a group are.")
      .def(nb::init<const LoraSlotsConfig&>(), "config"_a)
      .def(
          "begin_step",
          [](LoraSlots& slots,
             const std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>>& requests) {
            for (const auto& [adapter, tokens, rows] : requests) slots.add(adapter, tokens, rows);
            return slots.begin_step().counts();
          },
          "requests"_a,
          "What a step of (adapter, tokens, rows of logits) has, as in `adapter_use` of a "
          "schedule: tokens, rows, adapters, experts, loads, reads.");
}

void bind_host_cache(nb::module_& m) {
  nb::enum_<HostCacheWrite>(m, "HostCacheWrite")
      .value("THROUGH", HostCacheWrite::kThrough)
      .value("THROUGH_SELECTIVE", HostCacheWrite::kThroughSelective)
      .value("BACK", HostCacheWrite::kBack);
  nb::enum_<StoragePrefetch>(m, "StoragePrefetch")
      .value("BEST_EFFORT", StoragePrefetch::kBestEffort)
      .value("WAIT_COMPLETE", StoragePrefetch::kWaitComplete)
      .value("TIMEOUT", StoragePrefetch::kTimeout);
  nb::class_<HostStorageConfig>(m, "HostStorageConfig", "Storage behind a pool in host memory.")
      .def(nb::init<>())
      .def_rw("prefetch_threshold", &HostStorageConfig::prefetch_threshold,
              "Tokens; fewer are not looked for. 0: there is no storage.")
      .def_rw("prefetch", &HostStorageConfig::prefetch)
      .def_rw("timeout_ps", &HostStorageConfig::timeout)
      .def_rw("timeout_per_page_ps", &HostStorageConfig::timeout_per_page)
      .def_rw("retry_passes", &HostStorageConfig::retry_passes,
              "0: nobody looks again for what was not there.")
      .def_rw("most_retries", &HostStorageConfig::most_retries)
      .def_rw("query_latency_ps", &HostStorageConfig::query_latency)
      .def_rw("read_latency_ps", &HostStorageConfig::read_latency)
      .def_rw("write_latency_ps", &HostStorageConfig::write_latency)
      .def_rw("read_ps_per_token", &HostStorageConfig::read_ps_per_token)
      .def_rw("write_ps_per_token", &HostStorageConfig::write_ps_per_token)
      .def_rw("capacity_bytes", &HostStorageConfig::capacity_bytes, "0: everything fits.")
      .def_rw("page_bytes", &HostStorageConfig::page_bytes);
  nb::class_<HostCacheConfig>(m, "HostCacheConfig",
                              "Pages of KV in host memory below a scheduler's prefix cache.")
      .def(nb::init<>())
      .def_rw("pages", &HostCacheConfig::pages, "0: there are none.")
      .def_rw("window_pages", &HostCacheConfig::window_pages, "Of layers with a window.")
      .def_rw("states", &HostCacheConfig::states, "Of layers that keep them.")
      .def_rw("write", &HostCacheConfig::write)
      .def_rw("load_back_tokens", &HostCacheConfig::load_back_tokens,
              "Fewer tokens are computed again instead of loaded.")
      .def_rw("copy_latency_ps", &HostCacheConfig::copy_latency)
      .def_rw("write_ps_per_token", &HostCacheConfig::write_ps_per_token)
      .def_rw("load_ps_per_token", &HostCacheConfig::load_ps_per_token)
      .def_rw("write_ps_per_window_token", &HostCacheConfig::write_ps_per_window_token)
      .def_rw("load_ps_per_window_token", &HostCacheConfig::load_ps_per_window_token)
      .def_rw("write_ps_per_state", &HostCacheConfig::write_ps_per_state)
      .def_rw("load_ps_per_state", &HostCacheConfig::load_ps_per_state)
      .def_rw("layers", &HostCacheConfig::layers,
              "Layers that are loaded one by one, while the step computes those before.")
      .def_rw("storage", &HostCacheConfig::storage);
}

void bind_window_pool(nb::module_& m) {
  nb::class_<WindowPoolConfig>(m, "WindowPoolConfig",
                               "Pages of KV that layers with a window have for themselves.")
      .def(nb::init<>())
      .def_rw("window", &WindowPoolConfig::window,
              "Tokens that such a layer sees before the one that attends; 0: there is no pool.")
      .def_rw("pages", &WindowPoolConfig::pages);
}

void bind_state_pool(nb::module_& m) {
  nb::class_<StatePoolConfig>(m, "StatePoolConfig",
                              "States of linear attention and Mamba layers beside a scheduler's "
                              "prefix cache.")
      .def(nb::init<>())
      .def_rw("slots", &StatePoolConfig::slots, "0: there is no such pool.")
      .def_rw("spare", &StatePoolConfig::spare,
              "Slots of each running request for states that the prefix cache gets; 0: it gets "
              "copies of the request's own.")
      .def_rw("lazy", &StatePoolConfig::lazy,
              "Whether a second spare slot is taken for the step that writes to it alone.")
      .def_rw("verified", &StatePoolConfig::verified,
              "Tokens of a step that verifies drafts, where slots are lazy.")
      .def_rw("prompt_interval", &StatePoolConfig::prompt_interval,
              "Tokens of a prompt from one state in a spare slot to the next.")
      .def_rw("answer_interval", &StatePoolConfig::answer_interval, "Likewise, of an answer.");
}

void bind_sessions(nb::module_& m) {
  nb::class_<Sessions>(m, "Sessions",
                       "The session of each request, and its round, from the successors of calls.")
      .def(
          "__init__",
          [](Sessions* sessions, const In<std::int32_t>& next_call) {
            new (sessions) Sessions(to_vector(next_call));
          },
          "next_call"_a)
      .def_prop_ro(
          "session", [](const Sessions& all) { return to_array(all.session); },
          nb::rv_policy::automatic, "Row of the first call of each row's session.")
      .def_prop_ro(
          "round", [](const Sessions& all) { return to_array(all.round); },
          nb::rv_policy::automatic, "Place of each row among the calls of its session, from 0.");
}

void bind_scheduler_config(nb::module_& m) {
  nb::class_<SchedulerConfig>(m, "SchedulerConfig", "Options of a scheduler, by its name.")
      .def(nb::init<>())
      .def_rw("scheduler", &SchedulerConfig::scheduler)
      .def_rw("parameters", &SchedulerConfig::parameters, "The scheduler's own, by name.")
      .def(
          "rank_by",
          [](SchedulerConfig& config, const std::string& name, const ParamValues& parameters) {
            config.ranking = make_ranking(name, config, parameters);
          },
          "name"_a, "parameters"_a = ParamValues{},
          "A native ranking orders this group's requests.")
      .def_prop_rw(
          "sessions", [](const SchedulerConfig& c) { return c.sessions != nullptr; },
          [](SchedulerConfig& c, std::shared_ptr<Sessions> sessions) {
            c.sessions = std::move(sessions);
          })
      .def_rw("max_num_seqs", &SchedulerConfig::max_num_seqs)
      .def_rw("max_num_scheduled_tokens", &SchedulerConfig::max_num_scheduled_tokens)
      .def_prop_rw(
          "long_prefill_token_threshold",
          [](const SchedulerConfig& c) { return c.limits.long_prefill_token_threshold; },
          [](SchedulerConfig& c, std::int32_t tokens) {
            c.limits.long_prefill_token_threshold = tokens;
          })
      .def_rw("limits", &SchedulerConfig::limits)
      .def_rw("rules", &SchedulerConfig::rules)
      .def_rw("chunked_prefill", &SchedulerConfig::chunked_prefill)
      .def_rw("reserve_full_isl", &SchedulerConfig::reserve_full_isl)
      .def_rw("async_scheduling", &SchedulerConfig::async_scheduling)
      .def_rw("output_length_known", &SchedulerConfig::output_length_known)
      .def_rw("watermark_blocks", &SchedulerConfig::watermark_blocks)
      .def_prop_rw(
          "order", [](const SchedulerConfig& c) { return c.queue.order; },
          [](SchedulerConfig& c, QueueOrder order) { c.queue.order = order; })
      .def_rw("queue", &SchedulerConfig::queue)
      .def_rw("prefill_first", &SchedulerConfig::prefill_first)
      .def_rw("decode_only", &SchedulerConfig::decode_only)
      .def_rw("kv_producer", &SchedulerConfig::kv_producer)
      .def_rw("kv_consumer", &SchedulerConfig::kv_consumer)
      .def_rw("prefill_all_but_last_token", &SchedulerConfig::prefill_all_but_last_token)
      .def_rw("decode_interval", &SchedulerConfig::decode_interval)
      .def_rw("defer_block_free", &SchedulerConfig::defer_block_free)
      .def_rw("stages", &SchedulerConfig::stages)
      .def_rw("micro_batches", &SchedulerConfig::micro_batches)
      .def_rw("tiered", &SchedulerConfig::tiered)
      .def_rw("disable_fast_path", &SchedulerConfig::disable_fast_path)
      .def_rw("speculation", &SchedulerConfig::speculation)
      .def_rw("encoder", &SchedulerConfig::encoder)
      .def_rw("lora", &SchedulerConfig::lora)
      .def_rw("host_cache", &SchedulerConfig::host_cache)
      .def_rw("window_pool", &SchedulerConfig::window_pool)
      .def_rw("state_pool", &SchedulerConfig::state_pool)
      .def_rw("offloading", &SchedulerConfig::offloading)
      .def_rw("load_failures", &SchedulerConfig::load_failures)
      .def_rw("kv", &SchedulerConfig::kv)
      .def("with_policies", &with_policies, "policies"_a, "The same, but for these decisions.");
}

void bind_known_schedulers(nb::module_& m) {
  m.def("schedulers", &known_schedulers,
        "Name, parameters (name, default, lowest, highest), defaults of options, and what each "
        "scheduler does not go with, sorted by name.");
  m.def(
      "rankings",
      [] {
        nb::dict all;
        for (const RankingKind& kind : ranking_kinds()) all[kind.name] = params_of(kind.params);
        return all;
      },
      "The native rankings and their parameters.");
  m.def(
      "ranking_orders",
      [](const std::string& name) {
        const RankedLists lists = make_ranking(name, SchedulerConfig{}, {})->lists();
        nb::list orders;
        if (lists.waiting) orders.append("waiting");
        if (lists.running) orders.append("running");
        if (lists.victims) orders.append("victims");
        if (lists.pauses) orders.append("pauses");
        return orders;
      },
      "name"_a, "What a native ranking decides, in the words of a Python ranking's `orders`.");
}

}  // namespace

void bind_configs(nb::module_& m) {
  bind_kv_configs(m);
  bind_speculation(m);
  bind_encoder(m);
  bind_lora_slots(m);
  bind_load_failures(m);
  bind_host_cache(m);
  bind_window_pool(m);
  bind_state_pool(m);
  bind_sessions(m);
  bind_scheduler_config(m);
  bind_known_schedulers(m);
  nb::enum_<Role>(m, "Role", "What a group does with a request.")
      .value("BOTH", Role::kBoth)
      .value("PREFILL", Role::kPrefill)
      .value("DECODE", Role::kDecode)
      .value("FFN", Role::kFfn);
  nb::class_<ApiServerConfig>(m, "ApiServerConfig", "Work of the processes of an API server.")
      .def(nb::init<>())
      .def_rw("processes", &ApiServerConfig::processes)
      .def_rw("request_ps", &ApiServerConfig::request)
      .def_rw("prompt_token_ps", &ApiServerConfig::prompt_token)
      .def_rw("chunk_ps", &ApiServerConfig::chunk);
  nb::class_<BalancerRules>(m, "BalancerRules",
                            "How a release of vLLM chooses among data-parallel engines; by default "
                            "as 0.33 does.")
      .def(nb::init<>())
      .def_rw("by_requests_in_flight", &BalancerRules::by_requests_in_flight)
      .def_rw("rotates", &BalancerRules::rotates)
      .def_rw("hears_loads", &BalancerRules::hears_loads)
      .def_rw("quiet_ps", &BalancerRules::quiet)
      .def_rw("hears_of_first_requests", &BalancerRules::hears_of_first_requests)
      .def_rw("hears_of_first_iterations", &BalancerRules::hears_of_first_iterations);
  nb::class_<GroupConfig>(m, "GroupConfig")
      .def(nb::init<>())
      .def_rw("index", &GroupConfig::index)
      .def_rw("model", &GroupConfig::model)
      .def_rw("depth", &GroupConfig::depth)
      .def_rw("stages_wait", &GroupConfig::stages_wait)
      .def_rw("role", &GroupConfig::role)
      .def_rw("offload", &GroupConfig::offload, nb::arg().none())
      .def_rw("drafter", &GroupConfig::drafter, nb::arg().none())
      .def_rw("max_queued_requests", &GroupConfig::max_queued_requests)
      .def_rw("max_queued_tokens", &GroupConfig::max_queued_tokens)
      .def_rw("api_latency_ps", &GroupConfig::api_latency)
      .def_rw("abort_latency_ps", &GroupConfig::abort_latency)
      .def_rw("api_latency_per_token_ps", &GroupConfig::api_latency_per_token)
      .def_rw("api_server", &GroupConfig::api_server)
      .def_rw("balancer", &GroupConfig::balancer);
}

void bind_expanded(nb::module_& m) {
  m.def(
      "mesh",
      [](const std::vector<std::tuple<std::uint32_t, std::int64_t, Ps>>& dimensions) {
        std::vector<astra_sim::model::Dimension> all;
        for (const auto& [devices, bytes_per_s, latency] : dimensions)
          all.push_back(
              {astra_sim::model::TopologyKind::kFullyConnected, devices, bytes_per_s, latency});
        return astra_sim::model::Topology::grid(all);
      },
      "dimensions"_a,
      "Fully connected dimensions of (devices, bytes/s, latency in ps), the first varying "
      "fastest.");
  nb::class_<CollectiveSpec>(m, "CollectiveSpec",
                             "How one collective operator runs; 0 bytes: by its own table.")
      .def(
          "__init__",
          [](CollectiveSpec* spec, std::int32_t op, astra_sim::model::CollectiveKind kind,
             std::int64_t bytes_per_unit, const astra_sim::model::AlgorithmChoice& algorithm,
             std::int32_t ranks, std::int32_t stride, bool everyone, std::int32_t per_node,
             std::int64_t far_bytes_per_unit) {
            if (ranks < 0 || stride < 1 || per_node < 0 || far_bytes_per_unit < 0)
              throw std::invalid_argument("a collective is among a number of ranks");
            new (spec) CollectiveSpec{op,     kind,     bytes_per_unit, algorithm,         ranks,
                                      stride, everyone, per_node,       far_bytes_per_unit};
          },
          "op"_a, "kind"_a, "bytes_per_unit"_a, "algorithm"_a = astra_sim::model::AlgorithmChoice{},
          "ranks"_a = 0, "stride"_a = 1, "everyone"_a = false, "per_node"_a = 0,
          "far_bytes_per_unit"_a = 0);
  nb::class_<ExpandedConfig>(m, "ExpandedConfig",
                             "A group's own links and the collectives that run on them.")
      .def(
          "__init__",
          [](ExpandedConfig* config, std::shared_ptr<astra_sim::model::Topology> topology,
             astra_sim::engine::NetworkKind network, std::vector<CollectiveSpec> collectives,
             std::int32_t members, std::vector<astra_sim::model::DeviceId> devices,
             const astra_sim::engine::Incast& incast) {
            new (config)
                ExpandedConfig{std::move(topology), network, std::move(collectives), members,
                               std::move(devices),  incast,  signal_check()};
          },
          "topology"_a, "network"_a, "collectives"_a, "members"_a = 1,
          "devices"_a = std::vector<astra_sim::model::DeviceId>{},
          "incast"_a = astra_sim::engine::Incast{});
}

}  // namespace llmsim
