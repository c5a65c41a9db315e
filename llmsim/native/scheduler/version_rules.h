// Rules of vLLM's schedule in which releases differ.
#pragma once

namespace llmsim {

// Profiles of engines (llmsim/presets/engines) name those that are on;
// docs/reference/conformance.md says which release has which.
struct VersionRules {
  // By priority, the pass over running requests loses no place when a victim stood before it.
  bool counts_every_victim = false;
  // By priority, a request that preempts itself stops nobody behind it.
  bool passes_own_victim = false;
  // A preempted request starts again when the steps that were in flight have told their tokens; it
  // is passed over until then.
  bool awaits_output = false;
  // Who was passed over goes before who is preempted later.
  bool passed_over_first = false;
  // Blocks get keys when their tokens have been processed and, with drafts, also in synchronous
  // steps.
  bool keys_processed = false;
  // In a step without prompts, who lacks more than its last token waits, and nobody else: in 0.24
  // all that hold no blocks.
  bool admits_last_token = false;
  // KV that is loaded takes no slots for drafts, whoever drafts.
  bool loads_without_drafts = false;
  // A load leaves the blocks free that one verification takes.
  bool loads_spare_verification = false;
  // Blocks that a prompt under way still needs are counted with those of its verification; else the
  // verification's are rounded up apart.
  bool joins_verification = false;
  // Who can start with no token, since the encoder or a drafter lacks room for one, is passed over;
  // in earlier releases nobody behind it starts in that step.
  bool passes_over_cut = false;
  // Adapters of all running requests take slots, also of those that this step passes over.
  bool counts_running_loras = false;
  // Also by priority, requests that hold blocks while they wait start before all others.
  bool holders_first = false;
  // Groups that hand KV over drop what steps in flight compute for a request that was preempted,
  // and it starts again at once.
  bool delivers_kv = false;
  // Nobody is preempted whose blocks would not be free at once.
  bool spares_busy_victims = false;
};

}  // namespace llmsim
