"""Candidate causes of a slow percentile: each reads its symptom off the run and names its remedies.

A candidate is only named as a cause when a run with one of its remedies confirms it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim.api.why import changes
from llmsim.api.why.blockers import Blockers
from llmsim.api.why.changes import Change
from llmsim.api.why.machines import (
    batch_share,
    busy_share,
    collective_share,
    crowded_share,
    gap_share,
    launch_share,
    slowdowns,
    step_durations_ps,
    waiting_steps,
)
from llmsim.api.why.seen import WAITING, Rows, Seen
from llmsim.config.engine.args import OTHER_NAMES
from llmsim.core import Int64
from llmsim.plurals import counted, plural

Flags = NDArray[np.bool_]

WAITED = 0.3
"""Share of the cohort's time in queue, wait and preemption from which waiting is a symptom."""
MOSTLY = 2 / 3
"""The same for too few devices, steps shared with other prompts included: some of both is the price
of devices that are busy.
"""
HELD_UP = 0.5
"""Share of the cohort's decode time that prompts add, from which it is a symptom: less of it is the
price of every engine that computes prompts and decodes together.
"""
MOVED = 0.15
"""Share of the cohort's time in transfers, or idle for the host, from which it is a symptom."""
LONG, FEW = 8.0, 0.2
"""A prompt is long from LONG times the median on, as long as at most FEW of all prompts are."""
LONG_THEMSELVES = 20.0
"""The same where the long prompts are the slowest requests: prompts of most loads differ by less,
and the longest ones come last in any.
"""
REJECTED = 0.6
"""Share of the verified drafts that are rejected, from which it is a symptom."""
WAITS_FOR, NEVER_IDLE = 0.5, 0.2
"""One side of attention and FFN waits for the other where it idles so much, and the other so
little.
"""
SLOWER = 1.25
"""Step time over that of its peers at equal batches, from which a group is a straggler."""
UNEVEN = 1.25
"""Prompt tokens of a group over its pool's mean, from which the load is uneven."""
BURST = 2.5
"""Arrivals per second before the cohort over the mean, from which they are a burst."""
MORE_SLOTS = 8
"""By how much a remedy multiplies LoRA slots at most: some too few are hardly better than one."""
THRESHOLD = "long_prefill_token_threshold"
FACTOR = 4
"""By how much remedies enlarge a limit: enough that a limit which was the cause no longer is."""


class Kind(IntEnum):
    """Causes of a lower kind are named first where they explain half of what a higher one does."""

    OUTLIER = 0
    """One instance that is worse than its peers, whatever it is that makes it worse."""
    FLAW = 1
    """A part or a setting that is worse than it need be."""
    LOAD = 2
    """How requests arrive and mix."""
    SIZE = 3
    """Too few devices: more of them help against every wait."""


@dataclass(frozen=True)
class Candidate:
    """A cause that the run's own figures suggest."""

    name: str
    group: int | None
    resource: str
    share: float
    """The share of the cohort's time that it explains."""
    evidence: str
    remedies: tuple[Change, ...] = field(compare=False)
    kind: Kind = Kind.FLAW


def candidates(seen: Seen) -> list[Candidate]:
    """Every cause whose symptom the run shows."""
    return [found for rule in RULES for found in rule(seen)]


def _slow_links(seen: Seen) -> Iterator[Candidate]:
    """Collectives or KV transfers that take a large part of the time."""
    faster = changes.faster_links(FACTOR, f"links with {FACTOR} times the bandwidth")
    share, group = seen.share("communication"), _main_group(seen)
    if share >= MOVED:
        evidence = (
            f"collectives take {share:.0%} of the time of the slowest requests and "
            f"{collective_share(seen.result, group):.0%} of all steps of group {group}"
        )
        yield Candidate("slow link", group, "network", share, evidence, (faster,))
    share = seen.share("m2n") if "m2n" in seen.parts else 0.0
    if share >= MOVED:
        evidence = (
            f"rows on their way between attention and FFN take {share:.0%} of the time of the "
            "slowest requests"
        )
        yield Candidate("slow link", group, "network", share, evidence, (faster,))
    share = seen.share("kv_transfer")
    if share >= MOVED:
        evidence = f"the slowest requests wait {share:.0%} of their time for KV on its way"
        yield Candidate("slow KV transfer", None, "network", share, evidence, (faster,))


