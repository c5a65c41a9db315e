"""Rules of vLLM's schedule in which releases differ; engine profiles name those that hold."""

from collections.abc import Sequence

from llmsim import _native

KEEPS_STATE = -1
"""The window of a table of states, as the core has it."""
VERSION_RULES = {
    "counts_every_victim": "By priority, the pass over running requests loses no place behind a "
    "victim that had not run in the step.",
    "passes_own_victim": "By priority, a request that preempts itself stops nobody behind it.",
    "awaits_output": "A preempted request is passed over until the steps in flight have told its "
    "tokens; 0.24 starts it at once.",
    "passed_over_first": "Who was passed over goes before who is preempted later.",
    "keys_processed": "Blocks get keys when their tokens have been processed, with drafts also in "
    "synchronous steps.",
    "admits_last_token": "In a step without prompts, who lacks more than its last token waits; in "
    "0.24 all that hold no blocks.",
    "loads_without_drafts": "KV that a connector loads takes no slots for drafts, whoever drafts.",
    "loads_spare_verification": "A load leaves the blocks free that one verification takes.",
    "joins_verification": "Blocks that a prompt under way still needs are counted with those of "
    "its verification, which 0.31 rounds up apart.",
    "holders_first": "Also by priority, requests that hold blocks while they wait start before all "
    "others; earlier, they and who was passed over wait in one queue.",
    "delivers_kv": "Where KV is handed over, also the decode side drops what steps in flight "
    "compute for a preempted request, which starts again at once.",
    "spares_busy_victims": "Nobody is preempted whose blocks would not be free at once.",
    "frees_processed": "Blocks behind a window are freed when no step in flight sees them, and "
    "admission counts the tokens of all steps in flight.",
    "keys_look_ahead": "A block's key covers the tokens that an EAGLE or MTP drafter reads behind "
    "it, instead of one block of each hit being computed again.",
    "caches_states": "States of linear attention and Mamba layers are cached at the ends of "
    "blocks, where prompts are cut for them.",
    "cuts_last_block": "Where states are cached, a prompt that ends with a block is cut in front "
    "of it, so that its last token can be computed again; earlier releases run it whole.",
    "frees_past_gaps": "Cached states are given back wherever they lie; earlier releases keep "
    "those of prompts in several chunks, with asynchronous steps, until the request ends.",
    "registers_again": "Who shares the last cached state of a prompt waits a step longer, where a "
    "step of the prompt ends within the block behind that state; other releases do not.",
    "saves_inside_chunks": "Kernels may save a state inside of a chunk, which is then not cut for "
    "it; earlier releases were compared without.",
    "reads_ahead": "Where a head drafts with several modules, no prompt is cut closer to its end "
    "than they read, and blocks get keys without the last tokens, which are computed again.",
    "counts_running_loras": "Adapters of all running requests take slots of `max_loras`, also of "
    "requests that a step passes over.",
    "encodes_inputs": "A step ends in front of an image or another input of an encoder that its "
    "budget or its cache has no room for; releases before 0.24 were not compared, and count "
    "tokens.",
    "encodes_ahead": "A step also encodes an input of which its drafter alone reads tokens.",
    "holds_repeated": "A request that has an input several times holds its output until it needs "
    "none of them; earlier, until the first one is computed.",
    "counts_repeated": "With disable_chunked_mm_input also an input whose output is there is kept "
    "whole, and a request holds all of its inputs that equal one of the step.",
    "keeps_first_whole": "With disable_chunked_mm_input also a step that begins with an input "
    "keeps it whole.",
    "frees_at_once": "An output of the encoder is let go when the tokens of its input are "
    "computed, and a step ends right in front of an input without room; earlier, both leave the "
    "tokens that a drafter reads ahead.",
    "passes_over_cut": "Who could start with no token, since the encoder or a drafter lacks room "
    "for one, is passed over; earlier, nobody behind it starts in that step.",
    "pads_hits": "Also a cached prompt that starts alone takes a whole verification.",
    "pads_within_context": "Nobody takes a whole verification where the context ends before the "
    "token sampled after it; 0.28 lets such a request wait.",
    "paces_itself": "`prefill_schedule_interval` also holds without data-parallel ranks, counted "
    "from the last step with prompts.",
    "agrees_first": "Data-parallel ranks in lock-step also agree behind the first round of a wave "
    "whether work is left.",
    "stores_ends": "Offloaded KV includes what a request completes with its last tokens; earlier, "
    "nothing is stored of a request that has ended.",
    "keeps_progress": "What a request has offered to the pool of offloaded KV only grows; earlier "
    "it is what its last step reached, so that who starts again offers anew, and the last chunk "
    "of each step is never stored where a drafter reads hidden states.",
    "ends_with_step": "A request ends for the pool of offloaded KV with the next step, and one "
    "that gives up with what was computed; in 0.26 with its last copy, and the engine ends where "
    "some tokens of who gives up have no blocks.",
    "shares_host_memory": "All ranks of an engine share the memory of offloaded KV, in which "
    "chunks begin at pages and ranks with the same latents store them once.",
    "counts_offers": "kv_offloading_store_threshold counts offers of a chunk; earlier, how often "
    "a request looked for it.",
    "remembers_offers": "Of more than 64,000 counted chunks none is forgotten for one that is "
    "offered with it.",
    "stores_computed": "A request that has ended stores nothing of its last token, which no step "
    "has computed; earlier, also the chunk that ends with it.",
    "offloads_drafted": "Drafters that read hidden states leave no offloaded chunk out; earlier, "
    "the last one is not loaded, nor stored while answers go on.",
    "gives_up_either": "A full ARC pool that lacks chunks which were used again gives up such that "
    "were used once; earlier, it then stores nothing.",
    "uses_once": "A request uses each chunk of a pool of offloaded KV once, and the pool notes it "
    "when the request ends; earlier, whenever the request looks for KV or stores some.",
    "ages_requests": "In an LRU pool of offloaded KV, the chunks of a running request are as old "
    "as its first use of the pool, the last ones first; earlier, each as its own store.",
    "offers_again": "Who starts again after a preemption offers all of its chunks to the pool of "
    "offloaded KV again; earlier, those that it had not offered.",
    "tells_failed_requests": "Also models with layers of several kinds go on where KV could not be "
    "loaded, and compute all of the request again; earlier releases stop.",
}
"""Names of rules of the schedule in which releases differ -> what they say."""


