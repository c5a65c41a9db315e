"""Replays schedules recorded from a real vLLM scheduler and finds the first difference, step by
step.

A recording is one JSON object per file, plain or gzip: a case (llmsim.scheduling.conformance.cases)
and its `steps`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from llmsim import _native
from llmsim.config.engine.profile import DEFAULT_PROFILE
from llmsim.config.errors import InputError
from llmsim.config.files import input_files
from llmsim.config.files.reading import MAX_WHOLE_BYTES, decoded, json_value, too_large
from llmsim.scheduling.conformance.cases import Case, run_case
from llmsim.scheduling.conformance.connectors import time_digits
from llmsim.workload.open_trace import opened

_Seconds = Annotated[float, Meta(ge=0, le=1e6)]
_Count = Annotated[int, Meta(ge=0, le=1 << 24)]
_Chance = Annotated[int, Meta(ge=0, le=1 << 53)]


class _Request(msgspec.Struct):
    id: str
    arrival: _Seconds
    segments: list[tuple[Annotated[int, Meta(ge=0, le=20_000)], _Count]]
    output_len: _Count
    priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = 0
    cancel_after: _Seconds | None = None
    cancel_after_tokens: _Count = 0
    lora: _Count = 0
    images: list[_Count] = []


_Ranks = Annotated[int, Meta(ge=1, le=1 << 8)]


class _LoadFailures(msgspec.Struct):
    chance: _Chance
    policy: Literal["recompute", "fail"]


class _Connector(msgspec.Struct):
    kind: Literal["handover", "pool", "offloading"]
    bytes_per_s: Annotated[int, Meta(ge=1, le=1 << 50)]
    latency_ns: Annotated[int, Meta(ge=0, le=1 << 40)]
    prefill_blocks: Annotated[int, Meta(ge=2, le=1 << 24)] = 2
    push: bool = False
    state_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    ranks: tuple[_Ranks, _Ranks] = (1, 1)
    sync_interval: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    chunk_blocks: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    pool_chunks: _Count = 0
    parks: bool = False
    selective: bool = False
    eviction: Literal["lru", "arc"] = "lru"
    store_threshold: _Count = 0
    max_tracker_size: _Count = 64_000
    prompt_only: bool = True
    sync_load_tokens: _Count = 0
    load_failures: _LoadFailures | None = None


class _Config(msgspec.Struct):
    num_gpu_blocks: _Count
    max_num_seqs: Annotated[int, Meta(ge=1, le=1 << 16)]
    max_num_batched_tokens: Annotated[int, Meta(ge=1, le=1 << 24)]
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)] = 16
    max_model_len: Annotated[int, Meta(ge=1, le=1 << 30)] = 1
    long_prefill_token_threshold: _Count = 0
    enable_chunked_prefill: bool = True
    async_scheduling: bool = False
    ends_with_stop_token: bool = False
    enable_prefix_caching: bool = False
    pipeline_parallel_size: Annotated[int, Meta(ge=1, le=1 << 10)] = 1
    prefill_schedule_interval: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    policy: str = "fcfs"
    kv_windows: list[Annotated[int, Meta(ge=-(1 << 24), le=1 << 24)]] = []
    kv_block_sizes: list[Annotated[int, Meta(ge=1, le=1 << 20)]] = []
    max_loras: _Count = 0
    checkpoint_alignment: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    prefix_match_unit: _Count = 0
    encoder_tokens: _Count = 0
    encoder_cache_tokens: _Count = 0
    disable_chunked_mm_input: bool = False
    connector: _Connector | None = None


class _Resolved(msgspec.Struct):
    max_concurrent_batches: Annotated[int, Meta(ge=1, le=1 << 10)]
    num_lookahead_tokens: _Count
    num_spec_tokens: _Count
    max_num_scheduled_tokens: Annotated[int, Meta(ge=1, le=1 << 24)]
    reserve_full_isl: bool
    watermark: Annotated[float, Meta(ge=0, le=1)]
    use_v2_model_runner: bool = False
    use_eagle: bool = False
    tokens_by_sequences: list[_Count] = []
    prefix_cache_retention_interval: Annotated[int, Meta(ge=-1, le=1 << 30)] = -1
    num_prefill_lookahead_tokens: _Count = 0


class _Step(msgspec.Struct):
    t: _Seconds
    sched: list[tuple[str, _Count, _Count]]
    running: int
    waiting: int
    free_blocks: int
    preempted: list[str] = []
    finished: list[str] = []
    spec: dict[str, int] = {}
    t_end: _Seconds | None = None
    free_blocks_after: int | None = None


class _Recorded(msgspec.Struct):
    """What `replay` reads of a recording; a file that does not convert to it is refused."""

    config: _Config
    resolved: _Resolved
    requests: Annotated[list[_Request], Meta(min_length=1)]
    steps: list[_Step]
    acceptance: list[_Chance] = []
    accepted_draft_tokens: Annotated[int, Meta(ge=0, le=1 << 10)] = 0
    proposal_chance: _Chance = 1 << 53
    stands_still_at: _Seconds | None = None


_MOST_TOKENS = 1 << 25
"""Of all prompts and answers of a recording: every one of them is hashed."""


class Verdict(Struct, frozen=True):
    """Outcome of one replay: `difference` is empty when every step was identical."""

    path: Path
    steps: int
    difference: str

    @property
    def identical(self) -> bool:
        return not self.difference


def find_recordings(paths: Iterable[Path]) -> list[Path]:
    """All recordings among files and folders, sorted; raises InputError where there is none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                p for p in input_files.entries(path) if p.name.endswith((".json", ".json.gz"))
            )
            if not inside:
                raise InputError(f'no recorded schedule (.json or .json.gz) in folder "{path}".')
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise InputError(
                f'recorded schedule "{path}" does not exist; give a .json or .json.gz file or a '
                "folder."
            )
    return found


