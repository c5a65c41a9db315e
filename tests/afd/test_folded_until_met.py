"""Steps whose rows share ports with KV are folded until somebody comes: the same picoseconds, bytes
and counters as with all rows in the network.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from afd.sides import FEATURE, limits, side
from afd.test_folded_afd import Drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import router, simulation

from llmsim import _native

KV_LAYERS = 2
MS = 10**9


class Served:
    """Prefill groups that hand KV to the attention members of a random deployment."""

    def __init__(self, data: Any) -> None:
        draw = data.draw
        self.drawn = Drawn(data)
        self.depth = self.drawn.stages if self.drawn.stages > 1 else draw(st.integers(1, 2))
        self.prefills = draw(st.integers(1, 2))
        self.config, self.gap = self.drawn.config(), draw(st.sampled_from([0, 777]))
        self.programs = self.drawn.programs(self.gap)
        self.kv_per_token = draw(st.sampled_from([1, 10**4, 10**7]))
        self.prompts = side()
        self.prompts.add("layer", FEATURE.TOKENS, 1, table=draw(st.sampled_from([1, MS, 50 * MS])))
        self.prompts.attention(1)
        # Out of attention, in, and those of the FFN members.
        self.taken = draw(st.sampled_from([(False, True, False), (True, True, False), (True,) * 3]))
        self.interval_ps = draw(st.sampled_from([0, 7 * MS]))
        self.horizon_ps = draw(st.sampled_from([0, 0, 300 * MS]))
        span = draw(st.sampled_from([10**8, 10**11, 10**12]))
        rng = self.drawn.rng
        self.requests = sorted(
            (int(rng.integers(0, span)), int(rng.integers(1, 40)), int(rng.integers(2, 9)))
            for _ in range(8)
        )

    def run(self, *, exact: bool) -> Any:
        """A simulation to its end, or to its horizon."""
        drawn, network = self.drawn, _native.NetworkConfig(_native.Sharing.FAIR)
        ports = [port for n, port in enumerate(drawn.ports(network)) if self._takes(n)]
        links = [(network.add_link(10**9, 5), network.add_link(10**9, 5)) for _ in range(2)]
        places = [network.add_place(0, links[n], (-1, -1)) for n in range(self.prefills)]
        attending = [drawn.places[m * drawn.stages] for m in range(drawn.attention)]
        nowhere: list[list[int]] = [[] for _ in range(drawn.ffn)]
        kv = _native.KvTransferConfig(
            False, False, [[place] for place in (*places, *attending)] + nowhere
        )
        of_layers = [(list(range(KV_LAYERS)), self.kv_per_token, 0, 0)]
        table = kv.add_table([(0, 0, of_layers)])
        first = self.prefills
        for sender in range(first):
            for member in range(drawn.attention):
                kv.add_route(sender, first + member, table)
        roles = ["PREFILL"] * first + ["DECODE"] * drawn.attention + ["FFN"] * drawn.ffn
        programs = [self.prompts.program() for _ in range(first)] + self.programs
        members = list(range(first, len(roles)))
        sim = simulation(
            self.requests,
            [self._group(n, *one) for n, one in enumerate(zip(roles, programs, strict=True))],
            lockstep=[_native.LockstepSpec(members, 4, self.config, exact, ports)],
            network=network,
            kv_transfer=kv,
            router=router("RR"),
            decode_router=router("RR"),
            interval_ps=self.interval_ps,
            horizon_ps=self.horizon_ps,
        )
        while not sim.run(10_000) and not sim.at_horizon:
            pass
        return sim

    def _takes(self, port: int) -> bool:
        """Whether rows on a port of `Drawn.ports` are flows."""
        out, into, of_ffn = self.taken
        unit, leaves = port // 2, port % 2 == 0
        if unit // self.drawn.stages >= self.drawn.attention:
            return of_ffn
        return out if leaves else into

    def _group(self, index: int, role: str, program: Any) -> Any:
        group = _native.GroupConfig()
        group.index, group.role = index, getattr(_native.Role, role)
        group.depth = 1 if role == "PREFILL" else self.depth
        scheduler = None
        if role != "FFN":
            scheduler = limits(64, group.depth)
            scheduler.kv_producer, scheduler.kv_consumer = role == "PREFILL", role == "DECODE"
        return _native.GroupSpec(group, scheduler, program, record_steps=True)


def tables(sim: Any) -> dict[str, dict[str, Any]]:
    """All that a run tells."""
    return {
        "requests": sim.requests(),
        "steps": sim.steps(),
        "transfers": sim.kv_transfers(),
        "links": sim.network(),
        "blame": sim.blame(),
        "counters": sim.counters(),
        "series": sim.take_series(),
        "series of links": sim.take_link_series(),
        "end": {"now_ps": np.array([sim.now_ps]), "finished": np.array([sim.num_finished])},
        "busy": {"times": np.array([repr(sim.busy_time())])},
    }


def differing(first: Any, second: Any) -> Sequence[str]:
    """The columns in which two runs differ."""
    a, b = tables(first), tables(second)
    return [
        f"{table}.{name}"
        for table, columns in a.items()
        for name, column in columns.items()
        if not np.array_equal(column, b[table][name])
    ]


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_as_with_all_rows_in_the_network(data: Any) -> None:
    served = Served(data)
    assert differing(served.run(exact=False), served.run(exact=True)) == []
