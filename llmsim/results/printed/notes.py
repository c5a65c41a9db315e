"""Sentences about a run that its figures do not say: answers that were cut, prefixes without names,
a growing queue.
"""

import numpy as np

from llmsim.core import Note, Results, Status, Workload
from llmsim.exact import exact_sum
from llmsim.plurals import counted, plural
from llmsim.results.saturation import saturation


def notes_of_run(
    results: Results,
    *,
    prefix_caching: bool,
    open_loop: bool,
    lora_slots: bool,
    untimed_adapters: str,
    encoder_budgets: bool,
    untimed_encoder: str,
) -> tuple[str, ...]:
    """The notes of a finished run, for its results; `prefix_caching`: some group of the deployment
    caches prefixes; `lora_slots`: some group has max_loras; `untimed_adapters`: with what the time
    of adapters is not modelled; `encoder_budgets`: all groups have those of an encoder;
    `untimed_encoder`: with what its time is not modelled.
    """
    return (
        *_cut_by_length(results),
        *_drafts_of_nobody(results),
        *_adapters(results.workload, lora_slots=lora_slots, untimed=untimed_adapters),
        *_crowded_slots(results),
        *_encoder_inputs(results.workload, budgets=encoder_budgets, untimed=untimed_encoder),
        *(_unnamed_sessions(results.workload) if prefix_caching else ()),
        *(_growing_queue(results) if open_loop else ()),
    )


def _cut_by_length(results: Results) -> tuple[str, ...]:
    requests = results.requests
    finished = requests.status == Status.FINISHED
    cut = int(
        np.count_nonzero(finished & (requests.emitted_tokens < results.workload.output_tokens))
    )
    if not cut:
        return ()
    answers = "the answer of 1 request was" if cut == 1 else f"the answers of {cut} requests were"
    return (Note(f"{answers} cut at max_model_len"),)


def _drafts_of_nobody(results: Results) -> tuple[str, ...]:
    """Keys of drafts without a drafter."""
    workload = results.workload
    given = {
        "num_speculative_tokens": workload.draft_depth,
        "acceptance_rate": workload.acceptance_rate,
        "accepted_drafts": workload.accepted_drafts,
    }
    names = [name for name, values in given.items() if values is not None]
    if not names or results.drafts is not None:
        return ()
    return (
        f"{' and '.join(names)} of the trace changes nothing, as no group has a speculative_config",
    )


def _adapters(workload: Workload, *, lora_slots: bool, untimed: str) -> tuple[str, ...]:
    """What a run does with adapters, and what it does not."""
    count = len(set(workload.adapter or ()) - {""})
    if not count:
        unused = "max_loras only takes memory: no request of the trace has an adapter"
        return (unused,) if lora_slots else ()
    shared = f"{count} LoRA {plural(count, 'adapter shares', 'adapters share')} no prefixes; "
    if lora_slots and untimed:
        slots = "their slots are in the memory of the devices, but their loads and the time that "
        return (Note(f"{shared}{slots}they add to a step are not modelled with {untimed}"),)
    if lora_slots:
        times = "their kernels take what the data sheet says, and their loads what the cluster file"
        return (Note(f"{shared}{times} says, since nobody has measured either"),)
    note = Note(
        f"{shared}their memory, their loads and the time that they add to a step are not modelled"
    )
    unlimited = "no group has max_loras, so that a step takes requests of any number of adapters"
    return (note, unlimited)


def _crowded_slots(results: Results) -> tuple[str, ...]:
    """Steps in which the engine itself would have ended."""
    steps = exact_sum(results.counters["crowded_lora_steps"])
    if not steps:
        return ()
    some = "1 step has" if steps == 1 else f"{steps} steps have"
    return (
        f"{some} more LoRA adapters than max_loras: a request that runs again was passed over when "
        "another adapter took its slot; vLLM before 0.33 ends with an assertion there, so raise "
        "max_loras",
    )


def _encoder_inputs(workload: Workload, *, budgets: bool, untimed: str) -> tuple[str, ...]:
    """What a run does with images, and what it does not."""
    if workload.encoder_inputs is None:
        return ()
    count = sum(len(row) for row in workload.encoder_inputs)
    if not untimed:
        return (
            Note(
                f"the encoder of {count} encoder_inputs is a vision tower, whose matrices take the "
                "times of the cost source and whose attention those of the data sheet; the memory "
                "of its work is not modelled"
            ),
        )
    note = (
        f"the time of the encoder of {count} encoder_inputs and the memory of its work are not "
        f"modelled with {untimed}"
    )
    unlimited = (
        "encoder_inputs count as prompt tokens alone where the schedule is not that of vllm_v1 "
        "with the engine_profile vllm-0.24 or a later one, which know the encoder's budgets"
    )
    return (Note(note),) if budgets else (Note(note), Note(unlimited))


def _unnamed_sessions(workload: Workload) -> tuple[str, ...]:
    """Calls of sessions whose tokens have no names hit nothing, not even in what their own session
    computed.
    """
    nexts = workload.next_call[workload.next_call >= 0]
    unnamed = int(np.count_nonzero(np.diff(workload.key_offsets)[nexts] == 0))
    if not unnamed:
        return ()
    sentence = (
        f"{counted(unnamed, 'later call of a session is', 'later calls of sessions are')} given by "
        f"lengths alone: {plural(unnamed, 'it finds', 'they find')} nothing in the prefix cache, "
        f"not even what {plural(unnamed, 'its', 'their')} own session computed; give "
        'input_tok_ids and output_tok_ids, or "extends": true, to let them'
    )
    return (Note(sentence),)


def _growing_queue(results: Results) -> tuple[str, ...]:
    found = saturation(results)
    return () if found is None else (Note(found.sentence),)