def recordings_below(path: Path, engine: str) -> list[Path]:
    """The engine's recordings in a folder and in the folders below it, or one file; InputError
    where there is none.
    """
    if not path.is_dir():
        return find_recordings([path])
    found = [one for one in _files_below(path) if _is_of(one, engine)]
    if not found:
        raise InputError(f'no recorded schedule of {engine} (.json or .json.gz) below "{path}".')
    return found


def _files_below(folder: Path) -> list[Path]:
    files: list[Path] = []
    for path in input_files.entries(folder):
        if path.is_dir():
            files += _files_below(path)
        elif path.name.endswith((".json", ".json.gz")):
            files.append(path)
    return files


def _is_of(path: Path, engine: str) -> bool:
    """False where the recording says that it is another engine's; what is no recording is refused
    when it is loaded.
    """
    case = read_recording(path, f"a recorded schedule of {engine} (.json or .json.gz)")
    if not isinstance(case, dict):
        return True
    named = case.get("engine", "vLLM" if "resolved" in case else engine)
    return str(named).lower().startswith(engine.lower())


def read_recording(path: Path, wanted: str) -> Any:
    """The JSON value of a file; raises InputError that says what was wanted."""
    with opened(path) as stream:
        data = stream.read(MAX_WHOLE_BYTES + 1)
    if len(data) > MAX_WHOLE_BYTES:
        raise too_large(path)
    return json_value(decoded(data, path, wanted), path, wanted)


def load_recording(path: Path) -> Case:
    """One recording; raises InputError naming the file when it is not one."""
    case = read_recording(path, "a recorded schedule (.json or .json.gz)")
    try:
        known = msgspec.convert(case, _Recorded)
    except msgspec.ValidationError as error:
        said = str(error).replace("`", '"').replace('"$.', '"')
        raise InputError(f'"{path}" is not a recorded schedule: {said}.') from None
    except UnicodeEncodeError:
        raise InputError(
            f'"{path}" is not a recorded schedule: a text holds half of a surrogate pair.'
        ) from None
    _check(path, known)
    return case  # type: ignore[no-any-return]


