"""`--scheduler vllm`: a run whose steps the installed vLLM's own scheduler and KV cache manager
form.

Slower than `vllm_v1` by two orders of magnitude, and for vLLM 0.24 the same to the step; for
another version it is that version. Prompts are made of token ids that are equal where the
workload's content is, since nothing else is known.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from msgspec.structs import replace

from llmsim.config import EngineArgs
from llmsim.config.errors import InputError
from llmsim.core import PS_PER_S, Workload
from llmsim.scheduling.conformance.connectors import FAIL, RECOMPUTE, offloading_options
from llmsim.scheduling.conformance.vllm.live import (
    installed_version,
    resolve,
    scheduler_of,
)
from llmsim.scheduling.conformance.vllm.request import LiveRequest, prompt_alone
from llmsim.scheduling.conformance.vllm.scheduler import VllmScheduler
from llmsim.workload.content import adapter_numbers, numbered_inputs

NAME = "vllm"
OWN = 1 << 62
"""From here on tokens are the request's alone; ids of content, below, come from its key."""
_PER_REQUEST = 1 << 31
_HEADS = {"eagle3": "eagle", "mtp": "eagle"}
"""Methods whose schedule is another's."""


def installed_scheduler(engine: EngineArgs, config: Any, workload: Workload) -> VllmScheduler:
    """The scheduler of one group; `config` is the native twin's. InputError where vLLM is missing
    or refuses.
    """
    if installed_version() is None:
        raise InputError(
            "the scheduler vllm is the installed vLLM's own, but there is none; install "
            "llmsim[vllm]"
        )
    options = engine_options(engine, config) | _encoder_budgets(config.encoder, workload)
    options |= _connector(config)
    core = resolve({"config": options})
    slots = engine.max_loras is not None
    requests = live_requests(workload, stops=not engine.ignore_eos, slots=slots)
    if "encoder_tokens" in options:
        requests = _with_images(requests, workload)
    if config.kv_producer:
        states = config.prefill_all_but_last_token
        requests = [prompt_alone(one, all_but_last=states) for one in requests]
    return scheduler_of(core, requests, config.speculation, config.load_failures)


def _connector(config: Any) -> dict[str, Any]:
    """Options of a case for a group that hands KV over or keeps some in pools below it; none for
    any other.
    """
    if config.offloading.num_chunks > 0:
        return {"role": "both", "connector": offloading_options(config.offloading)}
    if not (config.kv_producer or config.kv_consumer or config.tiered):
        return {}
    role = "prefill" if config.kv_producer else "decode" if config.kv_consumer else "both"
    policy = RECOMPUTE if config.load_failures.recomputes else FAIL
    connector = {
        "state_bytes": int(config.prefill_all_but_last_token),
        "load_failures": {"policy": policy},
    }
    return {"role": role, "connector": connector}


def live_requests(workload: Workload, *, stops: bool, slots: bool = False) -> list[LiveRequest]:
    """The requests by row; their tokens are equal where the workload's content is, and `slots` says
    that they have their LoRA adapters.
    """
    loras = np.zeros(len(workload), np.int32)
    if slots and workload.adapter is not None:
        loras = adapter_numbers(workload.adapter)
    return [
        replace(_request(workload, row), stops=stops, lora=lora)
        for row, lora in enumerate(loras.tolist())
    ]


def _with_images(requests: list[LiveRequest], workload: Workload) -> list[LiveRequest]:
    """The requests with their encoder inputs."""
    rows = workload.encoder_inputs or []
    numbered = numbered_inputs(rows)
    images = [tuple(islice(numbered, len(row))) for row in rows]
    return [replace(one, images=found) for one, found in zip(requests, images, strict=True)]


def _encoder_budgets(encoder: Any, workload: Workload) -> dict[str, Any]:
    """Options of a case (`conformance.cases`); none where nobody has images."""
    if not encoder.inputs:
        return {}
    rows = workload.encoder_inputs or []
    largest = max(tokens for row in rows for _, tokens, _ in row)
    return {
        "encoder_tokens": max(encoder.step_tokens, largest),
        "encoder_cache_tokens": max(encoder.cache_tokens, largest),
        "disable_chunked_mm_input": encoder.whole_inputs,
    }


def engine_options(engine: EngineArgs, config: Any) -> dict[str, Any]:
    """Options of vLLM by the names of its `EngineArgs`; `config` is the native twin's."""
    options: dict[str, Any] = {
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_model_len": config.kv.max_model_len,
        "block_size": engine.block_size,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "enable_chunked_prefill": engine.enable_chunked_prefill,
        "async_scheduling": engine.async_scheduling,
        "long_prefill_token_threshold": engine.long_prefill_token_threshold,
        "policy": engine.scheduling_policy,
        "watermark": engine.watermark,
        "scheduler_reserve_full_isl": engine.reserve_full_isl,
        "num_gpu_blocks": config.kv.num_blocks,
        "prefill_schedule_interval": engine.limits.prefill_schedule_interval,
    }
    if engine.max_loras is not None:
        options["max_loras"] = engine.max_loras
    speculation = engine.speculation
    if speculation is not None:
        method = _HEADS.get(speculation.method, speculation.method)
        options["speculative"] = {"method": method, "num_speculative_tokens": speculation.tokens}
        if method == "ngram":
            options["speculative"] |= {"prompt_lookup_max": 4}
        elif speculation.parallel:
            options["speculative"] |= {"parallel_drafting": True}
    return options


def _request(workload: Workload, row: int) -> LiveRequest:
    token = _tokens(workload, row)
    tokens = int(workload.input_tokens[row])
    return LiveRequest(
        name=f"{row:09d}",
        arrival_s=max(int(workload.arrival_ps[row]), 0) / PS_PER_S,
        input_tokens=tokens,
        output_tokens=int(workload.output_tokens[row]),
        priority=0 if workload.priority is None else int(workload.priority[row]),
        prompt=lambda: [token(position) for position in range(tokens)],
        output=partial(_after, token, tokens),
    )


def _after(token: Callable[[int], int], tokens: int, offset: int) -> int:
    return token(tokens + offset)


def _tokens(workload: Workload, row: int) -> Callable[[int], int]:
    """Position of a request's stream -> token id."""
    keys = workload.keys[workload.key_offsets[row] : workload.key_offsets[row + 1]].tolist()
    unit = workload.granularity

    def token(position: int) -> int:
        block, offset = divmod(position, unit)
        return (
            keys[block] * unit + offset
            if block < len(keys)
            else OWN + row * _PER_REQUEST + position
        )

    return token
