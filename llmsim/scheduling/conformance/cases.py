"""Schedules under test: one group, requests with known tokens, a given step time, and the steps
that result.

A case holds `config` (vLLM's option names, `num_gpu_blocks` with the null block), `resolved` (what
the engine made of it) and `requests` (id, arrival in s, `segments` [[segment, length], ...],
output_len, priority, and `cancel_after` s or `cancel_after_tokens` where the client gives up;
`images` are the places of segments that an encoder computes). With `config["connector"]` KV comes
from another group or a pool (`conformance.connectors`). Token j of segment s is s*100000+j;
the k-th output token of request i is -(i*100000+k)-2. A step takes 5 ms plus 10 us per scheduled
token plus 20 us per request.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct, field

from llmsim import _native
from llmsim.config.engine.profile import DEFAULT_PROFILE, EngineProfile, load_profile
from llmsim.config.engine.version_rules import kv_tables, set_rules
from llmsim.core import PS_PER_US
from llmsim.scheduling.conformance.connectors import (
    POOL,
    GroupOfCase,
    groups_of,
    load_failures,
    offloading_config,
    parts_between,
    ranks_of,
)

STEP_PS = 5_000 * PS_PER_US
TOKEN_PS = 10 * PS_PER_US
SEQUENCE_PS = 20 * PS_PER_US
DEFAULT_MAX_MODEL_LEN = 8192
EVENTS_PER_CALL = 1_000_000
_PER_ADAPTER = 1 << 40
_COUNTS = (
    "running",
    "waiting",
    "free_blocks",
    "free_blocks_after",
    "free_states",
    "free_states_after",
)

Case = dict[str, Any]
MakeGroup = Callable[
    ["_native.GroupConfig", "_native.SchedulerConfig", "_native.Program"], "_native.GroupSpec"
]


def by_arrival(case: Case) -> list[int]:
    """Indices of the case's requests in order of arrival; rows of the simulation."""
    requests = case["requests"]
    return sorted(range(len(requests)), key=lambda i: requests[i]["arrival"])


def prompt_tokens(request: Case) -> list[int]:
    """Token ids of a request's prompt."""
    return [s * 100_000 + j for s, length in request["segments"] for j in range(length)]


def images(request: Case) -> list[tuple[int, int, int]]:
    """First token, tokens and segment of each part of the prompt that an encoder computes."""
    found, offset = [], 0
    for place, (segment, length) in enumerate(request["segments"]):
        if place in request.get("images", ()):
            found.append((offset, length, segment))
        offset += length
    return found


def output_token(index: int, k: int) -> int:
    """The k-th token (from 0) that request `index` of the case receives; never equal to a prompt
    token.
    """
    return -(index * 100_000 + k) - 2


def native_group(
    group: "_native.GroupConfig", scheduler: "_native.SchedulerConfig", program: "_native.Program"
) -> "_native.GroupSpec":
    """The group under test with our own scheduler."""
    return _native.GroupSpec(group, scheduler, program, record_schedule=True)


MakeSimulation = Callable[["_native.Source", "_native.GroupSpec"], "_native.SimulationConfig"]


class GroupSteps(Struct, frozen=True):
    """The steps of each group of a case, what the loop says where nobody runs what is left, and
    what is known of the KV that moved between groups, by column.
    """

    groups: list[list[Case]]
    stalled: Exception | None
    transfers: dict[str, Any] = field(default_factory=dict)

    @property
    def stands_still(self) -> bool:
        """Whether requests are left that nobody runs."""
        return self.stalled is not None


def run_groups(
    case: Case,
    make_group: MakeGroup = native_group,
    make_simulation: MakeSimulation | None = None,
) -> GroupSteps:
    """Runs a case; its steps: times in ps, `scheduled` (id, tokens, computed before), gauges, who
    finished. `make_simulation` puts other groups, which are not the case's, beside its only one.
    """
    groups = groups_of(case)
    specs = [group_spec(case, i, group, make_group) for i, group in enumerate(groups)]
    if make_simulation is None:
        config = _native.SimulationConfig(source(case), specs, **parts_between(case))
    else:
        config = make_simulation(source(case), specs[0])
    return run_simulation(case, config, range(len(groups)))


