"""What to measure and in which order: coarse but complete first, then finer, so that any budget
gives a bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from llmsim.model import Attention, Moe, Operator

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """How far the tables reach; tokens and sequences of a step, tokens of a context."""

    max_tokens: int
    max_seqs: int
    max_kv: int
    chunk_factor: float = 2.0
    kv_factor: float = 2.0
    seq_factor: float = 2.0
    """Ratio of neighbouring numbers of decodes beside a prompt."""
    max_total_kv: int | None = None
    """Cached tokens of all decodes of a step, at most; None: as many as the longest contexts
    together.
    """


@dataclass(frozen=True)
class Point:
    """One row to measure; `stage` 0 makes a bundle usable, later stages refine it."""

    stage: int
    table: str
    key: tuple[object, ...]


def geometric(first: int, last: int, factor: float) -> list[int]:
    """Whole numbers from `first` to `last`, both included, each at most `factor` times the one
    before.
    """
    values, value = [], float(first)
    while round(value) < last:
        values.append(round(value))
        value = max(value * factor, value + 1)
    return sorted({*values, last})


def token_grid(last: int) -> list[int]:
    """Every count up to 16 (decode batches), then steps of 4, 16, and an eighth of the value."""
    values = {*range(1, min(16, last) + 1), *range(16, min(64, last) + 1, 4)}
    values.update(value for value in geometric(64, last, 1.125) if value <= last)
    return sorted(values | {last})


def _stage_of(value: int, last: int) -> int:
    """Powers of two and the end first."""
    return 0 if value == last or value & (value - 1) == 0 else 2


def layer_points(table: str, layers: Sequence[str], last: int) -> Iterator[Point]:
    """Rows of dense.csv or per_sequence.csv."""
    for value in token_grid(last):
        for layer in layers:
            yield Point(_stage_of(value, last), table, (layer, value))


def expert_points(last: int, experts: int, topk: int) -> Iterator[Point]:
    """Rows of moe.csv: tokens by activated experts, both geometric; no more experts
    than choices.
    """
    for tokens in geometric(1, last, 2.0):
        counts = geometric(min(topk, experts), experts, 2.0)
        for active in counts:
            if active <= min(tokens * topk, experts):
                yield Point(
                    0 if active == min(tokens * topk, experts) else 1, "moe", (tokens, active)
                )


def attention_table(op: Operator) -> str:
    """The table without .csv that holds an attention operator's rows, "" for other operators."""
    if not isinstance(op, Attention):
        return ""
    return "indexer" if op.name == "indexer" else "attention"


def attention_points(limits: Limits, table: str = "attention") -> Iterator[Point]:
    """Rows of attention.csv, or of another such table: pure decodes and pure prefills first, then
    mixed batches, coarse before fine.
    """
    chunks = (
        geometric(16, limits.max_tokens, limits.chunk_factor)
        if limits.max_tokens > 16
        else [limits.max_tokens]
    )
    kvs = geometric(16, limits.max_kv, limits.kv_factor)
    counts = geometric(1, limits.max_seqs, 2.0)
    room = limits.max_total_kv or limits.max_seqs * limits.max_kv
    for n in counts:
        for kv in kvs:
            if n * kv <= room or kv == kvs[0]:
                yield Point(0, table, (0, 0, n, kv))
    for chunk in chunks:
        for kv in (0, *kvs):
            yield Point(0 if kv in (0, *kvs[::2], kvs[-1]) else 1, table, (chunk, kv, 0, 0))
    beside = geometric(1, limits.max_seqs, limits.seq_factor)
    for chunk in chunks:
        for before in (0, *kvs):
            for n in beside:
                for kv in kvs:
                    if chunk + n <= limits.max_tokens + limits.max_seqs and (
                        n * kv <= room or kv == kvs[0]
                    ):
                        yield Point(
                            _mixed_stage(limits, chunks, kvs, beside, (chunk, before, n, kv)),
                            table,
                            (chunk, before, n, kv),
                        )


def _mixed_stage(
    limits: Limits, chunks: list[int], kvs: list[int], counts: list[int], key: Shape
) -> int:
    """1 for every third value of each axis counted from its end, 3 for every other one, 4 for the
    rest.
    """
    axes = (chunks, [0, *kvs], counts, kvs)
    places = [len(axis) - 1 - axis.index(value) for axis, value in zip(axes, key, strict=True)]
    if all(
        place % 3 == 0 or place == len(axis) - 1 for place, axis in zip(places, axes, strict=True)
    ):
        return 1
    return 3 if all(place % 2 == 0 for place in places) else 4


def skew_points(limits: Limits) -> Iterator[Point]:
    """Rows of skew.csv: one long sequence among `n` decodes, 4 and 16 times as long as
    the others.
    """
    for n in geometric(2, limits.max_seqs, 2.0) if limits.max_seqs > 1 else []:
        for skew in (4, 16):
            for kv in geometric(64, max(64, limits.max_kv // skew), 4.0):
                if kv * skew <= limits.max_kv:
                    yield Point(2, "skew", (n, kv, skew))


def layers_of(ops: Iterable[Operator], feature: str) -> list[str]:
    """Names of the operators that see tokens or sequences, each once."""
    return list(
        dict.fromkeys(
            op.name for op in ops if op.feature == feature and not isinstance(op, Moe | Attention)
        )
    )


def seen_limits(ops: Iterable[Operator], limits: Limits, table: str = "attention") -> Limits:
    """`limits` with contexts no longer than the widest window, where every layer has one: none sees
    further.
    """
    attention = (op for op in ops if isinstance(op, Attention))
    windows = [op.window for op in attention if attention_table(op) == table]
    return (
        replace(limits, max_kv=min(limits.max_kv, max(windows)))
        if windows and all(windows)
        else limits
    )


def points_of(ops: Sequence[Operator], limits: Limits, *, skew: bool, experts: bool) -> list[Point]:
    """The rows of one degree; `experts`: those of moe.csv too, which are measured once for all
    degrees.
    """
    found = [*layer_points("dense", layers_of(ops, "tokens"), limits.max_tokens)]
    found += layer_points("per_sequence", layers_of(ops, "sequences"), limits.max_seqs)
    for table in dict.fromkeys(name for op in ops if (name := attention_table(op))):
        found += attention_points(seen_limits(ops, limits, table), table)
    if skew:
        found += skew_points(seen_limits(ops, limits))
    op = next((op for op in ops if isinstance(op, Moe)), None)
    if experts and op is not None:  # whole experts, whatever the degree: the readers divide
        found += expert_points(limits.max_tokens, op.experts_local, op.topk)
    return found
