"""The two families of measured times, launched by the host or replayed from a CUDA graph, and which
one a step takes.

A bundle has both where its tables have the columns `eager_us` and `graph_us` beside `time_us`
(profiles made by `python -m llmsim.profiler`); one that says only `time_us` has one, which is used
for every step.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmsim.costs.source import Curve
from llmsim.costs.sources.csv_tables import read_table, read_text

Floats = NDArray[np.float64]
EAGER, GRAPH = "eager_us", "graph_us"


def both_families(path: Path, feature: str) -> dict[str, tuple[Floats, Floats, Floats]]:
    """Layer -> (points ascending, graph times, eager times, microseconds); empty where the table
    has one family.
    """
    header = [name.strip() for name in read_text(path).partition("\n")[0].split(",")]
    if EAGER not in header or GRAPH not in header:
        return {}
    captured = read_table(path, text=("layer", GRAPH), numbers=(feature,))
    if not all(captured.text[GRAPH]):
        return {}  # measured on a device without graphs
    table = read_table(path, text=("layer",), numbers=(feature, EAGER, GRAPH))
    names = np.array(table.text["layer"])
    layers = {}
    for layer in dict.fromkeys(table.text["layer"]):
        rows = np.flatnonzero(names == layer)
        rows = rows[np.argsort(table.number[feature][rows], kind="stable")]
        layers[layer] = tuple(table.number[name][rows] for name in (feature, GRAPH, EAGER))
    return layers  # type: ignore[return-value]  # three columns each


def by_family(graph: Curve, eager: Curve, largest_graph: int) -> Curve:
    """Graph times up to the largest captured size, eager ones beyond, as steps of
    these sizes run.
    """
    if largest_graph == 0:
        return Curve(eager.ps, eager.provenance, f"{eager.source}, launched")
    replayed = np.arange(len(graph.ps)) <= largest_graph
    if replayed.all():
        return Curve(graph.ps, graph.provenance, f"{graph.source}, replayed")
    return Curve(
        np.where(replayed, graph.ps, eager.ps),
        np.where(replayed, graph.provenance, eager.provenance),
        f"{graph.source}, replayed up to {largest_graph} tokens, then launched",
    )
