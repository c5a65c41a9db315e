"""What the operators of a group computed and moved in a run: flops and bytes, and how they compare
with the data sheet.

Per operator, with the shapes of `llmsim.model.Operator` (per rank and per execution):

    flops    flops_per_token * tokens + flops_per_context_token * attended tokens reads    weight
    bytes + read_bytes_per_token * tokens + kv_bytes_per_context_token * KV tokens read writes
    write_bytes_per_token * tokens

Experts: of E local experts with top-k of n tokens routed uniformly over all, E * (1 - (1 - k /
total)^n) are expected to be read. An embedding reads rows of its table only. Tokens are the
computed ones, padding included, for bytes, and the scheduled ones for flops: padding is not useful
work.

Model flops utilisation: flops over time * devices * peak of the data sheet at the operator's
precision (Chowdhery et al., PaLM, 2022, appendix B, here for inference). Memory bandwidth
utilisation: bytes over time * devices * bandwidth.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from llmsim.core import FEATURES, PS_PER_S, GroupInfo, Int64, Results
from llmsim.exact import exact_sum
from llmsim.model import Attention, Gemm, Hardware, Moe, Operator
from llmsim.power.traffic import executions, kv_tokens_read, weights_read


class GroupUsage(Struct, frozen=True):
    """How often a group did what; from `Results.table_rows` and the counters."""

    by_feature: Mapping[str, Int64]
    """Shape (max + 1,): batches with n of each of `llmsim.core.FEATURES`, padding included; empty
    if nobody asks.
    """
    scheduled_tokens: int
    scheduled_sequences: int
    attended_tokens: int
    kv_read_tokens: int
    busy_ps: int

    def rows(self, op: Operator) -> Int64:
        """How often each row of the operator's table was read."""
        return self.by_feature["tokens" if op.feature == "attention" else op.feature]

    @property
    def shares_prompts(self) -> bool:
        """Prefill context parallelism: a rank computes a part of the scheduled tokens, and gathers
        KV of the rest.
        """
        return len(self.by_feature["prefills"]) > 0

    @property
    def by_tokens(self) -> Int64:
        """Batches that computed n tokens."""
        return self.by_feature["tokens"]


class OperatorWork(Struct, frozen=True):
    """One operator on one rank over the whole run."""

    name: str
    executions: int
    flops: int
    read_bytes: int
    written_bytes: int


class Utilisation(Struct, frozen=True):
    """Shares of the data sheet's peaks, None where the data sheet lacks the peak; `busy` counts
    time with a batch.
    """

    mfu: float | None
    mbu: float | None
    mfu_busy: float | None
    mbu_busy: float | None


def group_usage(results: Results, group: int) -> GroupUsage:
    """The usage of one group of a run."""
    counters: Mapping[str, Int64] = results.counters
    return GroupUsage(
        by_feature=dict(zip(FEATURES, results.table_rows[group], strict=True)),
        scheduled_tokens=int(counters["scheduled_tokens"][group]),
        scheduled_sequences=int(counters["scheduled_sequences"][group]),
        attended_tokens=int(counters["attended_tokens"][group]),
        kv_read_tokens=int(counters["kv_read_tokens"][group]),
        busy_ps=int(counters["busy_ps"][group]),
    )


def operator_work(op: Operator, usage: GroupUsage) -> OperatorWork:
    """Flops and bytes of one operator on one rank; collectives move nothing here (see the link
    counters).
    """
    ran = executions(usage.rows(op))
    computed = exact_sum(op.units_of(ran.counts), ran.times)
    useful = usage.scheduled_tokens
    if op.feature in ("gathered", "sequences") or usage.shares_prompts or op.units != (1, 1):
        # Padding included: what of it is useful was scheduled elsewhere, or is not counted by rank.
        # Rows of logits are never padded, and a sequence that verifies drafts has several.
        useful = computed
    context_flops, context_bytes = (0, 0)
    if isinstance(op, Attention):
        context_flops, context_bytes = _context_work(op, usage)
    flops = op.flops_per_token * useful + context_flops
    reads = op.read_bytes_per_token * computed + context_bytes
    return OperatorWork(
        name=op.name,
        executions=exact_sum(ran.times[ran.counts > 0]) * op.repeat,
        flops=flops * op.repeat,
        read_bytes=(reads + weights_read(op, ran)) * op.repeat,
        written_bytes=op.write_bytes_per_token * computed * op.repeat,
    )


