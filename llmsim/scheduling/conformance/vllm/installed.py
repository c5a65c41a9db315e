"""`--scheduler vllm`: a run whose steps the installed vLLM's own engine core forms.

Slower than `vllm_v1` by two orders of magnitude, and for vLLM 0.24 and 0.33 the same to the step;
for another version it is that version. Prompts are made of token ids that are equal where the
workload's content is, since nothing else is known.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from msgspec.structs import replace

from llmsim.config import EngineArgs
from llmsim.config.engine.profile import PROVEN
from llmsim.config.engine.speculative import Speculation
from llmsim.config.errors import InputError
from llmsim.core import PS_PER_S, Workload
from llmsim.scheduling.conformance.connectors import FAIL, RECOMPUTE, offloading_options
from llmsim.scheduling.conformance.engine_failure import words_of
from llmsim.scheduling.conformance.vllm.live import (
    installed_version,
    rank_of,
    resolve,
    scheduler_of,
)
from llmsim.scheduling.conformance.vllm.ranks.exchange import Rank
from llmsim.scheduling.conformance.vllm.request import LiveRequest, prompt_alone
from llmsim.scheduling.conformance.vllm.scheduler import VllmScheduler
from llmsim.workload.content import adapter_numbers, numbered_inputs

NAME = "vllm"
OWN = 1 << 62
"""From here on tokens are the request's alone; ids of content, below, come from its key."""
_PER_REQUEST = 1 << 31
_HEADS = {"eagle3": "eagle", "mtp": "eagle"}
"""Methods whose schedule is another's."""


def installed_scheduler(
    engine: EngineArgs, config: Any, workload: Workload, rank: Rank | None = None
) -> VllmScheduler:
    """The scheduler of one group, which may be a data-parallel rank in lock-step; `config` is the
    native twin's. InputError where vLLM is missing or refuses.
    """
    if installed_version() is None:
        raise InputError(
            "the scheduler vllm is the installed vLLM's own, but there is none; install "
            "llmsim[vllm]"
        )
    options = engine_options(engine, config) | _limits(engine, config)
    options |= _encoder_budgets(config.encoder, workload) | _connector(config)
    options |= _stages(engine, config) | _tables(config.kv) | _rank(engine, rank)
    if engine.speculation is not None:
        options["speculative"] |= _drafter(engine.speculation)
    core = _engine_core(options)
    requests = live_requests(
        workload,
        stops=not engine.ignore_eos,
        slots=engine.max_loras is not None,
        ahead=getattr(core.vllm_config, "num_hash_lookahead_tokens", 0),
    )
    if "encoder_tokens" in options:
        requests = with_images(requests, workload)
    if config.kv_producer:
        states = config.prefill_all_but_last_token
        requests = [prompt_alone(one, all_but_last=states) for one in requests]
    if rank is not None:
        return rank_of(core, requests, config.speculation, config.load_failures, rank)
    return scheduler_of(core, requests, config.speculation, config.load_failures)


def _engine_core(options: dict[str, Any]) -> Any:
    try:
        return resolve({"config": options})
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"vLLM {installed_version()} is installed, but its engine core does not run in this "
            f"environment ({words_of(error)}); repair it, or install vllm=={PROVEN[-1]}.0"
        ) from error


def _limits(engine: EngineArgs, config: Any) -> dict[str, Any]:
    """Options of a case (`conformance.cases`) that limit a step, and over how many devices a block
    is spread.
    """
    limits = engine.limits
    return {
        "max_num_scheduled_tokens": config.max_num_scheduled_tokens,
        "prefill_schedule_interval": limits.prefill_schedule_interval,
        "long_prefill_token_threshold_adaptive": limits.adaptive_threshold,
        "max_num_active_seqs": limits.max_num_active_seqs,
        "decode_context_parallel_size": config.kv.block_size // engine.block_size,
    }


def _drafter(speculation: Speculation) -> dict[str, Any]:
    """What the drafts of a case say beside their method and number."""
    options: dict[str, Any] = {}
    if speculation.modules > 1:
        options["num_nextn_predict_layers"] = speculation.modules
    if speculation.tokens_by_sequences:
        ranges = _ranges(speculation.tokens_by_sequences)
        options["num_speculative_tokens_per_batch_size"] = ranges
    return options


