"""Replays schedules recorded from a real vLLM scheduler and finds the first difference, step by step.

A recording (one JSON object per file, plain or gzip) holds `config`, `resolved` (what the engine made of it),
`requests` and `steps`; the time of a step is given: 5 ms plus 10 us per scheduled token plus 20 us per request.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmsim import _native
from llmsim.config.errors import InputError
from llmsim.core import PS_PER_S, PS_PER_US

STEP_PS = 5_000 * PS_PER_US
TOKEN_PS = 10 * PS_PER_US
SEQUENCE_PS = 20 * PS_PER_US
DEFAULT_MAX_MODEL_LEN = 8192
"""What the recordings ran with unless their config says otherwise."""

Case = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
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
            inside = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz")))
            if not inside:
                raise InputError(f'no recorded schedule (.json or .json.gz) in folder "{path}".')
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f'recorded schedule "{path}" does not exist; give a .json or .json.gz file or a folder.')
    return found


def load_recording(path: Path) -> Case:
    """One recording; raises InputError naming the file when it is not one."""
    try:
        data = path.read_bytes()
        case = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f'recorded schedule "{path}" cannot be read as JSON ({error}).') from None
    missing = {"config", "resolved", "requests", "steps"} - set(case if isinstance(case, dict) else ())
    if missing:
        raise InputError(f'"{path}" is not a recorded schedule: it has no "{min(missing)}".')
    return case  # type: ignore[no-any-return]


def replay(path: Path) -> Verdict:
    """Runs the recording's requests through the native scheduler and compares every step."""
    case = load_recording(path)
    try:
        ours = list(_run(case))
    except KeyError as error:
        raise InputError(f'recorded schedule "{path}" has no field {error}.') from None
    theirs = [_normalise(step) for step in case["steps"]]
    for number, (mine, recorded) in enumerate(zip(ours, theirs, strict=False)):
        for field, value in recorded.items():
            if mine[field] != value:
                return Verdict(path, number, f"step {number}: {field} is {mine[field]}, recorded {value}")
    if len(ours) != len(theirs):
        return Verdict(path, min(len(ours), len(theirs)), f"{len(ours)} steps, recorded {len(theirs)}")
    return Verdict(path, len(theirs), "")


def _ps(seconds: float) -> int:
    """Recorded times are seconds rounded to nanoseconds."""
    return round(seconds * 1e9) * 1000


def _normalise(step: Case) -> Case:
    """The fields to compare, with times in ps and unordered lists sorted."""
    fields: Case = {
        "schedule_ps": _ps(step["t"]),
        "scheduled": [tuple(item) for item in step["sched"]],
        "running": step["running"],
        "waiting": step["waiting"],
        "free_blocks": step["free_blocks"],
        "preempted": sorted(step.get("preempted", [])),
        "drafts": step.get("spec", {}),
    }
    if step["sched"]:
        fields |= {
            "end_ps": _ps(step["t_end"]),
            "free_blocks_after": step["free_blocks_after"],
            "finished": sorted(step.get("finished", [])),
        }
    return fields


def _content(requests: list[Case]) -> "_native.ContentHasher":
    """Token j of segment s is s*100000+j; the k-th output token of request i is -(i*100000+k)-2."""
    hasher = _native.ContentHasher(1)
    for index, request in enumerate(requests):
        prompt = [s * 100_000 + j for s, length in request["segments"] for j in range(length)]
        hasher.add(prompt, [-(index * 100_000 + k) - 2 for k in range(request["output_len"])])
    return hasher


def scheduler_config(config: Case, resolved: Case) -> "_native.VllmV1Config":
    """The native scheduler's options for a recorded configuration."""
    native = _native.VllmV1Config()
    native.max_num_seqs = config["max_num_seqs"]
    native.max_num_scheduled_tokens = resolved["max_num_scheduled_tokens"]
    native.long_prefill_token_threshold = config.get("long_prefill_token_threshold", 0)
    native.chunked_prefill = config.get("enable_chunked_prefill", True)
    native.reserve_full_isl = resolved["reserve_full_isl"]
    native.async_scheduling = config.get("async_scheduling", False)
    native.watermark_blocks = int(resolved["watermark"] * config["num_gpu_blocks"])
    by_priority = config.get("policy", "fcfs") == "priority"
    native.order = _native.QueueOrder.PRIORITY if by_priority else _native.QueueOrder.FCFS
    native.num_speculative_tokens = resolved["num_spec_tokens"]
    native.num_lookahead_tokens = resolved["num_lookahead_tokens"]
    kv = _native.KvCacheConfig()
    kv.num_blocks = config["num_gpu_blocks"]
    kv.block_size = config.get("block_size", 16)
    kv.max_model_len = config.get("max_model_len", DEFAULT_MAX_MODEL_LEN)
    kv.prefix_caching = config.get("enable_prefix_caching", False)
    native.kv = kv
    return native


