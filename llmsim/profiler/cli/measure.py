"""`python -m llmsim.profiler measure`: times the operators of a model on one device and writes a
profile bundle.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llmsim.config.errors import InputError
from llmsim.costs.sources.bundle.files import variant_of
from llmsim.model import Dtypes, ModelConfig, load_model, resolve_dtypes
from llmsim.plurals import plural
from llmsim.profiler.bundle.plan import Limits, Point, points_of
from llmsim.profiler.bundle.tables import GrowingTable
from llmsim.profiler.cli.meta import Meta
from llmsim.profiler.cli.style import AnyStyle, chosen, shapes
from llmsim.profiler.device.device import import_torch, open_device, smi_name, torch_dtype
from llmsim.profiler.device.power import PowerMeter
from llmsim.profiler.device.timing import Clock, Stopwatch, Timing
from llmsim.profiler.device.yardstick import yardstick_us
from llmsim.profiler.rank.rank import (
    Rank,
    measured_operators,
    refuse_packed,
    refuse_unknown,
    sharded,
)
from llmsim.profiler.serve.engine_steps import EngineSteps

Mode = Literal["eager", "graph"]
EXTRA = ("time_us", "eager_us", "graph_us", "spread", "samples")
SKEW_SUM = 3
"""skew.csv holds sums of three executions in published bundles; so do ours."""
NEIGHBOUR_TOKENS = 8
"""Of the operators that run between two executions on a CPU: few, so that a row stays short."""
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dense": (("layer", "tokens"), EXTRA),
    "per_sequence": (("layer", "sequences"), EXTRA),
    "attention": (("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"), EXTRA),
    "indexer": (("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"), EXTRA),
    "moe": (("tokens", "activated_experts"), EXTRA),
    "skew": (
        ("n", "kvs", "skew"),
        (
            "regime",
            "nb",
            "ratio",
            "pc",
            "kp",
            "kv_big",
            "kv_mean",
            "t_mean_us",
            "t_max_us",
            "t_skew_us",
            "alpha",
        ),
    ),
}
"""File -> its key columns and the others; further columns than a bundle needs do no harm to its
readers.
"""


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure, how, and where to write it."""

    model: str
    hardware: str
    out_root: Path
    degrees: tuple[int, ...]
    limits: Limits
    dtype: str | None = None
    device: str = "auto"
    style: AnyStyle = "fused"
    attention: str = "auto"
    mode: Mode | None = None
    budget_minutes: float | None = None
    threads: int = 0
    clock: Clock = "wall"
    force: bool = False
    skew: bool = True


def measure(options: MeasureOptions) -> Path:
    """Measures until done, interrupted or out of budget; the folder of the variant. Continues where
    it stopped.

    Raises InputError for an unknown model or device, and for a folder of another measurement.
    """
    torch = import_torch()
    device = open_device(torch, options.device, options.threads)
    model = load_model(options.model)
    dtypes = dtypes_of(model, options)
    torch_dtype(torch, dtypes.activation)
    engine, options, reason = chosen(torch, device, model, dtypes, options)
    folder = options.out_root / options.hardware / model.name / variant_of(dtypes)
    meta = Meta(folder / "meta.yaml", torch, device, options, model, dtypes)
    before = meta.check()
    if engine is not None:
        engine.speed_us = float(before.get("reference_step_us", engine.speed_us))
    ranks = [
        Rank(
            torch,
            device,
            model,
            sharded(model, tp),
            dtypes,
            meta.info,
            shapes(options.style),
            options.attention,
            max_decodes=options.limits.max_seqs,
        )
        for tp in options.degrees
    ]
    ranks[0].reasons |= {"style engine": reason} if reason else {}
    refuse_packed(model, ranks[0].measured, options.attention)
    session = _Session(torch, device, options, folder, ranks, engine)
    meta.write(ranks, "running", session.found())
    state = "interrupted"
    try:
        state = session.run()
    finally:
        meta.write(ranks, state, session.found())
    return folder


def dtypes_of(model: ModelConfig, options: MeasureOptions) -> Dtypes:
    """The number formats to measure in. Raises InputError for a model with operators that this
    version does not run, and for a KV cache that is not kept like activations.
    """
    dtypes = resolve_dtypes(model, options.dtype)
    refuse_unknown(model, measured_operators(model, sharded(model, options.degrees[0]), dtypes))
    if dtypes.kv != dtypes.activation:
        raise InputError(
            f"{model.name}: its checkpoint keeps the KV cache in {dtypes.kv}, and attention is "
            f"measured on one in {dtypes.activation} only; give a config.json that does not say so"
        )
    return dtypes