def _slow_tier(seen: Seen) -> Iterator[Candidate]:
    """Requests that wait for KV from host memory, the pool or storage."""
    tiers = [one for one in seen.result.summary["kv_tiers"] or [] if one["recalled_bytes"]]
    share = seen.share("queue", "wait", "kv_transfer")
    if not tiers or seen.metric == "tpot" or share < WAITED:
        return
    recalled_gb = sum(one["recalled_bytes"] for one in tiers) / 1e9
    names = ", ".join(one["name"] for one in tiers)
    evidence = (
        f"{recalled_gb:,.1f} GB of KV are recalled from {names}, and the slowest requests wait "
        f"{share:.0%} of their time"
    )
    remedy = changes.faster_memories(FACTOR, f"KV tiers with {FACTOR} times the bandwidth")
    yield Candidate("slow KV tier", None, "KV", share, evidence, (remedy,))


def _slow_memory(seen: Seen) -> Iterator[Candidate]:
    """Steps that wait for copies of weights, or for memory and processors that compute."""
    share = seen.share("offload") if "offload" in seen.parts else 0.0
    if share < MOVED:
        return
    evidence = (
        "copies of weights, or memory and processors that compute, take "
        f"{share:.0%} of the time of the slowest requests"
    )
    remedy = changes.faster_memories(
        FACTOR, f"memories and links beside the devices with {FACTOR} times the bandwidth"
    )
    yield Candidate("slow offloading", _main_group(seen), "network", share, evidence, (remedy,))


def _switch_of_layouts(seen: Seen) -> Iterator[Candidate]:
    """Requests that no group has, or whose KV is computed again, while layouts are switched."""
    layouts = seen.result._prepared.lowered.layouts
    if layouts is None or (share := seen.share("reconfigure")) < MOVED:
        return
    visited = dict.fromkeys(layout for layout, _ in seen.result._results.layout_visits)
    names = [layouts.plans[layout].name for layout in visited]
    remedies = [changes.pinned(one, f"the layout {one} for the whole run") for one in names]
    if layouts.cost.kv != "move" and layouts.cost.fixed_s is None:
        remedies.append(changes.kv_moves("KV that moves on a switch instead of being lost"))
    count = len(seen.result._results.reconfigurations)
    evidence = (
        f"{counted(count, 'switch of layouts takes', 'switches of layouts take')} {share:.0%} "
        "of the time of the slowest requests"
    )
    yield Candidate("switch of layouts", None, "layouts", share, evidence, tuple(remedies))


def _small_kv_cache(seen: Seen) -> Iterator[Candidate]:
    share = seen.share(*WAITING)
    for group in _groups(seen):
        info = seen.result._results.groups[group]
        full = _full_share(seen, group)
        lost = _preemptions(seen, group)
        if share < WAITED or (full < 0.5 and not lost):
            continue
        blocks = info.num_blocks * FACTOR
        of_group = {one: seen.result._results.groups[one].num_blocks for one in seen.pool_of(group)}
        raised = _below(of_group, blocks)
        remedy = changes.instance_keys(
            seen.result,
            raised,
            {"num_gpu_blocks_override": blocks},
            f"{FACTOR} times the KV cache ({blocks} blocks for {_whose(seen, group, raised)})",
        )
        evidence = (
            f"the {info.num_blocks} KV blocks of group {group} are full in {full:.0%} of the steps "
            f"in which others wait, and {lost} preemptions hit the slowest requests"
        )
        yield Candidate("small KV cache", group, "KV", share, evidence, (remedy,))


