"""Collectives inside a node from the silicon database's measured tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Provenance
from llmsim.costs.nccl.stated_links import CUSTOM_EAGER, CUSTOM_GRAPH, TableLinks
from llmsim.costs.source import PEER_TO_PEER, THROUGH_HOST, CostRequest, Curve, to_ps
from llmsim.costs.sources.silicon.database import Database, TablePath, read_columns

if TYPE_CHECKING:
    from llmsim.model import Collective

Floats = NDArray[np.float64]
Rows = tuple[str, Floats, Floats]
"""(label, elements or bytes, microseconds) of a table, ascending by size."""

ELEMENT_BYTES = 2
"""`message_size` counts elements, not bytes, of the whole tensor: at equal message_size the int8
rows take half as long as the 16-bit ones, and only so do the bus bandwidths come to what the links
can do (H100 x8: 445 GB/s).
"""

PEER_SHARE = 0.3
"""Of a device's link inside the node, the least share that a large all-reduce reaches where devices
read each other's memory. Tables of the database reach 0.36 (eight RTX PRO 6000) and more with it,
and 0.06 (eight L40S) to 0.24 (two RTX PRO 6000) where all goes through the host's memory.
"""

NCCL_NAMES = {"all_to_all": "alltoall"}
"""Collectives whose name in NCCL's tables is another one."""


class CollectiveTables:
    """Prices all-reduce (vLLM's own rows, graph or eager) and NCCL's other collectives inside one
    node.
    """

    def __init__(self, request: CostRequest, database: Database) -> None:
        self._request = request
        self._database = database

    def operator(self, op: Collective, last: int, ranks: int) -> Curve | None:
        """Times for 1..last tokens or sequences; None when no table has this collective over this
        many devices.
        """
        sizes = (
            np.arange(last + 1, dtype=np.float64) * op.collective_bytes_per_token / ELEMENT_BYTES
        )
        links = self._request.links.among(op.among, self._request.hardware)
        curve = self._curve(op.collective, sizes, ranks, links)
        return None if curve is None else links.marked(curve)

    def _curve(self, name: str, sizes: Floats, ranks: int, links: TableLinks) -> Curve | None:
        if name == "all_reduce":
            return self._all_reduce(sizes, ranks, links)
        found = self._nccl(name, ranks, links)
        if found is None:
            return self._of_the_other_machine(name, sizes, ranks, links)
        label, points, times_us = found
        return _curve(_lookup(points, times_us, sizes), points, sizes, label)

    def _of_the_other_machine(
        self, name: str, sizes: Floats, ranks: int, links: TableLinks
    ) -> Curve | None:
        """NCCL's times of a machine of the other kind, times what all-reduces of as many elements
        take on this one and on that one: NCCL was not measured on every kind of machine.
        """
        wanted = self._request.peer_to_peer
        if wanted is None:
            return None
        other = nccl_rows(self._database, name, ranks, peer_to_peer=not wanted)
        rows = _on_links(other, name, ranks, links)
        here, there = (
            custom_rows(self._database, ranks, eager=False, peer_to_peer=peers)
            for peers in (wanted, not wanted)
        )
        if rows is None or here is None or there is None:
            return None
        label, points, times_us = rows
        share = _lookup(here[1], here[2], sizes) / _lookup(there[1], there[2], sizes)
        scaled = _curve(
            _lookup(points, times_us, sizes) * share, points, sizes, f"{label}, as {here[0]}"
        )
        marks = np.full(len(sizes), Provenance.SCALED, dtype=np.uint8)
        return Curve(scaled.ps, marks, scaled.source)

    def _all_reduce(self, sizes: Floats, ranks: int, links: TableLinks) -> Curve | None:
        """Steps that replay a CUDA graph use the graph rows; larger ones the eager rows, as vLLM
        runs them.
        """
        last = len(sizes) - 1
        graph = self._custom(ranks, links, eager=False)
        eager = self._custom(ranks, links, eager=True)
        fallback = self._nccl("all_reduce", ranks, links)
        graph = graph or eager or fallback
        eager = eager or fallback or graph
        if graph is None or eager is None:
            return None
        largest_graph = max(self._request.cuda_graph_sizes, default=0)
        replayed = np.arange(last + 1) <= largest_graph
        times = np.where(
            replayed, _lookup(graph[1], graph[2], sizes), _lookup(eager[1], eager[2], sizes)
        )
        label = graph[0] if last <= largest_graph else eager[0]
        if 0 < largest_graph < last and graph[0] != eager[0]:
            label = f"{graph[0]} up to {largest_graph} tokens, then {eager[0]}"
        return _curve(times, graph[1], sizes, label)

    def _custom(self, ranks: int, links: TableLinks, *, eager: bool) -> Rows | None:
        """Rows of the engine's custom all-reduce in one launch mode, 16 bit, for that many devices,
        of a machine as the cluster file says.
        """
        wanted = self._request.peer_to_peer
        rows = custom_rows(self._database, ranks, eager=eager, peer_to_peer=wanted)
        return _on_links(rows, CUSTOM_EAGER if eager else CUSTOM_GRAPH, ranks, links)

    def _nccl(self, name: str, ranks: int, links: TableLinks) -> Rows | None:
        wanted = self._request.peer_to_peer
        rows = nccl_rows(self._database, name, ranks, peer_to_peer=wanted)
        return _on_links(rows, name, ranks, links)


def _on_links(rows: Rows | None, table: str, ranks: int, links: TableLinks) -> Rows | None:
    """The rows of a table on the links that the cluster file states."""
    if rows is None:
        return None
    label, elements, times_us = rows
    return label, elements, links.times_us(table, ranks, elements * ELEMENT_BYTES, times_us)