def run_simulation(
    case: Case, config: "_native.SimulationConfig", groups: Iterable[int]
) -> GroupSteps:
    """The steps of some groups of a simulation of a case's requests."""
    names = [case["requests"][i]["id"] for i in by_arrival(case)]
    simulation = _native.Simulation(config)
    stalled = None
    try:
        while not simulation.run(EVENTS_PER_CALL):
            pass
    except (_native.Stalled, _native.Circular) as error:
        stalled = error
    steps = [list(_steps(simulation.schedule(i), names)) for i in groups]
    if max(ranks_of(case)) > 1:  # a rank's loop goes round without calling its scheduler
        steps = [[one for one in of_group if one["scheduled"]] for of_group in steps]
    return GroupSteps(steps, stalled, simulation.kv_transfers() or {})  # type: ignore[arg-type]


def run_case(
    case: Case,
    make_group: MakeGroup = native_group,
    make_simulation: MakeSimulation | None = None,
) -> Iterator[Case]:
    """The steps of a case as `run_groups` has them, those of the first group first."""
    ran = run_groups(case, make_group, make_simulation)
    if ran.stalled is not None:
        raise ran.stalled
    for steps in ran.groups:
        yield from steps


def group_spec(
    case: Case, index: int, group: GroupOfCase, make_group: MakeGroup
) -> "_native.GroupSpec":
    """One group of a case."""
    scheduler = scheduler_config(case)
    kv = scheduler.kv
    kv.num_blocks = group.num_blocks
    scheduler.kv = kv
    scheduler.watermark_blocks = int(case["resolved"]["watermark"] * group.num_blocks)
    scheduler.kv_producer = group.role == _native.Role.PREFILL
    scheduler.kv_consumer = group.role == _native.Role.DECODE
    # A prompt that is computed for another group asks for one token.
    scheduler.output_length_known |= scheduler.kv_producer
    connector = case["config"].get("connector", {})
    scheduler.prefill_all_but_last_token = connector.get("state_bytes", 0) > 0
    scheduler.tiered = connector.get("kind") == POOL
    scheduler.load_failures = load_failures(case)
    scheduler.offloading = offloading_config(case)
    native = _native.GroupConfig()
    native.index, native.role = index, group.role
    native.depth = case["resolved"]["max_concurrent_batches"]
    return make_group(native, scheduler, step_program(case, group.ranks))


def source(case: Case, models: int = 1) -> "_native.Source":
    """The requests of a case, in order of arrival, which ask for so many models in turn."""
    order = by_arrival(case)
    requests, n = [case["requests"][i] for i in order], len(order)
    hasher = _hashed(order, requests)
    lengths = [sum(length for _, length in request["segments"]) for request in requests]
    return _native.Source(
        arrival_ps=np.array([_ps_of(request["arrival"]) for request in requests], np.int64),
        input_tokens=np.array(lengths, np.int32),
        output_tokens=np.array([request["output_len"] for request in requests], np.int32),
        model=np.arange(n, dtype=np.int16) % models,
        next_call=np.full(n, -1, np.int32),
        tool_delay_ps=np.zeros(n, np.int64),
        priority=np.array([request.get("priority", 0) for request in requests], np.int32),
        key_offsets=hasher.offsets(),
        keys=hasher.keys(),
        granularity=1,
        clients=_clients(requests),
        adapter=np.array([request.get("lora", 0) for request in requests], np.int32),
    )


def _hashed(order: list[int], requests: list[Case]) -> "_native.ContentHasher":
    """Contents of prompts and answers; what an adapter computes is of no use to another one."""
    hasher = _native.ContentHasher(1)
    for i, request in zip(order, requests, strict=True):
        own = request.get("lora", 0) * _PER_ADAPTER
        answer = [output_token(i, k) - own for k in range(request["output_len"])]
        hasher.add([token + own for token in prompt_tokens(request)], answer)
    return hasher


def _clients(requests: list[Case]) -> "_native.ClientsConfig":
    timeouts = [
        _ps_of(request["cancel_after"]) if "cancel_after" in request else -1 for request in requests
    ]
    limits = [request.get("cancel_after_tokens", 0) for request in requests]
    return _native.ClientsConfig(
        timeout_ps=np.array(timeouts, np.int64),
        cancel_after_tokens=np.array(limits, np.int32),
        count=0,
        think_ps=np.empty(0, np.int64),
    )


