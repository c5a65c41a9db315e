"""What collective tables say about links: the cluster file's link_bw and link_latency that fit
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmsim.profiler.importing.report import Report
from llmsim.profiler.importing.sources import SourceTable


def note_links(
    table: SourceTable, ranks: str, size: str, us: Sequence[float], report: Report
) -> None:
    """Bundles hold no collectives: a note per number of ranks with the ring that fits its
    all-reduces.

    A ring all-reduce of S bytes over N ranks takes 2 (N - 1) (latency + S / N / bandwidth); least
    squares in relative error, so that small and large messages count alike.
    """
    counts, sizes = table.numbers(ranks), table.numbers(size)
    names = table.text("collective") if "collective" in table.header else table.text("op_name")
    groups: dict[int, list[tuple[float, float]]] = {}
    for row, time_us in enumerate(us):
        if names[row] not in ("all_reduce", ""):
            report.skip(table.path.name, f"{names[row]}: only all-reduces are fitted")
        elif math.isnan(time_us) or not time_us or counts[row] < 2:
            report.skip(table.path.name, "no time, or a single rank")
        else:
            groups.setdefault(table.count(ranks, row), []).append((sizes[row], time_us))
    for count, points in sorted(groups.items()):
        report.took(table.path.name, "a note about links", len(points))
        report.note(f"{table.path.name}: {fitted(count, points)}")


def fitted(ranks: int, points: Sequence[tuple[float, float]]) -> str:
    """The sentence about the fit of (bytes, us) of all-reduces over `ranks`."""
    data = np.array(points)
    hops = 2 * (ranks - 1)
    matrix = np.stack([np.full(len(data), hops), hops * data[:, 0] / ranks], axis=1) / data[:, 1:]
    solution, *_ = np.linalg.lstsq(matrix, np.ones(len(data)), rcond=None)
    latency_us, us_per_byte = max(float(solution[0]), 0.0), float(solution[1])
    if us_per_byte <= 0:
        return (
            f"all-reduces over {ranks} ranks take no longer with size; no bandwidth can be fitted"
        )
    errors = np.abs(matrix @ np.array([latency_us, us_per_byte]) - 1.0)
    return (
        f"its all-reduces over {ranks} ranks are those of a ring with link_bw "
        f"{1e-3 / us_per_byte:.4g} (GB/s) and link_latency {latency_us * 1e3:.4g} (ns), median "
        f"error {100 * float(np.median(errors)):.0f} %"
    )
