"""The rows of a bundle while an import collects them, and the files that they become."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.core import Int64, Provenance
from llmsim.costs.sources.bundle.legacy_attention import Points, complete_points

Floats = NDArray[np.float64]
MOST_POINTS = 10
"""Of each axis of mixed batches that are sums of a prefill and a decode batch: 10^4 rows at most.
"""


@dataclass
class BundleRows:
    """Times in microseconds; equal points are kept as their median."""

    dense: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    per_sequence: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    attention: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    moe: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    moe_degree: int = 1
    """Of the folder that the experts go to: whole experts belong into tp1, whatever the degree of
    the rest.
    """
    extra: dict[str, list[list[str]]] = field(default_factory=dict)
    """Further files as they were, by name: header and rows."""

    def add(self, table: str, layer: str, count: int, us: float) -> None:
        """One row of dense or per_sequence."""
        rows = self.dense if table == "dense" else self.per_sequence
        rows.setdefault((layer, count), []).append(us)

    def add_split_attention(
        self, prefill: Points, decode: Points, max_tokens: int, max_seqs: int, max_kv: int
    ) -> None:
        """Prefills and decodes that were measured apart: pure planes as they are, mixed batches as
        their sums.
        """
        q, k, prefill_us, _ = complete_points(prefill, max_tokens, max_kv, causal=True)
        n, kv, decode_us, _ = complete_points(decode, max_seqs, max_kv, causal=False)
        for points, plane in ((prefill, 0), (decode, 1)):
            for first, second, us in zip(points.first, points.second, points.us, strict=True):
                a, b = int(first), int(second)
                self.attention[(a, b, 0, 0) if plane == 0 else (0, 0, a, b)] = float(us)
        self.add_grids(q, k, prefill_us, n, kv, decode_us)

    def add_grids(
        self, q: Int64, k: Int64, prefill_us: Floats, n: Int64, kv: Int64, decode_us: Floats
    ) -> None:
        """Complete grids [q, k] and [n, kv], microseconds: at most `MOST_POINTS` of each axis,
        alone and as sums.
        """
        prefills = [(i, j) for i in thinned(len(q)) for j in thinned(len(k))]
        decodes = [(a, b) for a in thinned(len(n)) for b in thinned(len(kv))]
        for i, j in prefills:
            self.attention.setdefault((int(q[i]), int(k[j]), 0, 0), float(prefill_us[i, j]))
            for a, b in decodes:
                key = (int(q[i]), int(k[j]), int(n[a]), int(kv[b]))
                self.attention[key] = float(prefill_us[i, j] + decode_us[a, b])
        for a, b in decodes:
            self.attention.setdefault((0, 0, int(n[a]), int(kv[b])), float(decode_us[a, b]))

    def write(self, folder: Path, provenance: dict[str, object]) -> list[Path]:
        """The files of one degree; InputError when attention or the dense layers are missing."""
        if not self.dense:
            raise InputError(
                "no dense layer was found in what was given; a bundle needs them (dense.csv)"
            )
        if not self.attention:
            raise InputError(
                "no attention rows were found in what was given; a bundle needs them "
                "(attention.csv)"
            )
        folder.mkdir(parents=True, exist_ok=True)
        medians = {name: _medians(getattr(self, name)) for name in ("dense", "per_sequence", "moe")}
        tables: list[tuple[str, Sequence[str], Iterable[Sequence[object]]]] = [
            ("dense.csv", ("layer", "tokens", "time_us"), medians["dense"]),
            ("per_sequence.csv", ("layer", "sequences", "time_us"), medians["per_sequence"]),
            ("moe.csv", ("tokens", "activated_experts", "time_us"), medians["moe"]),
            ("attention.csv", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
             ((*key, f"{us:.10g}") for key, us in sorted(self.attention.items()))),
        ]  # fmt: skip
        written = []
        for name, header, rows in tables:
            kept = list(rows)
            if kept:
                place = folder.parent / f"tp{self.moe_degree}" if name == "moe.csv" else folder
                place.mkdir(exist_ok=True)
                _write(place / name, header, kept)
                written.append(place / name)
        for name, rows in self.extra.items():
            _write(folder / name, rows[0], rows[1:])
            written.append(folder / name)
        meta = folder.parent / "meta.yaml"
        meta.write_text(yaml.safe_dump(provenance, sort_keys=False), encoding="utf-8")
        return [*written, meta]


def points_of(times: dict[tuple[int, int], list[float]]) -> Points:
    """Measured times (us) of (new tokens or sequences, cached tokens), repeated points as their
    median.
    """
    keys = np.array(sorted(times), dtype=np.float64)
    medians = np.array([float(np.median(times[key])) for key in sorted(times)])
    return Points(keys[:, 0], keys[:, 1], medians, Provenance.MEASURED)


def thinned(count: int) -> list[int]:
    """At most `MOST_POINTS` indices of an axis, evenly spread, the ends among them."""
    if count <= MOST_POINTS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})


def _medians(rows: dict[tuple[object, ...], list[float]]) -> list[tuple[object, ...]]:
    return [
        (*key, f"{statistics.median(us):.10g}")
        for key, us in sorted(rows.items(), key=lambda row: row[0])
    ]


def _write(path: Path, header: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