def _context_work(op: Attention, usage: GroupUsage) -> tuple[int, int]:
    """Flops and KV bytes of one layer's attention."""
    attended = usage.attended_tokens
    if op.window:  # at most: sequences shorter than the window see less
        attended = min(attended, op.window * usage.scheduled_tokens)
    kv_tokens = kv_tokens_read(
        op, usage.kv_read_tokens, usage.scheduled_sequences, usage.scheduled_tokens
    )
    return op.flops_per_context_token * attended, op.kv_bytes_per_context_token * kv_tokens


def utilisation(
    operators: Sequence[Operator],
    usage: GroupUsage,
    hardware: Hardware | None,
    span_ps: int,
    stages: int = 1,
) -> Utilisation:
    """Every rank of a stage does the same, and `operators` are those of all pipeline stages, so
    their work over the time of one rank of each stage is the group's share. `span_ps` is the time
    from first to last.
    """
    if hardware is None:
        return Utilisation(None, None, None, None)
    work = [operator_work(op, usage) for op in operators]
    moved = sum(one.read_bytes + one.written_bytes for one in work)
    memory_s = moved / hardware.memory_bandwidth_bytes_per_s
    compute_s = 0.0
    known = True
    for op, one in zip(operators, work, strict=True):
        if not isinstance(op, Gemm | Attention | Moe) or not one.flops:
            continue
        peak = peak_flops_per_s(hardware, op.weight_dtype or "bf16")
        known = known and peak > 0
        compute_s += one.flops / peak if peak else 0.0
    span_s, busy_s = stages * span_ps / PS_PER_S, stages * usage.busy_ps / PS_PER_S
    known_s = compute_s if known else None
    return Utilisation(
        mfu=_part(known_s, span_s),
        mbu=_part(memory_s, span_s),
        mfu_busy=_part(known_s, busy_s),
        mbu_busy=_part(memory_s, busy_s),
    )


def _part(needed_s: float | None, given_s: float) -> float | None:
    """Of a time, what the device needs at its peak; None where either is not known."""
    return None if needed_s is None or not given_s else needed_s / given_s


def by_device(
    rows: Sequence[Mapping[str, Any]], groups: Sequence[GroupInfo]
) -> list[dict[str, Any]]:
    """The rows of groups (`busy`, `mfu`, `mbu`, as shares of the same time) joined by hardware,
    each device counting alike, which is the share of the class's peak, since its devices have the
    same; None where a group's is unknown.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    devices = {group.index: group.num_devices for group in groups}
    for row in rows:
        found.setdefault(groups[row["group"]].hardware, []).append(row)
    joined = []
    for hardware, own in found.items():
        count = sum(devices[row["group"]] for row in own)
        shares: dict[str, float | None] = {}
        for name in ("busy", "mfu", "mbu"):
            known = all(row[name] is not None for row in own)
            total = sum(devices[row["group"]] * row[name] for row in own) if known else None
            shares[name] = None if total is None else round(total / count, 6)
        busy = shares["busy"]
        for name in ("mfu", "mbu"):
            share = shares[name]
            shares[f"{name}_busy"] = round(share / busy, 6) if share is not None and busy else None
        joined.append({"hardware": hardware, "devices": count, **shares})
    return joined


def peak_flops_per_s(hardware: Hardware, dtype: str) -> int:
    """Dense peak, flop/s; what has no units of its own computes in 16 bit."""
    for name in (dtype, "bf16", "fp16"):
        if hardware.flops.get(name):
            return hardware.flops[name]
    return 0
