"""Recorded steps of SGLang's scheduler, as `worker` writes them, against our own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from llmsim import _native
from llmsim.config.errors import InputError
from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.recorded import read_recording, recordings_below
from llmsim.scheduling.conformance.sglang.compare import first_difference
from llmsim.scheduling.conformance.sglang.ours import our_steps

_Count = Annotated[int, Meta(ge=0, le=1 << 24)]
_Positive = Annotated[int, Meta(ge=1, le=1 << 24)]
_Ps = Annotated[int, Meta(ge=0, le=1 << 62)]
_Priority = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
_MOST_TOKENS = 1 << 25


class _PrefillServer(msgspec.Struct):
    """What a prefill server in front of a decode server is told differently."""

    max_running_requests: Annotated[int, Meta(ge=1, le=1 << 16)] = 128
    disable_overlap_schedule: bool = False


class _Config(msgspec.Struct):
    page_size: Annotated[int, Meta(ge=1, le=1 << 16)]
    chunked_prefill_size: Annotated[int, Meta(ge=-1, le=1 << 24)]
    max_prefill_tokens: _Positive
    max_running_requests: Annotated[int, Meta(ge=1, le=1 << 16)]
    max_total_tokens: _Positive
    context_length: _Positive
    schedule_policy: Literal["fcfs", "lpm", "lof", "dfs-weight", "hrrn", "shortest-prefill-first"]
    enable_mixed_chunk: bool
    disable_overlap_schedule: bool
    disable_radix_cache: bool
    ends_with_stop_token: bool
    clip_max_new_tokens: _Positive
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    disable_priority_preemption: bool = False
    priority_scheduling_preemption_threshold: _Priority = 10
    retraction_policy: Literal["length", "priority"] = "length"
    pp_size: Annotated[int, Meta(ge=1, le=64)] = 1
    speculative_algorithm: Literal["EAGLE", "EAGLE3", "STANDALONE"] | None = None
    speculative_num_steps: Annotated[int, Meta(ge=0, le=64)] = 0
    speculative_eagle_topk: Annotated[int, Meta(ge=1, le=64)] = 1
    speculative_num_draft_tokens: Annotated[int, Meta(ge=1, le=1 << 12)] = 1
    disaggregation_mode: Literal["prefill", "decode", "pair"] | None = None
    transfer_ps: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    num_reserved_decode_tokens: Annotated[int, Meta(ge=0, le=1 << 24)] = 512
    disaggregation_decode_enable_radix_cache: bool = False
    prefill_server: _PrefillServer = msgspec.field(default_factory=_PrefillServer)
    dp_size: Annotated[int, Meta(ge=1, le=64)] = 1
    scheduler_recv_interval: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    enable_hierarchical_cache: bool = False
    sliding_window: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    swa_full_tokens_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.8
    max_mamba_cache_size: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    mamba_radix_cache_strategy: Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"] = (
        "extra_buffer"
    )
    mamba_track_interval: Annotated[int, Meta(ge=1, le=1 << 20)] = 256
    mamba_chunk_size: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    hicache_ratio: Annotated[float, Meta(gt=0, le=1 << 10)] = 2.0
    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"] = (
        "write_through"
    )
    hicache_copy_ps: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    hicache_storage_backend: Literal["file"] | None = None
    hicache_storage_prefetch_policy: Literal["timeout", "wait_complete", "best_effort"] = "timeout"
    hicache_storage_prefetch_retry_poll_interval: Annotated[int, Meta(ge=0, le=1 << 20)] = 8
    hicache_storage_prefetch_retry_max_attempts: Annotated[int, Meta(ge=0, le=1 << 20)] = 8
    prefetch_threshold: _Positive = 256
    storage_ps: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    storage_pages: _Count = 0
    storage_timeout_ps: _Ps = 0
    storage_timeout_per_page_ps: Annotated[int, Meta(ge=0, le=1 << 40)] = 0


class _Request(msgspec.Struct):
    id: str
    arrival: Annotated[float, Meta(ge=0, le=1e6)]
    segments: list[tuple[Annotated[int, Meta(ge=0, le=20_000)], _Count]]
    output_len: _Count
    priority: _Priority = 0
    cancel_after: Annotated[float, Meta(ge=0, le=1e6)] | msgspec.UnsetType = msgspec.UNSET
    cancel_after_tokens: Annotated[int, Meta(ge=1, le=1 << 24)] | msgspec.UnsetType = msgspec.UNSET


class _Step(msgspec.Struct):
    schedule_ps: _Ps
    end_ps: _Ps
    scheduled: list[tuple[str, _Count, _Count]]
    running: _Count
    waiting: _Count
    free_blocks: _Count
    preempted: list[str]
    finished: list[str]
    free_blocks_after: _Count
    drafts: dict[str, _Count] | msgspec.UnsetType = msgspec.UNSET
    free_states: _Count | msgspec.UnsetType = msgspec.UNSET
    free_states_after: _Count | msgspec.UnsetType = msgspec.UNSET


class _Recorded(msgspec.Struct):
    config: _Config
    requests: Annotated[list[_Request], Meta(min_length=1)]
    steps: list[_Step]
    acceptance: list[Annotated[int, Meta(ge=0, le=1 << 53)]] = []
    engine: str = "sglang"


def load_recording(path: Path) -> Case:
    """One recording as a case with `steps`; InputError names a file that is none."""
    wanted = "a recorded schedule of SGLang (.json or .json.gz)"
    try:
        known = msgspec.convert(read_recording(path, wanted), _Recorded)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        said = str(error).replace("`", '"').replace('"$.', '"')
        raise InputError(f'"{path}" is not a recorded schedule of SGLang: {said}.') from None
    lengths = [sum(length for _, length in request.segments) for request in known.requests]
    if sum(lengths) + sum(request.output_len for request in known.requests) > _MOST_TOKENS:
        raise InputError(f'"{path}": its requests have more than {_MOST_TOKENS} tokens.')
    if len({request.id for request in known.requests}) < len(known.requests):
        raise InputError(f'"{path}": two of its requests have the same id.')
    return msgspec.to_builtins(known, builtin_types=(tuple,))  # type: ignore[no-any-return]


def recorded_verdicts(path: Path) -> Iterator[dict[str, Any]]:
    """The engine of the first recording, then one verdict for each, with its file."""
    paths = recordings_below(path, "SGLang")
    cases = [load_recording(one) for one in paths]
    version = cases[0]["engine"].removeprefix("sglang ")
    yield {"version": version, "engine_profile": "sglang-0.5", "cases": len(cases)}
    for one, case in zip(paths, cases, strict=True):
        yield {"recording": str(one), **_verdict(one, case)}


def _verdict(path: Path, case: Case) -> dict[str, Any]:
    options = msgspec.json.encode(case["config"]).decode()
    try:
        ours = our_steps(case)
    except (ValueError, OverflowError) as error:  # how the native scheduler refuses a configuration
        raise InputError(f'recorded schedule "{path}" cannot be run: {error}.') from None
    except _native.Stalled as error:
        return {"steps": 0, "difference": f"our scheduler stalls: {error}", "options": options}
    equal, difference = first_difference(ours, case["steps"])
    return {"steps": equal, "difference": difference, "options": options}
