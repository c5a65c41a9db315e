"""Tiny runs of one group with a given step time, and their schedules as lists."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from simulations import clients, simulation

from llmsim import _native

MS = 10**9
MOST_EVENTS = 500_000
"""A run that needs more has two requests that take each other's memory for ever."""
STEP_MS = 1
"""Every step of a tiny run takes one millisecond, whatever it runs."""
LACKS = {one["name"]: one["lacks"] for one in _native.schedulers()}
"""What each scheduler does not go with."""
SCHEDULERS = ("vllm_v1", *sorted(LACKS.keys() - {"vllm_v1"}))
OTHERS = SCHEDULERS[1:]
"""Schedulers besides vllm_v1."""
WHOLE_PROMPTS = ("mlfq", "orca", "static")
"""Schedulers that run whole prompts: their token budget has to hold the longest one."""
CUTS_TO_BLOCKS = ("tensorrt_llm",)
"""Schedulers whose token budget has to hold a block."""
PIPELINED = tuple(name for name in OTHERS if "pp_size" not in LACKS[name])
"""Schedulers besides vllm_v1 that keep several batches in flight."""


def most_slots(scheduler: str, prompt: int, answer: int) -> int:
    """Slots that a request must find at most; only TensorRT-LLM keeps one for the last token."""
    return prompt + answer - (scheduler != "tensorrt_llm")


Step = list[tuple[int, int, int]]


@dataclass
class Options:
    """One group; `extra` are further fields of the configuration; those that begin
    with a scheduler's name are its parameters, and nothing to others."""

    scheduler: str = "vllm_v1"
    blocks: int = 1001
    block_size: int = 16
    max_seqs: int = 8
    budget: int = 256
    max_model_len: int = 1000
    caching: bool = False
    order: str = "FCFS"
    ttft_target_ms: int = 0
    prefill_ms_per_token: float = 0
    depth: int = 1
    per_token_ms: float = 0
    decode_only: bool = False
    keys: list[list[int]] | None = None
    priority: list[int] = field(default_factory=list)
    timeout_ms: list[float] = field(default_factory=list)
    cancel_tokens: list[int] = field(default_factory=list)
    clients: int = 0
    think_ms: list[float] = field(default_factory=list)
    next_call: list[int] = field(default_factory=list)
    api_latency_ms: float = 0
    api_latency_per_token_ms: float = 0
    api_server_ms: tuple[float, float, float] = (0, 0, 0)
    """Work of its API server's processes on a request, a prompt token and a chunk of an answer."""
    api_processes: int = 1
    ranking: str = ""
    """A native ranking; empty: none."""
    ranking_parameters: dict[str, int] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


def program(budget: int, max_seqs: int, per_token_ms: float = 0) -> Any:
    """A step takes STEP_MS plus a time per token."""
    tokens = STEP_MS * MS + np.arange(budget + 1, dtype=np.int64) * int(per_token_ms * MS)
    operators = [
        _native.Operator(
            name, _native.NodeKind.COMPUTE, feature, 0, 1, ps, np.zeros(len(ps), np.uint8)
        )
        for name, feature, ps in (
            ("tokens", _native.Feature.TOKENS, tokens),
            ("sequences", _native.Feature.SEQUENCES, np.zeros(max_seqs + 1, np.int64)),
        )
    ]
    zero = np.zeros(1, np.int64)
    attention = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
    return _native.Program(
        operators, attention, np.arange(budget + 1, dtype=np.int32), _native.LowerBound(), 0
    )  # fmt: skip


