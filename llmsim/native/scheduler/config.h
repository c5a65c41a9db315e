// How a group's scheduler is configured, and the parameters that a scheduler declares beside its
// class.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "kv/kv_cache.h"
#include "kv/tiers/load_failures.h"
#include "request/sessions.h"
#include "scheduler/host_cache_config.h"
#include "scheduler/limits/encoder_cache.h"
#include "scheduler/limits/lora_slots.h"
#include "scheduler/limits/step_limits.h"
#include "scheduler/queue/waiting_queue.h"
#include "scheduler/ranking/policies.h"
#include "scheduler/ranking/ranking.h"
#include "scheduler/speculation.h"
#include "scheduler/state_pool_config.h"
#include "scheduler/version_rules.h"
#include "scheduler/window_pool_config.h"

namespace llmsim {

// An integer parameter of one scheduler or ranking: its name, its default, and the values that it
// may have. A class declares its own as `static constexpr Param kParams[]`.
struct Param {
  const char* name;
  std::int64_t value, low, high;
};

// Values of parameters by name; a parameter without one has its default.
using ParamValues = std::map<std::string, std::int64_t>;

inline std::int64_t value_of(const Param& param, const ParamValues& values) {
  const auto found = values.find(param.name);
  return found == values.end() ? param.value : found->second;
}

// What every scheduler is made from. A scheduler reads what it understands; the option table says
// which options mean nothing to it (SchedulerKind::lacks).
struct SchedulerConfig {
  std::string scheduler = "vllm_v1";  // a name of scheduler/registry.h
  ParamValues parameters;             // the scheduler's own
  std::int32_t max_num_seqs = 128;
  std::int32_t max_num_scheduled_tokens = 2048;
  bool chunked_prefill = true;
  bool reserve_full_isl = true;
  bool async_scheduling = false;
  // Calls of the scheduler from one decode of a sequence to its next, with async scheduling: the
  // pipeline stages of vLLM's Model Runner V2, whose workers pass sampled tokens on in so many
  // turns.
  std::int32_t decode_interval = 1;
  // Answers end with the last token asked for, not with a stop token that only the model knows.
  bool output_length_known = true;
  std::int32_t watermark_blocks = 0;  // blocks that admission leaves free while others run
  bool prefill_first = false;         // a step is all prompts while there are any (vLLM's v0)
  bool decode_only = false;           // requests arrive with the KV of their prompts
  // A prefill group keeps the blocks of ended requests until their KV has been read.
  bool kv_producer = false;
  bool kv_consumer = false;  // a decode group: the KV of prompts comes from prefill groups
  // The producer's KV excludes the prompt's last token (see KvTable).
  bool prefill_all_but_last_token = false;
  // With several batches in flight and a connector, a request that leaves one of them behind gives
  // its blocks back when they have ended; without a connector (no role, no tiers) at once.
  bool defer_block_free = false;
  std::int32_t stages = 1;         // of the pipeline
  std::int32_t micro_batches = 1;  // that take turns there, with schedulers that keep them apart
  bool tiered = false;             // KV goes to pools below the device's
  bool disable_fast_path = false;  // single-token decodes run in full: same result; for tests
  QueueConfig queue;
  SpeculationConfig speculation;
  EncoderConfig encoder;
  LoraSlotsConfig lora;
  HostCacheConfig host_cache;
  WindowPoolConfig window_pool;
  StatePoolConfig state_pool;
  OffloadingConfig offloading;  // with copies to and from host memory
  LoadFailuresConfig load_failures;
  StepLimitsConfig limits;
  VersionRules rules;
  KvCacheConfig kv;
  std::shared_ptr<Ranking> ranking = nullptr;          // of this group alone; null: none
  std::shared_ptr<const Sessions> sessions = nullptr;  // for rankings; null: every call is one
  // Policies::victim
  std::function<std::int64_t(std::span<const SequenceView>, const SequenceView&)> victim = nullptr;
};

}  // namespace llmsim