def recorded_verdicts(path: Path) -> Iterator[dict[str, Any]]:
    """The releases that were recorded, then one verdict for each recording of vLLM in a folder and
    below it, with its file.
    """
    cases = {one: load_recording(one) for one in recordings_below(path, "vLLM")}
    resolved = [case["resolved"] for case in cases.values()]
    profiles = sorted({one.get("engine_profile", DEFAULT_PROFILE) for one in resolved})
    version = ", ".join(profile.removeprefix("vllm-") for profile in profiles)
    yield {"version": version, "engine_profile": ", ".join(profiles), "cases": len(cases)}
    for one, case in cases.items():
        verdict = replay(one)
        yield {
            "recording": str(one),
            "steps": verdict.steps,
            "difference": verdict.difference,
            "options": msgspec.json.encode(case["config"]).decode(),
        }


def _check(path: Path, known: _Recorded) -> None:
    """Raises InputError for what no single field says: too many tokens, repeated ids, a step
    without its end.
    """
    prompts = sum(length for request in known.requests for _, length in request.segments)
    total = prompts + sum(request.output_len for request in known.requests)
    if total > _MOST_TOKENS:
        raise InputError(
            f'"{path}": its requests have {total} tokens, but at most {_MOST_TOKENS} are replayed.'
        )
    if len({request.id for request in known.requests}) < len(known.requests):
        raise InputError(f'"{path}": two of its requests have the same id.')
    for number, step in enumerate(known.steps):
        if step.sched and (step.t_end is None or step.free_blocks_after is None):
            raise InputError(f'"{path}": steps[{number}] has no t_end or no free_blocks_after.')


def replay(path: Path) -> Verdict:
    """Runs the recording's requests through the native scheduler and compares every step."""
    case = load_recording(path)
    try:
        ours = list(run_case(case))
    except KeyError as error:
        raise InputError(f'recorded schedule "{path}" has no field {error}.') from None
    except (ValueError, OverflowError) as error:  # how the native scheduler refuses a configuration
        raise InputError(f'recorded schedule "{path}" cannot be run: {error}.') from None
    except _native.Stalled as error:
        return Verdict(path, 0, f"the native scheduler stalls: {error}")
    digits = time_digits(case)
    theirs = [_normalise(step, digits) for step in case["steps"]]
    if case.get("stands_still_at") is not None:  # ours goes on
        until = _ps(case["stands_still_at"], digits)
        ours = [step for step in ours if step["schedule_ps"] < until]
    for number, (mine, recorded) in enumerate(zip(ours, theirs, strict=False)):
        for field, value in recorded.items():
            if mine[field] != value:
                return Verdict(
                    path, number, f"step {number}: {field} is {mine[field]}, recorded {value}"
                )
    if len(ours) != len(theirs):
        return Verdict(
            path, min(len(ours), len(theirs)), f"{len(ours)} steps, recorded {len(theirs)}"
        )
    return Verdict(path, len(theirs), "")


def _ps(seconds: float, digits: int) -> int:
    """Recorded times are seconds rounded to so many digits behind the comma."""
    return int(round(seconds * 10**digits) * 10 ** (12 - digits))


def _normalise(step: Case, digits: int) -> Case:
    """The fields to compare, with times in ps and unordered lists sorted."""
    fields: Case = {
        "schedule_ps": _ps(step["t"], digits),
        "scheduled": [tuple(item) for item in step["sched"]],
        "running": step["running"],
        "waiting": step["waiting"],
        "free_blocks": step["free_blocks"],
        "preempted": sorted(step.get("preempted", [])),
        "drafts": step.get("spec", {}),
    }
    if step["sched"]:
        fields |= {
            "end_ps": _ps(step["t_end"], digits),
            "free_blocks_after": step["free_blocks_after"],
            "finished": sorted(step.get("finished", [])),
        }
    return fields