def custom_rows(
    database: Database, ranks: int, *, eager: bool, peer_to_peer: bool | None = None
) -> Rows | None:
    """(label, elements, microseconds) of the engine's all-reduce in one launch mode, among so many
    devices; where a SGLang server has none, or a machine with or without peer-to-peer access is
    asked for, also the other engine's, which is the same kernel.
    """
    own = database.engine.framework
    others = [one for one in ("vllm", "sglang") if one != own]
    alone = own == "vllm" and peer_to_peer is None
    for framework in (own, *(() if alone else others)):
        for found in _custom_tables(database, framework, ranks, "eager" if eager else "graph"):
            rows = _of_machine(database, found, found, ranks, peer_to_peer)
            if rows is not None:
                return rows
    return None


def _custom_tables(database: Database, framework: str, ranks: int, mode: str) -> Iterator[Rows]:
    """The rows of each of a framework's tables of all-reduces, the engine's own version first."""
    columns = ["num_gpus", "message_size", "latency", "backend", "allreduce_dtype"]
    for table in database.tables("all_reduce"):
        if f" {framework} " not in table.label:
            continue
        rows = read_columns(table.path, columns)
        if "backend" not in rows:
            continue
        keep = (rows["num_gpus"] == ranks) & (rows["backend"] == f"{framework}_{mode}")
        if bool(keep.any()):
            yield _points(rows, keep, f"{table.label} {mode}")


def nccl_rows(
    database: Database, name: str, ranks: int, *, peer_to_peer: bool | None = None
) -> Rows | None:
    """(label, elements, microseconds) of one of NCCL's collectives among so many devices, of a
    machine with or without peer-to-peer access where that is asked for.
    """
    for table in database.nccl():
        found = _nccl_points(table, name, ranks)
        if found is None:
            continue
        reduced = _nccl_points(table, "all_reduce", ranks)
        rows = _of_machine(database, found, reduced, ranks, peer_to_peer)
        if rows is not None:
            return rows
    return None


def _nccl_points(table: TablePath, name: str, ranks: int) -> Rows | None:
    rows = read_columns(
        table.path, ["op_name", "nccl_dtype", "num_gpus", "message_size", "latency"]
    )
    keep = (rows["op_name"] == NCCL_NAMES.get(name, name)) & (rows["nccl_dtype"] == "half")
    keep &= rows["num_gpus"] == ranks
    return _points(rows, keep, f"{table.label} {name}") if bool(keep.any()) else None


def _of_machine(
    database: Database, rows: Rows, all_reduce: Rows | None, ranks: int, peer_to_peer: bool | None
) -> Rows | None:
    """The rows, whose label says how devices on PCIe reached each other; None where they were
    measured on the other kind of machine than is asked for. A table's all-reduce tells its machine.
    """
    known = all_reduce is not None
    peers = all_reduce is not None and _has_peer_access(database, all_reduce, ranks)
    if peer_to_peer is not None and (not known or peers != peer_to_peer):
        return None
    on_pcie = database.constant("intra_node_bw", 0.0) <= database.constant("pcie_bw", 0.0)
    if not known or not on_pcie:
        return rows
    label, elements, times_us = rows
    return f"{label}, {PEER_TO_PEER if peers else THROUGH_HOST}", elements, times_us


def _has_peer_access(database: Database, all_reduce: Rows, ranks: int) -> bool:
    """Whether the largest measured all-reduce is too fast to have gone through the host's memory
    (PEER_SHARE).
    """
    _, elements, times_us = all_reduce
    moved_bytes = elements[-1] * ELEMENT_BYTES * 2 * (ranks - 1) / ranks
    link_bytes_per_s = database.constant("intra_node_bw", 0.0)
    return bool(moved_bytes / (times_us[-1] * 1e-6) >= PEER_SHARE * link_bytes_per_s)


def measured_times(database: Database, name: str, ranks: int) -> Rows | None:
    """(label, bytes, microseconds) of a collective by NCCL, or of "vllm_graph" and "vllm_eager"."""
    found = (
        custom_rows(database, ranks, eager=name == "vllm_eager")
        if name.startswith("vllm_")
        else nccl_rows(database, name, ranks)
    )
    return None if found is None else (found[0], found[1] * ELEMENT_BYTES, found[2])


def _points(rows: dict[str, NDArray[np.generic]], keep: NDArray[np.bool_], label: str) -> Rows:
    """(label, elements ascending, microseconds); the faster row where a size was measured twice."""
    sizes = rows["message_size"][keep].astype(np.float64)
    times_us = rows["latency"][keep].astype(np.float64) * 1e3
    points, owner = np.unique(sizes, return_inverse=True)
    best = np.full(len(points), np.inf)
    np.minimum.at(best, owner, times_us)
    return label, points, best


def _lookup(points: Floats, times_us: Floats, sizes: Floats) -> Floats:
    """Linear between measured sizes, constant below, the last slope above."""
    times = np.interp(sizes, points, times_us)
    if len(points) > 1:
        slope = max(0.0, (times_us[-1] - times_us[-2]) / (points[-1] - points[-2]))
        times = times + slope * np.maximum(sizes - points[-1], 0.0)
    return np.asarray(times)


def _curve(times_us: Floats, points: Floats, sizes: Floats, label: str) -> Curve:
    ps = to_ps(times_us)
    ps[0] = 0
    marks = np.where(np.isin(sizes, points), Provenance.MEASURED, Provenance.INTERPOLATED)
    marks = np.where((sizes > points[-1]) | (sizes < points[0]), Provenance.EXTRAPOLATED, marks)
    return Curve(ps, marks.astype(np.uint8), label)