def runs_v2(engine: EngineArgs) -> bool:
    """Whether vLLM is asked for Model Runner V2. The runners schedule alike but with pipeline
    stages, and only V2 has drafts by n-grams that asynchronous scheduling needs not wait for.
    """
    drafts = engine.speculation
    by_ngram = drafts is not None and drafts.method == "ngram"
    return bool(engine.use_v2_model_runner) or (by_ngram and engine.async_scheduling)


def _stages(engine: EngineArgs, config: Any) -> dict[str, Any]:
    """Options of a case for its pipeline stages, and its model runner where that is V2."""
    v2 = runs_v2(engine)
    if config.stages == 1:
        return {"use_v2_model_runner": True} if v2 else {}
    if engine.speculation is not None and not (v2 and engine.async_scheduling):
        raise InputError(
            f"the installed vLLM verifies drafts in {config.stages} pipeline stages only with "
            "async_scheduling and use_v2_model_runner; set both, or remove speculative_config"
        )
    return {"pipeline_parallel_size": config.stages, "use_v2_model_runner": v2}


def _rank(engine: EngineArgs, rank: Rank | None) -> dict[str, Any]:
    """Options of a case for one of several data-parallel ranks in lock-step."""
    if rank is None:
        return {}
    return {
        "data_parallel_size": rank.group.size,
        "data_parallel_rank": rank.number,
        "dp_sync_interval": engine.dp_sync_interval,
    }


def _tables(kv: Any) -> dict[str, Any]:
    """Options of a case where layers of several kinds share the blocks by tables of their own."""
    if not kv.tables.windows:
        return {}
    options = {
        "kv_windows": list(kv.tables.windows),
        "prefix_cache_retention_interval": kv.tables.retention,
    }
    if kv.tables.block_sizes:
        options["kv_block_sizes"] = list(kv.tables.block_sizes)
    if kv.tables.states.match_unit:
        options["prefix_match_unit"] = kv.tables.states.match_unit
    return options


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


def live_requests(
    workload: Workload, *, stops: bool, slots: bool = False, ahead: int = 0
) -> list[LiveRequest]:
    """The requests by row; their tokens are equal where the workload's content is, and `slots` says
    that they have their LoRA adapters. Keys of blocks cover `ahead` tokens behind them.
    """
    loras = np.zeros(len(workload), np.int32)
    if slots and workload.adapter is not None:
        loras = adapter_numbers(workload.adapter)
    return [
        replace(_request(workload, row, ahead), stops=stops, lora=lora)
        for row, lora in enumerate(loras.tolist())
    ]


def with_images(requests: list[LiveRequest], workload: Workload) -> list[LiveRequest]:
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


def _ranges(drafts_by_sequences: Sequence[int]) -> list[list[int]]:
    """[first, last, drafts] of equal drafts by the number of sequences, from 1."""
    ranges: list[list[int]] = []
    for number, drafts in enumerate(drafts_by_sequences[1:], start=1):
        if ranges and ranges[-1][2] == drafts:
            ranges[-1][1] = number
        else:
            ranges.append([number, number, drafts])
    return ranges


def _request(workload: Workload, row: int, ahead: int = 0) -> LiveRequest:
    token = _tokens(workload, row, ahead)
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


def _tokens(workload: Workload, row: int, ahead: int) -> Callable[[int], int]:
    """Position of a request's stream -> token id.

    Of the tokens behind a block that its key covers, only whole units of content can be told apart
    (llmsim/native/kv/kv_cache.cpp): the others are those of every request with that block.
    """
    first, end = workload.key_offsets[row : row + 2]
    keys: list[int] = workload.keys[first:end].tolist()
    unit = workload.granularity
    untold = ahead % unit

    def token(position: int) -> int:
        block, offset = divmod(position, unit)
        is_untold = offset < untold and 0 < block <= len(keys)
        if is_untold:
            return -(keys[block - 1] * unit + offset) - 1
        if block < len(keys):
            return keys[block] * unit + offset
        return OWN + row * _PER_REQUEST + position

    return token