def _ps_of(seconds: float) -> int:
    """Whole microseconds as ps."""
    return round(seconds * 1e6) * PS_PER_US


def scheduler_config(case: Case) -> "_native.SchedulerConfig":
    """The native scheduler's options for a case."""
    config, resolved = case["config"], case["resolved"]
    native = _native.SchedulerConfig()
    native.max_num_seqs = config["max_num_seqs"]
    native.max_num_scheduled_tokens = resolved["max_num_scheduled_tokens"]
    native.long_prefill_token_threshold = config.get("long_prefill_token_threshold", 0)
    native.chunked_prefill = config.get("enable_chunked_prefill", True)
    native.reserve_full_isl = resolved["reserve_full_isl"]
    native.async_scheduling = config.get("async_scheduling", False)
    native.output_length_known = not config.get("ends_with_stop_token", False)
    stages = config.get("pipeline_parallel_size", 1)
    native.decode_interval = (
        stages if native.async_scheduling and resolved.get("use_v2_model_runner", False) else 1
    )
    native.defer_block_free = resolved.get("max_concurrent_batches", 1) > 1
    by_priority = config.get("policy", "fcfs") == "priority"
    native.order = _native.QueueOrder.PRIORITY if by_priority else _native.QueueOrder.FCFS
    native.speculation = speculation(case)
    profile = load_profile(resolved.get("engine_profile", DEFAULT_PROFILE))
    set_rules(native.rules, profile.rules)
    native.encoder = _encoder(case, profile)
    _set_limits(native.limits, case, profile)
    kv = _native.KvCacheConfig()
    kv.num_blocks = config["num_gpu_blocks"]
    kv.block_size = config.get("block_size", 16)
    kv.max_model_len = config.get("max_model_len", DEFAULT_MAX_MODEL_LEN)
    kv.prefix_caching = config.get("enable_prefix_caching", False)
    kv.key_lookahead = resolved.get("num_hash_lookahead_tokens", 0)
    kv.drops_last_hit = resolved.get("use_eagle", False) and kv.key_lookahead == 0
    kv.unsettled_tokens = max(0, native.speculation.prompt_lookahead - 1)
    if "kv_windows" in config:
        batches = resolved["max_concurrent_batches"]
        tokens = config["max_num_batched_tokens"]
        retention = resolved.get("prefix_cache_retention_interval", -1)
        kv.tables = kv_tables(
            config["kv_windows"],
            config.get("kv_block_sizes", []),
            tokens,
            batches,
            profile.rules,
            retention,
            cached=kv.prefix_caching,
            checkpoint_alignment=config.get("checkpoint_alignment", 0),
            match_unit=config.get("prefix_match_unit", 0),
            held_behind=kv.unsettled_tokens,
        )
    native.kv = kv
    return native


def _encoder(case: Case, profile: EngineProfile) -> "_native.EncoderConfig":
    """Budgets of the encoder; without images nobody asks for them."""
    config, native = case["config"], _native.EncoderConfig()
    if "encoder_tokens" not in config:
        return native
    set_rules(native.rules, profile.rules)
    native.step_tokens = config["encoder_tokens"]
    native.cache_tokens = config["encoder_cache_tokens"]
    native.whole_inputs = config.get("disable_chunked_mm_input", False)
    rows = [images(case["requests"][i]) for i in by_arrival(case)]
    offsets = np.cumsum([0, *(len(row) for row in rows)]).tolist()
    native.inputs = _native.EncoderInputs(offsets, [one for row in rows for one in row])
    return native


