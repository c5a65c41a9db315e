"""Collectives and messages of a domain in the engine, alone on their network: how long they take at
many sizes.
"""

from collections.abc import Mapping

import numpy as np

from llmsim._native import engine
from llmsim.core import Int64
from llmsim.model import Collective

FEWEST_SIZES = 64


class Run:
    """Collectives or messages that start together, again and again on one engine."""

    def __init__(
        self,
        topology: "engine.Topology",
        network: "engine.NetworkKind",
        op: Collective,
        run: list[list[int]],
        kinds: Mapping[str, "engine.CollectiveKind"],
    ) -> None:
        builder = engine.GraphBuilder(topology.num_devices)
        self._nodes = 0
        for call, group in enumerate(run):
            if op.collective == "send":
                from_device, to_device = group
                builder.transfer(from_device, to_device, 1)
                self._nodes += 1
                continue
            plan = builder.add_plan(
                kinds[op.collective], engine.Algorithm.RING, builder.add_group(group)
            )
            for device in group:
                builder.collective(device, plan, call, 1)
            self._nodes += len(group)
        self._graph = builder.build()
        self._engine = engine.Engine(topology, network)

    def duration_ps(self, size: int) -> int:
        begin = self._engine.now_ps
        run = self._engine.submit(self._graph, begin, np.full(self._nodes, size, np.int64))
        self._engine.run()
        _, ends_ps = self._engine.times(run)
        self._engine.release(run)
        return int(np.max(np.asarray(ends_ps))) - begin


def interpolated(simulate: Run, sizes: Int64, most: int) -> Int64:
    """Linear between about `most` simulated sizes, rounded down; the ends are always simulated."""
    places = (
        np.unique(np.geomspace(1, len(sizes), max(most, FEWEST_SIZES)).round().astype(np.int64)) - 1
    )
    known = np.array([simulate.duration_ps(int(sizes[place])) for place in places], np.int64)
    after = np.searchsorted(places, np.arange(len(sizes)), side="left")
    before = np.maximum(after - (places[after] > np.arange(len(sizes))), 0)
    span = np.maximum(places[after] - places[before], 1)
    return np.asarray(
        known[before]
        + (known[after] - known[before]) * (np.arange(len(sizes)) - places[before]) // span
    )