def _long_prompts(seen: Seen) -> Iterator[Candidate]:
    tokens = seen.input_tokens
    limit = LONG * float(np.median(tokens))
    blocking = np.flatnonzero(tokens > limit)
    few = 0 < len(blocking) <= FEW * len(tokens)
    if seen.metric == "tpot" or not few or np.median(tokens[seen.cohort]) > limit:
        return
    share = Blockers(seen).covered_by(blocking)
    if share < WAITED:
        return
    group = _main_group(seen)
    budget = seen.result._prepared.lowered.groups[group].engine.max_num_batched_tokens
    chunk = max(256, budget // 8)
    prompts = f"{counted(len(blocking), 'prompt')}"
    remedies = (
        changes.instance_keys(
            seen.result,
            seen.pool_of(group),
            {"long_prefill_token_threshold": chunk},
            f"at most {chunk} tokens of a prompt in a step (long_prefill_token_threshold)",
        ),
        changes.without_long_prompts(
            int(limit), f"the {prompts} above {limit:.0f} tokens sent elsewhere"
        ),
    )
    evidence = (
        f"during {share:.0%} of their time to the first token, the slowest requests share their "
        f"group with {plural(len(blocking), '', 'one of ')}{prompts} above {limit:.0f} tokens"
    )
    yield Candidate("long prompts ahead", group, "compute", share, evidence, remedies)


def _long_themselves(seen: Seen) -> Iterator[Candidate]:
    """The slowest requests are the few whose own prompts take long to compute."""
    tokens = seen.input_tokens
    limit = LONG_THEMSELVES * float(np.median(tokens))
    count = int((tokens > limit).sum())
    share = seen.share("prefill")
    few = 0 < count <= FEW * len(tokens)
    if seen.metric == "tpot" or not few or np.median(tokens[seen.cohort]) <= limit:
        return
    if share < MOSTLY:
        return
    group = _main_group(seen)
    remedies = (
        changes.wider(seen.result, seen.pool_of(group)),
        changes.without_prompts(
            int(limit), f"without the {counted(count, 'prompt')} above {limit:.0f} tokens"
        ),
    )
    evidence = (
        f"the slowest requests compute their own prompts of {np.median(tokens[seen.cohort]):,.0f} "
        f"tokens for {share:.0%} of their time; the median prompt has {np.median(tokens):,.0f}"
    )
    yield Candidate("long prompts", group, "compute", share, evidence, remedies, Kind.LOAD)


def _prompts_between_decodes(seen: Seen) -> Iterator[Candidate]:
    """Steps that carry prompts hold up the decodes beside them."""
    if seen.metric != "tpot":
        return
    group = _main_group(seen)
    steps, took = seen.steps_of(group), step_durations_ps(seen, group)
    prepared = seen.result._prepared
    apart = prepared.deployment.disaggregation is not None
    apart = apart or prepared.deployment.groups[group].afd is not None
    if apart or prepared.lowered.layouts is not None:
        return
    mixed = (steps["prefill_tokens"] > 0) & (steps["decode_sequences"] > 0)
    alone = (steps["prefill_tokens"] == 0) & (steps["decode_sequences"] > 0)
    if not mixed.any() or not alone.any():
        return
    share = _held_up(seen, group, mixed, took - np.median(took[alone]))
    if share < HELD_UP:
        return
    remedy = changes.disaggregated(seen.result, seen.pool_of(group))
    evidence = (
        f"steps with prompts and decodes take {np.median(took[mixed]) / 1e9:.1f} ms against "
        f"{np.median(took[alone]) / 1e9:.1f} ms without prompts, which is {share:.0%} of the time "
        "of the slowest requests after their first token"
    )
    yield Candidate(
        "prompts between decodes", group, "compute", share, evidence, (remedy,), Kind.LOAD
    )


def _speculation(seen: Seen) -> Iterator[Candidate]:
    """Drafts that are verified and mostly rejected."""
    requests = seen.result._results.drafts
    if requests is None or seen.metric == "ttft":
        return
    verified = int(requests.verified_tokens[seen.cohort].sum())
    accepted = int(requests.accepted_tokens[seen.cohort].sum())
    share = 1 - accepted / verified if verified else 0.0
    if share < REJECTED:
        return
    evidence = (
        f"{share:.0%} of the {verified} drafts that steps verified for the slowest requests were "
        "rejected"
    )
    remedy = changes.without_speculation("no speculative decoding")
    group = _main_group(seen)
    yield Candidate("drafts that are rejected", group, "scheduler", share, evidence, (remedy,))


def _one_slow_side(seen: Seen) -> Iterator[Candidate]:
    """Attention or FFN devices that the other side waits for."""
    group = _main_group(seen)
    rows = seen.result.summary.get("afd") or []
    mine = [row for row in rows if group in row["attention_groups"]]
    if not mine or seen.metric == "ttft":
        return
    idle = {side: mine[0][f"{side}_idle"] for side in ("attention", "ffn")}
    slow = min(idle, key=lambda side: idle[side])
    other = "ffn" if slow == "attention" else "attention"
    share = float(idle[other])
    if share < WAITS_FOR or idle[slow] > NEVER_IDLE:
        return
    called = {"attention": "attention", "ffn": "FFN"}
    groups = {side: mine[0][f"{side}_groups"] for side in called}
    remedies = (
        changes.devices_of(
            seen.result,
            groups[slow],
            groups[other],
            f"{called[slow]} on devices like the {called[other]}'s",
        ),
        changes.wider(seen.result, groups[slow], f" of the {called[slow]}"),
    )
    evidence = (
        f"{called[other]} devices idle for {share:.0%} of the time in which steps run, "
        f"{called[slow]} devices for {idle[slow]:.0%}"
    )
    name = f"slow {called[slow]} devices"
    yield Candidate(name, groups[slow][0], "compute", share, evidence, remedies)


def _straggler(seen: Seen) -> Iterator[Candidate]:
    group = _main_group(seen)
    pool = seen.pool_of(group)
    if len(pool) < 2:
        return
    slower = slowdowns(seen, pool)
    share = float(np.mean(seen.waiting_group[seen.cohort] == group))
    if slower.get(group, 1.0) < SLOWER or share < 0.5:
        return
    peer = min(pool, key=lambda one: (slower.get(one, 1.0), one))
    remedy = changes.like_peer(seen.result, group, peer, f"group {group} built like group {peer}")
    evidence = (
        f"at equal batches, steps of group {group} take {slower[group]:.2f} times as long as those "
        f"of its peers, and {share:.0%} of the slowest requests are there"
    )
    yield Candidate("straggler", group, "compute", share, evidence, (remedy,), Kind.OUTLIER)


def _router_imbalance(seen: Seen) -> Iterator[Candidate]:
    group = _main_group(seen)
    pool = seen.pool_of(group)
    if len(pool) < 2:
        return
    of_group = seen.prompt_group
    tokens = {one: int(seen.input_tokens[of_group == one].sum()) for one in pool}
    mean = sum(tokens.values()) / len(pool)
    ratio = tokens[group] / mean if mean else 1.0
    of_decodes = seen.metric == "tpot"
    share = seen.share(*WAITING, "decode") if of_decodes else seen.share(*WAITING)
    if ratio < UNEVEN or share < WAITED:
        return
    decodes = seen.result._prepared.deployment.groups[group].pd_type == "decode"
    router = "decode_routing_policy" if decodes else "request_routing_policy"
    used = str(seen.result.inputs.options.get(router, "LOAD"))
    remedies = tuple(
        changes.option(router, name, f"the router {name} instead of {used}")
        for name in ("LOR", "TOKENS", "LOAD")
        if name != used.upper()
    )
    spent = "waiting and decoding" if of_decodes else "waiting"
    evidence = (
        f"the router {used} gives group {group} {ratio:.2f} times the prompt tokens of the mean of "
        f"its {len(pool)} peers, {share:.0%} of the time of its slowest requests is {spent}"
    )
    yield Candidate("router imbalance", group, "router", share, evidence, remedies)


def _host_overhead(seen: Seen) -> Iterator[Candidate]:
    group = _main_group(seen)
    host = seen.share("host") + gap_share(seen.result, group)
    launching = launch_share(seen.result)
    api = seen.share("api")
    share = max(host, launching, api)
    if share < MOVED:
        return
    graphs = {"cudagraph_mode": "FULL_AND_PIECEWISE", "enforce_eager": False}
    options: list[tuple[dict[str, Any], str, float]] = [
        (
            {"host_gap_ns": 0, "host_sequence_ns": 0},
            "no idle time between steps (host_gap_ns 0)",
            host,
        ),
        (
            {"prepare_ns": 0, "prepare_sequence_ns": 0},
            "steps that the host prepares in no time (prepare_ns and prepare_sequence_ns 0)",
            host,
        ),
        (
            {"kv_read_ns": 0, "kv_descriptor_ns": 0},
            "reads of KV that take the host no time (kv_read_ns and kv_descriptor_ns 0)",
            host if _reads_kv(seen, group) else 0.0,
        ),
        (graphs, "CUDA graphs for every batch (cudagraph_mode FULL_AND_PIECEWISE)", launching),
        ({**graphs, "launch_ns": 0}, "CUDA graphs, and launches in no time", launching),
        ({"api_latency_ns": 0}, "an API server without latency (api_latency_ns 0)", api),
    ]
    everywhere = range(len(seen.result._results.groups))
    remedies = tuple(
        changes.instance_keys(seen.result, everywhere, keys, text)
        for keys, text, part in options
        if part >= MOVED and _changes_a_group(seen, keys)
    )
    evidence = (
        f"devices idle between steps for {host:.0%} of the time of the slowest requests, kernel "
        f"launches lengthen steps by {launching:.0%}, and the API server takes {api:.0%}"
    )
    yield Candidate("host overhead", group, "host", share, evidence, remedies)


def _changes_a_group(seen: Seen, keys: Mapping[str, Any]) -> bool:
    """Whether the engine of any group has other values than these keys."""
    engines = [one.engine for one in seen.result._prepared.lowered.groups]
    fields = {OTHER_NAMES.get(key, key): value for key, value in keys.items()}
    return any(getattr(one, name) != value for one in engines for name, value in fields.items())


def _reads_kv(seen: Seen, group: int) -> bool:
    """Whether the host of the group works on the reads of KV that it posts."""
    prepared = seen.result._prepared
    engine = prepared.lowered.groups[group].engine
    decodes = prepared.deployment.groups[group].pd_type == "decode"
    return decodes and engine.kv_read_ps + engine.kv_descriptor_ps > 0


def _sequence_limit(seen: Seen) -> Iterator[Candidate]:
    share = seen.share(*WAITING)
    for group in _groups(seen):
        limit = seen.result._prepared.lowered.groups[group].engine.max_num_seqs
        steps = waiting_steps(seen, group)
        at_limit = steps["running"] >= limit
        met = float(at_limit.mean()) if limit and len(at_limit) else 0.0
        if share < WAITED or met < 0.5:
            continue
        more = limit * FACTOR
        raised = _below(_options(seen, group, "max_num_seqs"), more)
        remedy = changes.instance_keys(
            seen.result,
            raised,
            {"max_num_seqs": more},
            f"max_num_seqs {more} instead of {limit}{_where(seen, group, raised)}",
        )
        evidence = (
            f"group {group} runs its limit of {limit} sequences in {met:.0%} of the steps in which "
            f"others wait, which is {share:.0%} of the time of the slowest requests"
        )
        yield Candidate("low limit of sequences", group, "scheduler", share, evidence, (remedy,))


def _adapter_slots(seen: Seen) -> Iterator[Candidate]:
    """Steps take requests of so few LoRA adapters that others wait."""
    adapters = len(set(seen.result._results.workload.adapter or ()) - {""})
    share = seen.share(*WAITING)
    for group in _groups(seen):
        slots = seen.result._prepared.lowered.groups[group].engine.max_loras
        if slots is None or adapters <= slots or share < WAITED:
            continue
        more = min(adapters, slots * MORE_SLOTS)
        remedy = changes.instance_keys(
            seen.result,
            seen.pool_of(group),
            {"max_loras": more},
            f"max_loras {more} instead of {slots}{_where(seen, group, seen.pool_of(group))}",
        )
        evidence = (
            f"a step of group {group} takes {slots} of the {adapters} LoRA adapters, and the "
            f"slowest requests wait {share:.0%} of their time"
        )
        yield Candidate("few LoRA slots", group, "scheduler", share, evidence, (remedy,))


def _token_budget(seen: Seen) -> Iterator[Candidate]:
    if seen.metric == "tpot":
        return
    for group in _groups(seen):
        engine = seen.result._prepared.lowered.groups[group].engine
        budget, steps = engine.max_num_scheduled_tokens, seen.steps_of(group)
        prompts = steps["prefill_tokens"] > 0
        full = float((steps["tokens"][prompts] >= budget).mean()) if prompts.any() else 0.0
        share = seen.share(*WAITING, "prefill")
        if full < 0.5 or share < WAITED:
            continue
        more = engine.max_num_batched_tokens * FACTOR
        raised = _below(_options(seen, group, "max_num_batched_tokens"), more)
        remedy = changes.instance_keys(
            seen.result,
            raised,
            {"max_num_batched_tokens": more, "max_num_scheduled_tokens": None},
            f"max_num_batched_tokens {more} instead of {engine.max_num_batched_tokens}"
            f"{_where(seen, group, raised)}",
        )
        evidence = (
            f"{full:.0%} of the steps with prompts fill the budget of {budget} tokens, and the "
            f"slowest requests queue and prefill for {share:.0%} of their time"
        )
        yield Candidate("small token budget", group, "scheduler", share, evidence, (remedy,))


def _small_chunks(seen: Seen) -> Iterator[Candidate]:
    """A limit on each prompt's tokens in a step spreads prompts over many steps."""
    if seen.metric == "tpot":
        return
    for group in _groups(seen):
        most = seen.result._prepared.lowered.groups[group].engine.long_prefill_token_threshold
        longer = float((seen.input_tokens[seen.cohort] > most).mean())
        share = seen.share(*WAITING, "prefill")
        if not most or longer < 0.5 or share < WAITED:
            continue
        limited = {one: has for one, has in _options(seen, group, THRESHOLD).items() if has}
        groups = list(limited)
        remedy = changes.instance_keys(
            seen.result,
            groups,
            {THRESHOLD: 0},
            f"whole prompts instead of {most} tokens in a step ({THRESHOLD} 0)"
            f"{_where(seen, group, groups)}",
        )
        evidence = (
            f"{longer:.0%} of the slowest requests have prompts beyond the {most} tokens that "
            f"group {group} takes of each in a step, and they queue and prefill for {share:.0%} of "
            "their time"
        )
        yield Candidate("small chunks of prompts", group, "scheduler", share, evidence, (remedy,))


def _prefix_caching(seen: Seen) -> Iterator[Candidate]:
    workload = seen.result._results.workload
    engines = [group.engine for group in seen.result._prepared.lowered.groups]
    if seen.metric == "tpot" or any(one.enable_prefix_caching for one in engines):
        return
    repeated = 1 - len(np.unique(workload.keys)) / max(len(workload.keys), 1)
    named = len(workload.keys) * workload.granularity / max(int(seen.input_tokens.sum()), 1)
    share = repeated * min(named, 1.0)
    if share < WAITED:
        return
    remedy = changes.instance_keys(
        seen.result, range(len(engines)), {"enable_prefix_caching": True}, "prefix caching"
    )
    evidence = f"{share:.0%} of the prompt tokens repeat earlier ones, and prefix caching is off"
    yield Candidate("no prefix caching", None, "KV", share, evidence, (remedy,))


def _burst(seen: Seen) -> Iterator[Candidate]:
    requests, workload = seen.result._results.requests, seen.result._results.workload
    arrivals = np.sort(requests.arrival_ps[workload.arrival_ps >= 0])
    share = seen.share(*WAITING)
    span = int(arrivals[-1] - arrivals[0]) if len(arrivals) > 1 else 0
    if share < WAITED or span == 0 or seen.metric == "tpot":
        return
    waited = requests.first_token_ps[seen.cohort] - requests.arrival_ps[seen.cohort]
    window = int(np.median(waited))
    last = requests.arrival_ps[seen.cohort]
    before = np.searchsorted(arrivals, last, "right") - np.searchsorted(arrivals, last - window)
    times = float(np.median(before)) / max(window, 1) / (len(arrivals) / span)
    if times < BURST or np.median(before) < 16:
        return
    evidence = (
        f"{np.median(before):.0f} requests arrive in the {window / 1e12:.2f} s before a slow one, "
        f"{times:.1f} times the mean rate"
    )
    remedy = changes.evenly_spaced("the same requests at even distances")
    yield Candidate("burst of arrivals", None, "load", share, evidence, (remedy,), Kind.LOAD)


def _too_few_devices(seen: Seen) -> Iterator[Candidate]:
    group = _main_group(seen)
    pool = seen.pool_of(group)
    busy = min(busy_share(seen, one) for one in pool)
    if seen.metric == "tpot":
        share, least = batch_share(seen, group), WAITED
        what = f"large batches make up {share:.0%} of a decode step"
    else:
        share, least = seen.share(*WAITING) + crowded_share(seen), MOSTLY
        what = (
            f"the slowest requests wait, or share steps with other prompts, {share:.0%} of theirs"
        )
    if busy < 0.85 or share < least:
        return
    named = _instance(seen, group)
    remedy = changes.more_instances(seen.result, pool)
    evidence = (
        f"the {len(pool)} {named}{'s' * (len(pool) > 1)} of the pool had work for at least "
        f"{busy:.0%} of the time, and {what}"
    )
    yield Candidate(f"too few {named}s", group, "compute", share, evidence, (remedy,), Kind.SIZE)


def _instance(seen: Seen, group: int) -> str:
    """`instance`, or `prefill instance`."""
    role = seen.result._prepared.deployment.groups[group].pd_type
    return "instance" if role is None else f"{role} instance"


def _options(seen: Seen, group: int, name: str) -> dict[int, int]:
    """An option of the engines of a group and of its peers."""
    groups = seen.result._prepared.lowered.groups
    return {one: int(getattr(groups[one].engine, name)) for one in seen.pool_of(group)}


def _below(of_group: Mapping[int, int], value: int) -> list[int]:
    """The groups that have less: a remedy of one group takes nothing from its peers."""
    return [group for group, has in of_group.items() if has < value]


def _whose(seen: Seen, group: int, raised: list[int]) -> str:
    """`each prefill instance`, or the groups where peers of them have as much."""
    if len(raised) == len(seen.pool_of(group)):
        return f"each {_instance(seen, group)}"
    return f"group{'s' * (len(raised) > 1)} {', '.join(map(str, raised))}"


def _where(seen: Seen, group: int, raised: list[int]) -> str:
    """The same behind an option, where that is not the one of all instances."""
    everywhere = len(raised) == len(seen.pool_of(group))
    if everywhere and seen.result._prepared.deployment.groups[group].pd_type is None:
        return ""
    return f" in {_whose(seen, group, raised)}"


def _main_group(seen: Seen) -> int:
    """The group at which most of the cohort waits."""
    groups, counts = np.unique(seen.waiting_group[seen.cohort], return_counts=True)
    return int(groups[np.argmax(counts)])


def _groups(seen: Seen) -> list[int]:
    """The groups that serve the cohort: one of each pool, where most of it is."""
    found = {_main_group(seen)}
    answered, counts = np.unique(seen.group[seen.cohort], return_counts=True)
    found.add(int(answered[np.argmax(counts)]))
    return sorted(found)


def _rows(seen: Seen, group: int) -> Rows:
    cohort = seen.cohort
    mine = (seen.group[cohort] == group) | (seen.prompt_group[cohort] == group)
    return np.asarray(cohort[mine])


def _preemptions(seen: Seen, group: int) -> int:
    """Preemptions of the cohort where the group's cache was ever full; others were elsewhere."""
    if not _few_blocks(seen, group, seen.steps_of(group)).any():
        return 0
    return int(seen.result._results.requests.preemptions[_rows(seen, group)].sum())


def _held_up(seen: Seen, group: int, mixed: Flags, extra_ps: Int64) -> float:
    """The share of the cohort's time after the first token that `mixed` steps add to decodes."""
    end = seen.steps_of(group)["end_ps"]
    added = np.concatenate(([0], np.cumsum(np.where(mixed, extra_ps, 0).clip(0))))
    requests = seen.result._results.requests
    rows = seen.cohort[seen.group[seen.cohort] == group]
    first = np.searchsorted(end, requests.first_token_ps[rows], "right")
    last = np.searchsorted(end, requests.finish_ps[rows], "right")
    span = int((requests.finish_ps[rows] - requests.first_token_ps[rows]).sum())
    return float((added[last] - added[first]).sum()) / span if span else 0.0


def _full_share(seen: Seen, group: int) -> float:
    """The share of steps with others waiting in which few KV blocks are free."""
    few = _few_blocks(seen, group, waiting_steps(seen, group))
    return float(few.mean()) if len(few) else 0.0


def _few_blocks(seen: Seen, group: int, steps: Mapping[str, NDArray[Any]]) -> Flags:
    """At which steps too few KV blocks are free for the next prompts."""
    info = seen.result._results.groups[group]
    median = float(np.median(seen.input_tokens)) / max(info.block_size, 1)
    few: Flags = steps["free_blocks"] <= max(0.05 * info.num_blocks, 2 * median)
    return few


RULES: tuple[Callable[[Seen], Iterator[Candidate]], ...] = (
    _switch_of_layouts,
    _slow_links,
    _slow_tier,
    _slow_memory,
    _small_kv_cache,
    _long_prompts,
    _long_themselves,
    _prompts_between_decodes,
    _speculation,
    _one_slow_side,
    _straggler,
    _router_imbalance,
    _host_overhead,
    _sequence_limit,
    _adapter_slots,
    _token_budget,
    _small_chunks,
    _prefix_caching,
    _burst,
    _too_few_devices,
)
