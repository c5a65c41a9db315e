// Rules of vLLM's KV offloading in which releases differ.
#pragma once

namespace llmsim {

// Profiles of engines (llmsim/presets/engines) name those that are on, as those of `VersionRules`.
struct OffloadingRules {
  // What a request completes with its last tokens is stored, too, with the step behind its end.
  bool stores_ends = false;
  // What a request has offered only grows; else it is what its last step reached.
  bool keeps_progress = false;
  // A request ends for the pool with the next step, and one that gives up with what was computed;
  // else with its last copy before that step, and who gives up offers all of its tokens, which ends
  // the engine where some of them have no blocks.
  bool ends_with_step = false;
  // `store_threshold` counts offers of a chunk, else looks for it.
  bool counts_offers = false;
  // Of more counted chunks than are remembered, none is forgotten for one that is offered with it.
  bool remembers_offers = false;
  // A request that has ended stores nothing of its last token, which no step has computed.
  bool stores_computed = false;
  // Drafters that read hidden states leave no chunk out; else the last one is not loaded, nor
  // stored while it may still be written.
  bool offloads_drafted = false;
  // A pool by ARC that lacks chunks that were used again gives up such that were used once.
  bool gives_up_either = false;
  // Who starts again offers all of its chunks.
  bool offers_again = false;
};

}  // namespace llmsim
