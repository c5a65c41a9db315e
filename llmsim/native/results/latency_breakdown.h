// Where each finished request's latency went, or a cancelled one's time until it was dropped; the
// parts add up to it exactly (invariant 11).
#pragma once

#include <cstdint>
#include <vector>

#include "loop/simulation.h"

namespace llmsim {

// Columns of ps, one entry per request, zero for requests that neither finished nor were cancelled.
//   api            from arrival until the engine saw the request
//   queue          waiting in the engine until it was first scheduled, or until a decode group had
//   reserved its blocks wait           scheduled or running, while the device ran steps without it
//   (the batch before, an exhausted budget)
//                  or its step waited for other data-parallel ranks or for a pipeline stage
//   prefill        computing in steps up to its first token
//   decode         computing in steps that gave it a token after the first
//   communication  the collectives of those steps, prefill and decode
//   host           the device idle between those steps
//   kv_transfer    its step, or it alone, waiting for KV from the tiers below the device; its KV on
//   its way from the
//                  prefill group to the decode group, where nothing else was going on for it
//   preemption     from the last token before a preemption to the first one after it: waiting and
//   computing again abandoned      of a cancelled request: from its last token, or else from being
//   scheduled, until its engine dropped
//                  it
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
