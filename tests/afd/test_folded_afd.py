"""Steps of attention and FFN groups: folded equals every node of every layer in the engine, and
rows that are flows on a network of their own.
"""

from typing import Any

import numpy as np
from afd.sides import FEATURE, HEAD, KIND, PROLOGUE, TOKENS, Side, hop, run, side
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim import _native


class Drawn:
    """A random model on random attention and FFN groups."""

    def __init__(self, data: Any) -> None:
        draw = data.draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        self.attention, self.ffn = draw(st.integers(1, 6)), draw(st.integers(1, 3))
        self.alike = draw(st.booleans())
        self.stages, self.lanes = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        self.columns, self.sharing = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 4)]))
        self.sampled = draw(st.booleans())
        self.a, self.f = side(), side(self.attention)
        self.bytes_per_s = 1 + self._ps(10**11), 1 + self._ps(10**11)
        self.bands: list[Any] = []
        for stage in range(self.stages):
            self._stage(stage, draw)

    def _ps(self, most: int = 10**9) -> int:
        return int(self.rng.integers(0, most))

    def _stage(self, stage: int, draw: Any) -> None:
        dense, moe = draw(st.integers(0, 3)), draw(st.integers(1, 12))
        layers = dense + moe
        around: dict[str, Any] = {"stage": stage}
        if stage == 0:
            self.a.add("embedding", FEATURE.TOKENS, 1, table=self._ps(), part=PROLOGUE, **around)
        attention = [
            self.a.add("qkv", FEATURE.TOKENS, layers, table=self._ps(), **around),
            self.a.attention(layers, stage),
        ]
        if draw(st.booleans()):
            moved = {**around, "kind": KIND.COLLECTIVE}
            attention.append(
                self.a.add("all_reduce", FEATURE.TOKENS, layers, table=self._ps(), **moved)
            )
        self._tail(stage, around)
        of_dense = [self.f.add("mlp", FEATURE.TOKENS, dense, table=self._ps(), **around)]
        of_moe = [
            self.f.add("gate", FEATURE.TOKENS, moe, table=self._ps(10**7), **around),
            self._experts(moe, around),
        ]
        if dense:
            self.bands.append(
                _native.AfdBand(stage, dense, [_native.AfdLayer(attention, of_dense, 0)])
            )
        # Every second layer without the collective: a period of two.
        layer, other = (_native.AfdLayer(attention[:n], of_moe, 1) for n in (3, 2))
        period = [layer, other] if moe % 2 == 0 and not self.sampled else [layer]
        self.bands.append(_native.AfdBand(stage, moe // len(period), period))

    def _tail(self, stage: int, around: dict[str, Any]) -> None:
        if stage + 1 < self.stages:
            send = {**around, "kind": KIND.STAGE_SEND, "part": HEAD}
            self.a.add("stage_send", FEATURE.TOKENS, 1, table=self._ps(), **send)
            return
        self.a.add("norm", FEATURE.TOKENS, 1, table=self._ps(), part=HEAD, **around)
        self.a.add("lm_head", FEATURE.SEQUENCES, 1, table=self._ps(), part=HEAD, **around)

    def _experts(self, moe: int, around: dict[str, Any]) -> int:
        if not self.sampled:
            return self.f.add("experts", FEATURE.GATHERED, moe, table=self._ps(), **around)
        points = np.array([1, 4 * TOKENS * 3], np.int64)
        values = self.rng.integers(1, 10**9, 2 * moe).astype(np.int64)
        table = _native.SampledCostTable(points, moe, 1, values, 1, 0)
        return self.f.add("experts", FEATURE.GATHERED, moe, table=0, sampled=table, **around)

    def config(self) -> Any:
        """What the core wants."""
        ports = [[self._ps(10**5) for _ in range(4)] for _ in range(2)]
        return _native.AfdConfig(
            attention_members=self.attention,
            lanes=self.lanes,
            columns=self.columns,
            sharing=self.sharing,
            bands=self.bands,
            hops=[hop(*sizes) for sizes in ports],
            latency_ps=self._ps(10**7),
            attention_bytes_per_s=self.bytes_per_s[0],
            ffn_bytes_per_s=self.bytes_per_s[1],
        )

    def ports(self, network: Any) -> list[Any]:
        """The ports of all units, each a link of the network."""
        self.places = places = list[int]()
        links: list[tuple[int, int]] = []
        units = [
            (m, stage) for m in range(self.attention + self.ffn) for stage in range(self.stages)
        ]
        for member, _ in units:
            rate = self.bytes_per_s[member >= self.attention]
            links.append((network.add_link(rate, 0), network.add_link(rate, 0)))
            places.append(network.add_place(0, links[-1], (-1, -1)))
        return [
            _native.SharedPort(*unit, out, [(place, places[0], [link])])
            for unit, place, both in zip(units, places, links, strict=True)
            for out, link in zip((True, False), both, strict=True)
        ]

    def programs(self, gap: int) -> list[Any]:
        """Attention's, then the FFN's, which have no host between steps; those of a side may be one
        program.
        """
        counts = np.arange(self.f.sizes[FEATURE.TOKENS] + 1)
        padded = np.minimum(-(-counts // 8) * 8, counts[-1])
        if self.alike:
            attention, ffn = self.a.program(self._ps(10**8), gap), self.f.program(0, 0, padded)
            return [attention] * self.attention + [ffn] * self.ffn
        return [
            *(self.a.program(self._ps(10**8), gap) for _ in range(self.attention)),
            *(self.f.program(0, 0, padded) for _ in range(self.ffn)),
        ]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_folded_equals_expanded(data: Any) -> None:
    drawn = Drawn(data)
    depth = drawn.stages if drawn.stages > 1 else data.draw(st.integers(1, 2))
    config, gap = drawn.config(), data.draw(st.sampled_from([0, 777]))
    programs = drawn.programs(gap)
    requests = sorted(
        (int(drawn.rng.integers(0, 10**11)), int(drawn.rng.integers(1, 150)), 3) for _ in range(6)
    )
    first, *others = (
        run(programs, config, drawn.attention, requests, depth=depth, exact=exact)
        for exact in (False, True)
    )
    for exact in (False, True):
        network = _native.NetworkConfig(_native.Sharing.FAIR)
        parts = {"ports": drawn.ports(network), "network": network}
        others.append(
            run(programs, config, drawn.attention, requests, depth=depth, exact=exact, **parts)
        )
    for other in others:
        _assert_equal(first, other)


def _assert_equal(first: Any, second: Any) -> None:
    assert first.num_finished == second.num_finished == 6
    a, b = first.steps(), second.steps()
    assert all((a[name] == b[name]).all() for name in a)
    assert first.busy_time() == second.busy_time()
    for name, part in first.blame().items():
        assert (second.blame()[name] == part).all(), name


def test_side_is_a_program() -> None:
    """The helper's tables begin at 0 for no tokens."""
    made: Side = side()
    made.add("x", FEATURE.TOKENS, 1, table=5)
    made.attention(1)
    assert made.program().step_ps([(3, 0)]) == 5