class _Session:
    """One sitting: walks the points of all ranks by stage, within the budget."""

    def __init__(
        self, torch: Any, device: Any, options: MeasureOptions, folder: Path, ranks: Sequence[Rank],
        engine: EngineSteps | None = None,
    ) -> None:  # fmt: skip
        self._options = options
        self._engine = engine
        self._watch = Stopwatch(torch, device, clock=options.clock)
        self._mode: Mode = options.mode or ("graph" if device.type == "cuda" else "eager")
        self._on_cpu = device.type == "cpu"
        self._ranks = {rank.tp: rank for rank in ranks}
        self._folder = folder
        self._tables: dict[tuple[int, str], GrowingTable] = {}
        self._meter = PowerMeter(smi_name(torch, device)) if device.type == "cuda" else None
        self._busy: dict[str, list[tuple[float, float]]] = {}
        own = self._on_cpu and engine is None
        self._yardstick = (lambda: yardstick_us(torch, device, self._watch)) if own else None
        self.yardsticks_us: list[float] = []
        self.skipped: dict[str, str] = {}
        self.memory: dict[str, object] = {}
        self.power: dict[str, object] = {}
        self.measured = 0

    def found(self) -> dict[str, object]:
        """What this sitting adds to the provenance."""
        found: dict[str, object] = {
            "rows_measured_last": self.measured,
            "rows_skipped": self.skipped,
        }
        speed: dict[str, object] = (
            {"yardstick_us": [round(us, 1) for us in self.yardsticks_us]}
            if self.yardsticks_us
            else {}
        )
        if self._engine is not None:
            speed |= {"reference_step_us": round(self._engine.speed_us, 1)}
        return {**found, **speed, "memory": self.memory, "power": self.power}

    def run(self) -> str:
        """ "complete" or "budget"; what could not be measured is in `skipped`."""
        if self._meter is not None and (problem := self._meter.start()):
            self.power["problem"] = problem
        try:
            return self._walk()
        finally:
            if self._meter is not None:
                self._meter.stop()
                self.power["source"] = self._meter.source
                self._summarise_power()

    def _walk(self) -> str:
        self._check_speed()
        started = time.perf_counter()
        budget_s = (
            60 * self._options.budget_minutes
            if self._options.budget_minutes is not None
            else float("inf")
        )
        todo = [
            (rank, point)
            for rank, point in sorted(self._points(), key=lambda pair: pair[1].stage)
            if point.key not in self._table(rank, point.table)
        ]
        for index, (rank, point) in enumerate(todo):
            spent = time.perf_counter() - started
            if spent > budget_s:
                left = len(todo) - index
                rows = plural(left, "row is", "rows are")
                print(
                    f"\nthe budget is spent: {left} {rows} left for another call",
                    file=sys.stderr,
                )
                return "budget"
            self._progress(
                index, len(todo), spent, budget_s, f"tp{rank.tp} {point.table} {point.key}"
            )
            if point.key in self._table(rank, point.table):
                continue  # measured together with another row
            self._one(rank, point)
        for rank in self._ranks.values():
            self.memory[f"tp{rank.tp}"] = rank.memory(
                self._options.limits.max_tokens, self._options.limits.max_seqs
            )
        if todo and sys.stderr.isatty():
            print(file=sys.stderr)
        self._check_speed()
        return "complete"

    def _check_speed(self) -> None:
        """How fast the machine is now, for whoever compares with a log of another hour."""
        if self._yardstick is not None:
            self.yardsticks_us.append(self._yardstick())

    def _points(self) -> list[tuple[Rank, Point]]:
        options, first = self._options, next(iter(self._ranks.values()))
        return [
            (rank, point)
            for rank in self._ranks.values()
            for point in points_of(
                rank.measured, options.limits, skew=options.skew, experts=rank is first
            )
        ]

    def _table(self, rank: Rank, name: str) -> GrowingTable:
        degree = 1 if name == "moe" else rank.tp
        if (degree, name) not in self._tables:
            keys, columns = TABLES[name]
            self._tables[degree, name] = GrowingTable(
                self._folder / f"tp{degree}" / f"{name}.csv", keys, columns
            )
        return self._tables[degree, name]

    def _one(self, rank: Rank, point: Point) -> None:
        began = time.perf_counter()
        try:
            rows = self._rows(rank, point)
        except (
            RuntimeError,
            MemoryError,
        ) as problem:  # out of memory, or a kernel that refuses the shape
            self.skipped[f"tp{rank.tp} {point.table} {point.key}"] = str(problem).splitlines()[0][
                :160
            ]
            rank.free()
            return
        self._busy.setdefault(point.table, []).append((began, time.perf_counter()))
        table = self._table(rank, point.table)
        for key, values in rows.items():
            if key not in table:
                table.add(key, values)
                self.measured += 1

    def _rows(self, rank: Rank, point: Point) -> dict[tuple[object, ...], dict[str, object]]:
        """The rows that one measurement gives: on a CPU, all layers of a token count are timed in
        their places.
        """
        if self._engine is not None:
            return {
                key: _cells(timing, None, 0.0) for key, timing in self._engine.rows(point).items()
            }
        if point.table == "skew":
            return {point.key: self._skew(rank, point.key)}
        if point.table == "dense" and self._on_cpu:
            tokens = int(str(point.key[1]))
            timings = self._watch.sequence(rank.program(tokens))
            return {
                (name, tokens): _cells(timing, None, 0.0)
                for name, timing in timings.items()
                if name
            }
        return {point.key: self._timed(rank, point)}

    def _timed(self, rank: Rank, point: Point) -> dict[str, object]:
        work, once, share = rank.work(point.table, point.key)
        before = (
            rank.neighbours(min(NEIGHBOUR_TOKENS, self._options.limits.max_tokens))
            if self._on_cpu
            else None
        )
        eager = self._watch.eager(work, before)
        graph = self._watch.graph(work) if self._mode == "graph" else None
        return _cells(
            eager, graph, self._watch.eager(once).median_us / share if once is not None else 0.0
        )

    def _skew(self, rank: Rank, key: tuple[object, ...]) -> dict[str, object]:
        n, kv, skew = (int(str(part)) for part in key)
        big = kv * skew
        mean = (big + kv * (n - 1)) // n
        us = {}
        for name, batch in (
            ("mean", [mean] * n),
            ("max", [big] * n),
            ("skew", [big] + [kv] * (n - 1)),
        ):
            work, once, share = rank.attention_work([(1, length) for length in batch])
            timing = (
                self._watch.graph(work) if self._mode == "graph" else None
            ) or self._watch.eager(work)
            us[name] = timing.median_us + (
                self._watch.eager(once).median_us / share if once is not None else 0.0
            )
        room = us["max"] - us["mean"]
        return {
            "regime": "decode",
            "nb": 1,
            "ratio": f"{1 / n:.4f}",
            "pc": 0,
            "kp": 0,
            "kv_big": big,
            "kv_mean": mean,
            **{f"t_{name}_us": f"{SKEW_SUM * value:.4f}" for name, value in us.items()},
            "alpha": f"{(us['skew'] - us['mean']) / room:.4f}" if room > 0 else "",
        }

    def _summarise_power(self) -> None:
        assert self._meter is not None
        for table, spans in self._busy.items():
            found = [self._meter.between(start, end) for start, end in spans]
            samples = [each for each in found if each is not None]
            if samples:
                weight = sum(each["samples"] for each in samples)
                self.power[table] = {
                    name: round(sum(each[name] * each["samples"] for each in samples) / weight, 1)
                    for name in ("mean_w", "p95_w", "sm_mhz", "memory_mhz", "celsius")
                }

    def _progress(self, index: int, total: int, spent: float, budget_s: float, what: str) -> None:
        eta = min(spent / index * (total - index), max(budget_s - spent, 0)) if index else 0.0
        left = f"{eta:.0f} s left, " if index else ""
        text = f"{index}/{total} rows, {spent:.0f} s, {left}{what}"
        if sys.stderr.isatty():
            print(f"\r\033[K{text[:118]}", end="", file=sys.stderr, flush=True)
        elif index % 200 == 0:
            print(text, file=sys.stderr, flush=True)


def _cells(eager: Timing, graph: Timing | None, extra_us: float) -> dict[str, object]:
    """A row's cells; `extra_us` is the share of what happens once a step."""
    chosen = graph or eager
    return {
        "time_us": f"{chosen.median_us + extra_us:.4f}",
        "eager_us": f"{eager.median_us + extra_us:.4f}",
        "graph_us": f"{graph.median_us + extra_us:.4f}" if graph else "",
        "spread": f"{chosen.spread:.3f}",
        "samples": chosen.samples,
    }
