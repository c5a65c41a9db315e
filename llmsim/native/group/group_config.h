// What a model serving group is told of itself.
#pragma once

#include <cstdint>
#include <memory>

#include "base/types.h"
#include "group/api/api_server.h"
#include "group/api/balancer_rules.h"

namespace llmsim {

class Drafter;
struct OffloadConfig;

// What a group does with a request: all of it, its prompt, everything after the prompt, or nothing,
// since its devices compute the FFNs of other groups' batches.
enum class Role : std::uint8_t { kBoth, kPrefill, kDecode, kFfn };

struct GroupConfig {
  std::int32_t index = 0;
  std::int32_t model = 0;    // which of the deployment's models it serves
  std::int32_t depth = 1;    // batches in flight: 1 synchronous, 2 asynchronous
  bool stages_wait = false;  // the first of several stages waits for the tokens of the batch before
                             // (Model Runner V1)
  Role role = Role::kBoth;
  Ps api_latency = 0;                    // from a request's arrival until the engine sees it
  Ps abort_latency = 0;                  // and more of it until it learns that a client has gone
  std::int32_t max_queued_requests = 0;  // that wait; more are turned away; 0: no limit
  std::int64_t max_queued_tokens = 0;    // of prompts that wait, together; 0: no limit
  Ps api_latency_per_token = 0;          // and more of it for each token of its prompt
  ApiServerConfig api_server;            // work of its API server's processes
  BalancerRules balancer;                // of the release that it runs
  std::shared_ptr<const OffloadConfig> offload{};  // null: weights and KV are on its devices
  std::shared_ptr<const Drafter>
      drafter{};  // who proposes drafts; null: nobody, or not on its devices
};

}  // namespace llmsim