def _program(max_tokens: int, max_seqs: int) -> "_native.Program":
    """The recordings' linear step time as a step program without attention."""
    exact = np.arange(max_tokens + 1, dtype=np.int64)
    per_token = _native.Operator(
        "tokens", _native.NodeKind.COMPUTE, _native.Feature.TOKENS, 0, 1, STEP_PS + TOKEN_PS * exact,
        np.zeros(max_tokens + 1, np.uint8),
    )  # fmt: skip
    per_sequence = _native.Operator(
        "sequences", _native.NodeKind.COMPUTE, _native.Feature.SEQUENCES, 0, 1,
        SEQUENCE_PS * np.arange(max_seqs + 1, dtype=np.int64), np.zeros(max_seqs + 1, np.uint8),
    )  # fmt: skip
    zero = np.zeros(1, np.int64)
    none = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
    return _native.Program([per_token, per_sequence], none, exact.astype(np.int32), _native.LightFloor(), 0)


def _run(case: Case) -> Iterator[Case]:
    config, resolved, requests = case["config"], case["resolved"], case["requests"]
    content = _content(requests)
    order = sorted(range(len(requests)), key=lambda i: requests[i]["arrival"])
    n = len(requests)
    offsets, keys = content.offsets(), content.keys()
    picked = [keys[offsets[i] : offsets[i + 1]] for i in order]
    simulation = _native.Simulation(
        arrival_ps=np.array([round(requests[i]["arrival"] * 1e6) * PS_PER_US for i in order], np.int64),
        input_tokens=np.array([sum(length for _, length in requests[i]["segments"]) for i in order], np.int32),
        output_tokens=np.array([requests[i]["output_len"] for i in order], np.int32),
        model=np.zeros(n, np.int16),
        next_call=np.full(n, -1, np.int32),
        tool_delay_ps=np.zeros(n, np.int64),
        priority=np.array([requests[i].get("priority", 0) for i in order], np.int32),
        key_offsets=np.cumsum([0, *map(len, picked)], dtype=np.int64),
        keys=np.concatenate([*picked, np.empty(0, np.uint64)]),
        granularity=1,
        series_interval_ps=0,
    )
    scheduler = scheduler_config(config, resolved)
    scheduler.accepted_draft_tokens = case.get("accepted_draft_tokens", 0)
    group = _native.GroupConfig()
    group.depth = resolved["max_concurrent_batches"]
    most = scheduler.max_num_scheduled_tokens
    simulation.add_group(group, scheduler, _program(most, scheduler.max_num_seqs), record_schedule=True)
    while not simulation.run(PS_PER_S):
        pass
    yield from _steps(simulation.schedule(0), [requests[i]["id"] for i in order])


def _steps(columns: dict[str, Any], ids: list[str]) -> Iterator[Case]:
    """The native record in the form of `_normalise`."""
    steps = len(columns["time_ps"])
    by_step: dict[str, list[list[str]]] = {}
    for name in ("finished", "preempted"):
        lists: list[list[str]] = [[] for _ in range(steps)]
        for step, request in zip(columns[f"{name}_step"], columns[f"{name}_request"], strict=True):
            lists[step].append(ids[request])
        by_step[name] = lists
    offsets = columns["item_offsets"]
    for i in range(steps):
        items = range(offsets[i], offsets[i + 1])
        names = [ids[columns["item_request"][j]] for j in items]
        yield {
            "schedule_ps": int(columns["time_ps"][i]),
            "end_ps": int(columns["end_ps"][i]),
            "scheduled": [
                (name, int(columns["item_tokens"][j]), int(columns["item_computed"][j]))
                for name, j in zip(names, items, strict=True)
            ],
            "drafts": {
                name: int(columns["item_drafts"][j])
                for name, j in zip(names, items, strict=True)
                if columns["item_drafts"][j]
            },
            "running": int(columns["running"][i]),
            "waiting": int(columns["waiting"][i]),
            "free_blocks": int(columns["free_blocks"][i]),
            "free_blocks_after": int(columns["free_blocks_after"][i]),
            "preempted": sorted(by_step["preempted"][i]),
            "finished": sorted(by_step["finished"][i]),
        }