def configuration(options: Options) -> Any:
    """The native scheduler's configuration."""
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.block_size, kv.max_model_len = (
        options.blocks,
        options.block_size,
        options.max_model_len,
    )
    kv.prefix_caching = options.caching
    queue = _native.QueueConfig()
    orders_itself = "queue_order" in LACKS.get(options.scheduler, {})
    queue.order = getattr(_native.QueueOrder, "FCFS" if orders_itself else options.order)
    queue.ttft_target_ps = options.ttft_target_ms * MS
    queue.prefill_ps_per_token = int(options.prefill_ms_per_token * MS)
    config = _native.SchedulerConfig()
    config.scheduler = options.scheduler
    config.chunked_prefill = options.scheduler not in WHOLE_PROMPTS
    if options.scheduler == "vllm_v1":
        config.async_scheduling = options.depth == 2
    config.max_num_seqs, config.max_num_scheduled_tokens = options.max_seqs, options.budget
    config.kv, config.queue, config.decode_only = kv, queue, options.decode_only
    for name, value in options.extra.items():
        if name.startswith("kv_"):
            setattr(config.kv, name.removeprefix("kv_"), value)
        elif not name.startswith(tuple(f"{one}_" for one in LACKS)):
            setattr(config, name, value)
    prefix = f"{options.scheduler}_"
    config.parameters = {
        name.removeprefix(prefix): value
        for name, value in options.extra.items()
        if name.startswith(prefix)
    }
    if options.ranking:
        if options.next_call:
            config.sessions = _native.Sessions(np.array(options.next_call, np.int32))
        config.rank_by(options.ranking, options.ranking_parameters)
    return config


def run(requests: list[tuple[float, int, int]], options: Options) -> Any:
    """Runs (arrival in ms, or -1 for a later call, input, output) rows, in order of arrival, to the
    end.
    """
    sim = built(requests, options)
    for _ in range(MOST_EVENTS // 10_000):
        if sim.run(10_000):
            return sim
    raise AssertionError(
        f"no end after {MOST_EVENTS} events: {sim.num_finished} of {len(requests)} requests have "
        "finished"
    )


def built(requests: list[tuple[float, int, int]], options: Options, policies: Any = None) -> Any:
    """The simulation of the same rows before its first event; `policies` are a scheduler's from
    outside.
    """
    group = _native.GroupConfig()
    group.depth, group.api_latency_ps = options.depth, round(options.api_latency_ms * MS)
    group.api_latency_per_token_ps = round(options.api_latency_per_token_ms * MS)
    request, prompt_token, chunk = (round(one * MS) for one in options.api_server_ms)
    server = group.api_server
    server.processes, server.request_ps = options.api_processes, request
    server.prompt_token_ps, server.chunk_ps = prompt_token, chunk
    scheduler = configuration(options)
    if policies is not None:
        scheduler = scheduler.with_policies(policies)
    no_calls = [-1] * len(requests)
    scheduler.sessions = _native.Sessions(np.array(options.next_call or no_calls, np.int32))
    step = program(options.budget, options.max_seqs, options.per_token_ms)
    spec = _native.GroupSpec(
        group,
        scheduler,
        step,
        record_steps=True,
        record_schedule=True,
    )
    return simulation(
        [(ps_of(arrival), tokens, answer) for arrival, tokens, answer in requests],
        [spec],
        keys=options.keys,
        granularity=options.block_size,
        priority=options.priority,
        next_call=options.next_call,
        clients=clients(
            [ps_of(ms) for ms in options.timeout_ms],
            options.cancel_tokens,
            options.clients,
            [ps_of(ms) for ms in options.think_ms],
        ),
    )


def ps_of(ms: float) -> int:
    """Milliseconds as ps; what is negative says never, or after another row."""
    return round(ms * MS) if ms >= 0 else -1


def schedule(sim: Any) -> list[Step]:
    """Per step, (request, tokens scheduled, tokens computed before) of everything it runs, in
    execution order.
    """
    columns = sim.schedule(0)
    items = list(
        zip(
            *(columns[f"item_{name}"].tolist() for name in ("request", "tokens", "computed")),
            strict=True,
        )
    )
    offsets = columns["item_offsets"].tolist()
    return [items[a:b] for a, b in pairwise(offsets)]


def preempted(sim: Any) -> list[tuple[int, int]]:
    """(step, request) of every preemption."""
    columns = sim.schedule(0)
    return list(
        zip(columns["preempted_step"].tolist(), columns["preempted_request"].tolist(), strict=True)
    )


def free_blocks(sim: Any) -> list[int]:
    """Free KV blocks after each step was scheduled."""
    values: list[int] = sim.schedule(0)["free_blocks"].tolist()
    return values


def order_of_first_tokens(sim: Any) -> list[int]:
    """Requests by the time of their first token; ties by row."""
    rows: list[int] = np.argsort(sim.requests()["first_token_ps"], kind="stable").tolist()
    return rows
