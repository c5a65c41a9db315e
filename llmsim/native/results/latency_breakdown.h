// Where each finished request's latency went, or a cancelled one's time until it was dropped; the
// parts add up to it exactly (invariant 11).
#pragma once

#include <tuple>
#include <vector>

#include "base/columns.h"
#include "loop/simulation.h"

namespace llmsim {

// One row per request, all zero for requests that neither finished nor were cancelled.
struct LatencyBreakdown {
  std::vector<Ps> api;      // from arrival until the engine saw the request
  std::vector<Ps> queue;    // until first scheduled, or until a decode group had reserved blocks
  std::vector<Ps> wait;     // scheduled or running, while the device ran steps without the request
                            // (the batch before, an exhausted budget), or while its step waited for
                            // other data-parallel ranks or for a pipeline stage
  std::vector<Ps> prefill;  // computing in steps up to the first token
  std::vector<Ps> decode;   // computing in steps that gave a token after the first
  std::vector<Ps> communication;  // the collectives of those steps, prefill and decode
  std::vector<Ps> encoder;        // images and other inputs that an encoder computed in them
  std::vector<Ps> m2n;            // transfers between attention and FFN that those steps waited for
  std::vector<Ps> offload;        // what those steps waited for outside of the group's devices:
                                  // copies of weights, memory and processors that compute
  std::vector<Ps> host;           // the device idle before and between those steps: the host
                                  // prepares them
  std::vector<Ps> kv_transfer;  // the request, or its step, waiting for KV from the tiers below the
                                // device; KV on its way from the prefill group to the decode group
                                // where nothing else was going on for the request
  std::vector<Ps> preemption;   // from the last token before a preemption to the first one after
                                // it: waiting and computing again
  std::vector<Ps> reconfigure;  // no group had it while layouts were switched; from the last token
                                // before that to the first one after it, if it had run
  std::vector<Ps> abandoned;    // of a cancelled request: from its last token, or else from being
                                // scheduled, until its engine dropped it

  static constexpr auto columns() {
    using B = LatencyBreakdown;
    return std::tuple{
        Column{"api_ps", &B::api},
        Column{"queue_ps", &B::queue},
        Column{"wait_ps", &B::wait},
        Column{"prefill_ps", &B::prefill},
        Column{"decode_ps", &B::decode},
        Column{"communication_ps", &B::communication},
        Column{"encoder_ps", &B::encoder},
        Column{"m2n_ps", &B::m2n},
        Column{"offload_ps", &B::offload},
        Column{"host_ps", &B::host},
        Column{"kv_transfer_ps", &B::kv_transfer},
        Column{"preemption_ps", &B::preemption},
        Column{"reconfigure_ps", &B::reconfigure},
        Column{"abandoned_ps", &B::abandoned},
    };
  }

  explicit LatencyBreakdown(std::size_t n) { resize(*this, n); }
};

struct BlamedLatency : LatencyBreakdown {
  using LatencyBreakdown::LatencyBreakdown;
  // Part of `api`: waiting for, and in, the processes of an API server, before the engine and after
  // its steps; empty where none takes time.
  std::vector<Ps> frontend{};
};

// Whole: up to the last token. FirstToken: up to the first one, where the parts add up to the TTFT.
enum class BlamedSpan { Whole, FirstToken };

// Costs O(steps + requests + runs + preemptions).
BlamedLatency blame(const Simulation& simulation, BlamedSpan span = BlamedSpan::Whole);

}  // namespace llmsim