def _set_limits(limits: "_native.StepLimits", case: Case, profile: EngineProfile) -> None:
    """Sets the limits of a step by the rules of the release that resolved the case; a recording
    names none (0.24).
    """
    config, resolved = case["config"], case["resolved"]
    limits.adaptive_threshold = config.get("long_prefill_token_threshold_adaptive", False)
    limits.max_num_active_seqs = config.get("max_num_active_seqs", 0)
    limits.max_loras = config.get("max_loras", 0)
    limits.paces_itself = profile.schedules_by("paces_itself")
    limits.pads_hits = profile.schedules_by("pads_hits")
    limits.pads_within_context = profile.schedules_by("pads_within_context")
    limits.prefill_schedule_interval = config.get("prefill_schedule_interval", 1)
    limits.lone_prompt_uncapped = profile.lone_prompt_uncapped
    limits.pads_new_decodes = profile.pads_new_decodes
    if profile.second_token_budget:
        limits.input_budget = config["max_num_batched_tokens"]
        limits.draft_slots = resolved["draft_slots"]


def speculation(case: Case) -> "_native.SpeculationConfig":
    """What the case says of drafts: `accepted_draft_tokens` of them hold in every step, or those of
    `acceptance`, a chance in 2^-53 for each position; `proposal_chance` likewise.
    """
    resolved = case["resolved"]
    native = _native.SpeculationConfig()
    native.tokens, native.lookahead = resolved["num_spec_tokens"], resolved["num_lookahead_tokens"]
    native.prompt_lookahead = resolved.get("num_prefill_lookahead_tokens", 0)
    native.tokens_by_sequences = resolved.get("tokens_by_sequences", [])
    acceptance = _native.Acceptance()
    acceptance.chance = case.get("acceptance", [1 << 53] * case.get("accepted_draft_tokens", 0))
    native.acceptance = acceptance
    native.proposal_chance = case.get("proposal_chance", 1 << 53)
    return native


def step_program(case: Case, ranks: int = 1) -> "_native.Program":
    """The given step time as a step program without attention; each of several ranks waits for the
    others at the end.
    """
    resolved = case["resolved"]
    max_tokens = resolved.get("max_step_tokens", resolved["max_num_scheduled_tokens"])
    max_seqs = case["config"]["max_num_seqs"]

    def table(name: str, feature: Any, ps: Any) -> Any:
        return _native.Operator(
            name, _native.NodeKind.COMPUTE, feature, 0, 1, ps, np.zeros(len(ps), np.uint8)
        )

    tokens = np.arange(max_tokens + 1, dtype=np.int64)
    sequences = np.arange(max_seqs + 1, dtype=np.int64)
    operators = [
        table("tokens", _native.Feature.TOKENS, STEP_PS + TOKEN_PS * tokens),
        table("sequences", _native.Feature.SEQUENCES, SEQUENCE_PS * sequences),
    ]
    if ranks > 1:
        size = ranks * max_tokens + 1
        at_the_end = np.zeros(size, np.int64), np.zeros(size, np.uint8)
        kind, feature = _native.NodeKind.COLLECTIVE, _native.Feature.GATHERED
        operators.append(_native.Operator("end", kind, feature, 0, 1, *at_the_end))
    zero = np.zeros(1, np.int64)
    attention = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
    return _native.Program(operators, attention, tokens.astype(np.int32), _native.LowerBound(), 0)


def _steps(columns: dict[str, Any], ids: list[str]) -> Iterator[Case]:
    steps = len(columns["time_ps"])
    lists: dict[str, list[list[str]]] = {}
    for name in ("finished", "preempted"):
        lists[name] = [[] for _ in range(steps)]
        for step, request in zip(columns[f"{name}_step"], columns[f"{name}_request"], strict=True):
            lists[name][step].append(ids[request])
    column = {name: values.tolist() for name, values in columns.items()}
    for i in range(steps):
        items = range(column["item_offsets"][i], column["item_offsets"][i + 1])
        names = [ids[column["item_request"][j]] for j in items]
        yield {
            "schedule_ps": column["time_ps"][i],
            "end_ps": column["end_ps"][i],
            "scheduled": [
                (name, column["item_tokens"][j], column["item_computed"][j])
                for name, j in zip(names, items, strict=True)
            ],
            "drafts": {
                name: column["item_drafts"][j]
                for name, j in zip(names, items, strict=True)
                if column["item_drafts"][j]
            },
            **{name: column[name][i] for name in _COUNTS},
            "preempted": sorted(lists["preempted"][i]),
            "finished": sorted(lists["finished"][i]),
        }
