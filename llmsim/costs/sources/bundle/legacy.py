"""Cost source: profile bundles of the older generation (layers.csv, attention.csv,
predictions/*.csv).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmsim.config.errors import InputError, nearest
from llmsim.core import Provenance
from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.costs.source import (
    AttentionCost,
    CostRequest,
    CostSource,
    Curve,
    SplitAttention,
    curve_from_points,
    last_slope,
    to_ps,
)
from llmsim.costs.sources.bundle.files import BundleFiles
from llmsim.costs.sources.bundle.legacy_attention import read_older_attention
from llmsim.costs.sources.csv_tables import read_table, refuse_duplicates
from llmsim.costs.sources.decode_skew import mixed_decode_q20, skew_q20
from llmsim.costs.sources.plausibility import LowerBoundWarnings
from llmsim.model import Collective, Moe

if TYPE_CHECKING:
    from llmsim.model import Attention, Operator

Floats = NDArray[np.float64]
NS_PER_US = 1000.0

PARTS = {
    "embedding": ("embedding",),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "qk_norm": ("q_norm", "k_norm"),
    "rotary_emb": ("rope",),
    "o_proj": ("o_proj",),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "act_fn": ("act_fn",),
    "down_proj": ("down_proj",),
    "moe_gate": ("gate",),
    "final_layernorm": ("final_layernorm",),
    "lm_head": ("lm_head",),
}
"""Our operator -> the rows whose times add up to it: that profiler timed every projection as its
own kernel.
"""
NORMS = ("input_layernorm", "post_layernorm")
"""The two norms of a block; our two `layernorm` operators cost their mean each, which leaves the
sum.
"""
EXPERT = ("expert.w1", "expert.w3", "act_fn", "expert.w2")
"""What one expert runs, one after the other."""


class OlderBundleSource(CostSource):
    """Times of one layer's modules by tokens; nanoseconds in layers.csv and predictions,
    milliseconds in attention.csv.

    Differences from the newer generation: projections apart, attention split into prefills and a
    decode batch, experts one by one, no sampler.
    """

    name = "bundle"
    kind = "bundle"

    def __init__(self, request: CostRequest, files: BundleFiles) -> None:
        self._request = request
        self._files = files
        self._path = files.folder / "layers.csv"
        self._notes: list[str] = []
        self._peak_rates = LowerBoundWarnings(request)
        self._layers = read_layers(self._path, request.layout.tp)

    def operator(self, op: Operator, last: int) -> Curve | None:
        """Sums of the profile's rows, linear between them; None for what this generation does not
        hold.
        """
        if isinstance(op, Collective):
            return None
        if isinstance(op, Moe):
            return self._moe(op, last)
        if op.name == "layernorm":
            return self._curve(
                op, last, [name for name in NORMS if name in self._layers], share=True
            )
        parts = PARTS.get(op.name, ())
        known = [part for part in parts if part in self._layers]
        return self._curve(op, last, known if len(known) == len(parts) else [], share=False)

    def attention(self, op: Attention) -> AttentionCost:
        """Prefills and decodes apart, from the published predictions, else from attention.csv, else
        from layers.csv.
        """
        found = read_older_attention(self._files, self._request, op, self._layers.get("attn"))
        if found.measured:
            rows = found.decodes
            self._peak_rates.decodes(op, found.path, rows.first * rows.second, rows.us)
        kappa, how = skew_q20(self._request, op)
        grid = found.grid(mixed_decode_q20(self._request, op, derived=False))
        for note in found.notes:
            self._note(note)
        return SplitAttention(
            repeat=op.repeat,
            grid=grid,
            skew_ps_per_token_q20=kappa,
            source=self._files.label(found.path),
            skew_source=how,
        )

    def notes(self) -> list[str]:
        """Rows faster than light first, then what was assumed."""
        return self._peak_rates.sentences() + self._notes

    def _note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)

    def _curve(self, op: Operator, last: int, names: list[str], *, share: bool) -> Curve | None:
        if not names:
            return self._absent(op, last)
        points, times = self._sum(names)
        if share:
            times = times / len(names)
        self._peak_rates.dense(op, self._path, "tokens", points, times)
        return curve_from_points(points, times, last, self._files.label(self._path))

    def _sum(self, names: list[str]) -> tuple[Floats, Floats]:
        """Points of the first row set and the sum of all of them there, us."""
        points = self._layers[names[0]][0]
        return points, np.sum([np.interp(points, *self._layers[name]) for name in names], axis=0)

    def _absent(self, op: Operator, last: int) -> Curve | None:
        """None where another source can answer; the sampler costs nothing where none can, since the
        peer has none.
        """
        alone = self._request.source == "bundle" or peak_rates_of(self._request) is None
        if op.name == "sampler" and alone:
            self._note(
                f"{self._path} has no sampler rows (no profile of that generation does): "
                "sampling counts as 0"
            )
            zero = np.zeros(last + 1, dtype=np.int64)
            return Curve(
                zero,
                np.full(last + 1, Provenance.ANALYTIC, dtype=np.uint8),
                "none: no sampler rows",
            )
        if self._request.source == "bundle":
            wanted = ", ".join(PARTS.get(op.name, (op.name,)))
            raise InputError(
                f"{self._path}: no rows for {wanted}{nearest(wanted, list(self._layers))}, which "
                f"{op.name} needs; it "
                f'has {", ".join(sorted(self._layers))}; use cost source "auto"',
                file=str(self._path),
            )
        self._note(f"{self._path} has no {op.name} rows; they come from the next cost source")
        return None

    def _moe(self, op: Moe, last: int) -> Curve | None:
        """Active experts one after the other, each with its share of the tokens (expected values of
        even routing).
        """
        names = [name for name in EXPERT if name in self._layers]
        if "expert.w1" not in names or "expert.w2" not in names:
            return self._absent(op, last)
        points, times = self._sum(names)
        counts = np.arange(last + 1, dtype=np.float64)
        touched = op.touched(counts)
        tokens = np.divide(
            counts * op.topk * op.experts_local / op.experts_total + counts * op.always,
            touched,
            out=np.ones_like(counts),
            where=touched > 0,
        )
        beyond = np.maximum(tokens - points[-1], 0.0) * last_slope(points, times)
        us = touched * (np.interp(tokens, points, times) + beyond)
        marks = np.where(
            tokens > points[-1], Provenance.EXTRAPOLATED, Provenance.INTERPOLATED
        ).astype(np.uint8)
        tp = self._request.layout.tp
        if op.experts_local == op.experts_total and tp > 1:
            us = us / tp
            marks[:] = Provenance.SCALED
            self._note(
                f"{self._path} was measured with whole experts; their times are divided by tp {tp}"
            )
        ps = to_ps(us)
        ps[0] = 0
        self._note(
            f"{self._path}: experts run one after the other, as they were profiled; a fused "
            "kernel is faster"
        )
        return Curve(ps, marks, f"{self._files.label(self._path)}, expected active experts")


COLUMNS = ("input", "kv_cache", "tp_size", "latency(ns)")


def read_layers(path: Path, tp: int) -> dict[str, tuple[Floats, Floats]]:
    """layers.csv: layer -> (tokens ascending, microseconds) of this degree with an empty cache."""
    table = read_table(path, text=("layer_name",), numbers=COLUMNS)
    columns = table.number
    degrees = sorted({int(value) for value in columns["tp_size"]})
    if tp not in degrees:
        there = ", ".join(str(degree) for degree in degrees)
        raise InputError(
            f"{table.path}: no row has tp_size {tp} (there are: {there}); the folder name says "
            f"tp{tp}"
        )
    refuse_duplicates(
        table, [table.text["layer_name"], *(columns[name].tolist() for name in COLUMNS[:3])]
    )
    names = np.array(table.text["layer_name"])
    keep = (columns["tp_size"] == tp) & (columns["kv_cache"] == 0)
    layers: dict[str, tuple[Floats, Floats]] = {}
    for name in dict.fromkeys(table.text["layer_name"]):
        rows = np.flatnonzero((names == name) & keep)
        rows = rows[np.argsort(columns["input"][rows], kind="stable")]
        if len(rows):
            layers[name] = (columns["input"][rows], columns["latency(ns)"][rows] / NS_PER_US)
    return layers
