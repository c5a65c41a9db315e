// Where each finished request's latency went, or a cancelled one's time until it was dropped; the
// parts add up to it exactly (invariant 11).
#pragma once

#include <cstdint>
#include <vector>

#include "loop/simulation.h"

namespace llmsim {

// Columns of ps, one entry per request, zero for requests that neither finished nor were cancelled.
//
//   api            From arrival until the engine saw the request.
//   queue          Waiting in the engine until the request was first scheduled, or until a decode
//                  group had reserved its blocks.
//   wait           Scheduled or running, while the device ran steps without the request (the batch
//                  before, an exhausted budget), or while its step waited for other data-parallel
//                  ranks or for a pipeline stage.
//   prefill        Computing in steps up to the first token.
//   decode         Computing in steps that gave the request a token after the first.
//   communication  Collectives of those steps, prefill and decode.
//   host           The device idle between those steps.
//   kv_transfer    The step, or the request alone, waiting for KV from the tiers below the device;
//                  KV on its way from the prefill to the decode group, where nothing else went on.
//   preemption     From the last token before a preemption to the first one after it.
//   abandoned      Of a cancelled request: from its last token, or else from being scheduled, until
//                  its engine dropped it.
struct LatencyBreakdown {
  explicit LatencyBreakdown(std::size_t n)
      : api(n, 0),
        queue(n, 0),
        wait(n, 0),
        prefill(n, 0),
        decode(n, 0),
        communication(n, 0),
        host(n, 0),
        kv_transfer(n, 0),
        preemption(n, 0),
        abandoned(n, 0) {}
  std::vector<Ps> api, queue, wait, prefill, decode, communication, host, kv_transfer, preemption,
      abandoned;
};

// Costs O(steps + requests + runs + preemptions).
LatencyBreakdown blame(const Simulation& simulation);

}  // namespace llmsim