def set_rules(
    native: "_native.VersionRules | _native.EncoderRules | _native.OffloadingRules",
    rules: Sequence[str],
) -> None:
    """Switches on what the scheduler decides otherwise than that of vLLM 0.24."""
    for name in rules:
        if hasattr(native, name):
            setattr(native, name, True)


def kv_tables(
    windows: Sequence[int],
    block_sizes: Sequence[int],
    step_tokens: int,
    in_flight: int,
    rules: Sequence[str],
    retention: int = -1,
    *,
    cached: bool = False,
    checkpoint_alignment: int = 0,
    match_unit: int = 0,
    held_behind: int = 0,
) -> "_native.KvTables":
    """Tables of blocks by these rules, where so many batches of so many tokens may be in flight.

    Without `block_sizes` all tables have blocks of the cache's size.
    `retention` is the option prefix_cache_retention_interval; `cached` says that the prefix cache
    is on; `match_unit` is the option prefix_match_unit; for `checkpoint_alignment` and
    `held_behind` see `KvTablesConfig` of the core.
    """
    native = _native.KvTables()
    native.windows, native.block_sizes = list(windows), list(block_sizes)
    native.frees_processed = "frees_processed" in rules
    native.step_tokens = step_tokens * (in_flight if native.frees_processed else 1)
    native.retention, native.held_behind = retention, held_behind
    if cached and KEEPS_STATE in windows and "caches_states" in rules:
        states = _native.CachedStates()
        states.on, states.checkpoint_alignment = True, checkpoint_alignment
        states.match_unit = match_unit
        states.cuts_last_block = "cuts_last_block" in rules
        states.frees_past_gaps = "frees_past_gaps" in rules
        states.registers_again = "registers_again" in rules
        native.states = states
    return native
