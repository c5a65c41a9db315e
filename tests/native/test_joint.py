"""Waves and pipelines: the folded joint iteration and every rank's nodes in the engine end at the
same picosecond.
"""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import router, simulation

from llmsim import _native
from llmsim._native import engine

TOKENS, SEQUENCES = 64, 8
PROLOGUE, LAYER, HEAD = 0, 1, 2


class Plan:
    """A random program for members x stages x tp devices, and how its collectives run."""

    def __init__(self, draw: Any, members: int, stages: int, tp: int) -> None:
        self.members, self.stages, self.tp = members, stages, tp
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        self.network = draw(
            st.sampled_from(
                [engine.NetworkKind.CONGESTION_AWARE, engine.NetworkKind.CONGESTION_UNAWARE]
            )
        )
        self.links = [
            (draw(st.integers(1, 900)) * 10**9 + 7, draw(st.integers(0, 10**7))) for _ in range(3)
        ]
        self.measured = draw(st.booleans())
        self.ops: list[Any] = []
        self.specs: list[Any] = []
        self.shared: list[Any] = []
        """Those between members and between stages."""
        self.over_all_ranks = False
        self.inside: list[Any] = []
        """Those of the ranks of a stage."""
        for stage in range(stages):
            self._stage(draw, stage)

    def topology(self) -> Any:
        sizes = (self.tp, self.stages, self.members)
        dims = [(n, *link) for n, link in zip(sizes, self.links, strict=True) if n > 1]
        return _native.mesh(dims or [(1, *self.links[0])])

    def _stage(self, draw: Any, stage: int) -> None:
        layers, gathered = draw(st.integers(1, 6)), _native.Feature.GATHERED
        moe = draw(st.integers(0, layers)) if self.members > 1 else 0
        if stage == 0:
            self._compute("embedding", PROLOGUE, 1, _native.Feature.TOKENS, stage)
        self._compute("qkv", LAYER, layers, _native.Feature.TOKENS, stage)
        attention = (np.empty(0, np.int64), np.empty(0, np.uint8), stage)
        kinds = (_native.NodeKind.ATTENTION, _native.Feature.TOKENS, LAYER, layers)
        self.ops.append(_native.Operator("attention", *kinds, *attention))
        if self.tp > 1:
            self._collective(
                "all_reduce",
                engine.CollectiveKind.ALL_REDUCE,
                layers,
                _native.Feature.TOKENS,
                stage,
            )
        if moe:
            pair = [engine.CollectiveKind.ALL_GATHER, engine.CollectiveKind.REDUCE_SCATTER]
            if self.measured and draw(
                st.booleans()
            ):  # exchanges of rows, whose times no ring gives
                pair = [engine.CollectiveKind.ALL_TO_ALL] * 2
            self._collective("dispatch", pair[0], moe, gathered, stage)
            self._compute("experts", LAYER, moe, gathered, stage)
            self._collective("combine", pair[1], moe, gathered, stage)
        self._compute("mlp", LAYER, layers, _native.Feature.TOKENS, stage)
        if stage + 1 == self.stages:
            self._compute("head", HEAD, 1, _native.Feature.SEQUENCES, stage)
            if self.tp > 1:
                gather = engine.CollectiveKind.ALL_GATHER
                self._collective("logits_gather", gather, 1, _native.Feature.SEQUENCES, stage, HEAD)
        else:
            self._kv_transfer(stage)

    def _table(self, size: int, most: int) -> Any:
        return np.concatenate([[0], self.rng.integers(1, most, size)]).astype(np.int64)

    def _size(self, feature: Any) -> int:
        if feature == _native.Feature.SEQUENCES:
            return SEQUENCES
        return TOKENS * self.members if feature == _native.Feature.GATHERED else TOKENS

    def _add(
        self, name: str, kind: Any, part: int, repeat: int, feature: Any, table: Any, stage: int
    ) -> None:
        marks = np.zeros(len(table), np.uint8)
        self.ops.append(_native.Operator(name, kind, feature, part, repeat, table, marks, stage))

    def _compute(self, name: str, part: int, repeat: int, feature: Any, stage: int) -> None:
        table = self._table(self._size(feature), 10**9)
        self._add(name, _native.NodeKind.COMPUTE, part, repeat, feature, table, stage)

    def _collective(
        self, name: str, kind: Any, repeat: int, feature: Any, stage: int, part: int = LAYER
    ) -> None:
        between = feature == _native.Feature.GATHERED
        ranks, link = (self.members, self.links[2]) if between else (self.tp, self.links[0])
        per_unit, count = int(self.rng.integers(1, 10_000)), self._size(feature)
        table = self._table(count, 10**8)
        if not self.measured:
            flat = engine.Topology.fully_connected(ranks, *link)
            site = engine.CollectiveSite(
                flat, list(range(ranks)), kind, engine.Algorithm.RING, network=self.network
            )
            table[1:] = engine.isolated_durations(
                site, np.arange(1, count + 1, dtype=np.int64) * per_unit
            )
        self.specs.append(
            _native.CollectiveSpec(len(self.ops), kind, 0 if self.measured else per_unit)
        )
        shared = self.shared if between else self.inside
        ring = kind != engine.CollectiveKind.ALL_TO_ALL
        everyone = between and self.measured and ring and bool(self.rng.integers(0, 2))
        self.over_all_ranks |= everyone
        shared.append(_native.CollectiveSpec(len(self.ops), kind, per_unit, everyone=everyone))
        self._add(name, _native.NodeKind.COLLECTIVE, part, repeat, feature, table, stage)

    def _kv_transfer(self, stage: int) -> None:
        per_unit = self.sent_bytes_per_token = int(self.rng.integers(1, 100_000))
        flat = engine.Topology.fully_connected(2, *self.links[1])
        pair = engine.CollectiveSite(
            flat,
            [0, 1],
            engine.CollectiveKind.ALL_GATHER,
            engine.Algorithm.RING,
            network=self.network,
        )
        sizes = np.arange(1, TOKENS + 1, dtype=np.int64) * 2 * per_unit
        table = np.concatenate([[0], engine.isolated_durations(pair, sizes)]).astype(np.int64)
        self.specs.append(
            _native.CollectiveSpec(len(self.ops), engine.CollectiveKind.ALL_GATHER, per_unit)
        )
        self.shared.append(self.specs[-1])
        self._add(
            "handover", _native.NodeKind.STAGE_SEND, LAYER, 1, _native.Feature.TOKENS, table, stage
        )


def shared_links(plan: Plan, port: tuple[int, int, bool]) -> dict[str, Any]:
    """The network and its contention: every device has a port of (bytes/s, latency), or all send by
    one, for whatever is between devices.
    """
    bytes_per_s, latency, common = port
    network = _native.NetworkConfig(_native.Sharing.FAIR)
    one = network.add_link(bytes_per_s, latency)
    places = []
    for _ in range(plan.members * plan.stages * plan.tp):
        link = (
            one if common else network.add_link(bytes_per_s, latency),
            network.add_link(bytes_per_s, 0),
        )
        places.append(network.add_place(0, link, (-1, -1)))
    moved = plan.shared + plan.inside
    spec = _native.ContentionSpec(list(range(plan.members)), places, moved)
    return {"network": network, "contention": [spec]}


def simulate(
    plan: Plan,
    padded: Any,
    largest: int,
    gap: int,
    depth: int,
    requests: Any,
    exact: bool,
    port: Any = None,
) -> Any:
    axis = np.array([0, 16, 64], np.int64)
    cells = np.random.default_rng(7).integers(0, 10**9, 81).astype(np.int64)

    def program() -> Any:
        attention = _native.Attention.mixed([axis] * 4, cells, 12_345 << 20)
        return _native.Program(plan.ops, attention, padded, _native.LowerBound(), gap, largest)

    expanded = (
        _native.ExpandedConfig(plan.topology(), plan.network, plan.specs, plan.members)
        if exact
        else None
    )
    scheduler = _native.SchedulerConfig()
    scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = SEQUENCES, TOKENS
    scheduler.async_scheduling = plan.stages == 1 and depth == 2
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.max_model_len = 60, 10_000
    scheduler.kv = kv
    groups = []
    for index in range(plan.members):
        group = _native.GroupConfig()
        group.index, group.depth = index, depth
        mine = expanded if plan.members == 1 else None
        groups.append(_native.GroupSpec(group, scheduler, program(), mine, record_steps=True))
    parts: dict[str, Any] = {} if port is None else shared_links(plan, port)
    if plan.members > 1:
        members = list(range(plan.members))
        parts["lockstep"] = [_native.LockstepSpec(members, 4, expanded)]
        parts["router"] = router("RR")
    sim = simulation(requests, groups, **parts)
    while not sim.run(10_000):
        pass
    return sim


def drawn_case(data: Any, members: int, stages: int, tp: int = 0) -> tuple[Any, ...]:
    """The arguments of `simulate` up to the requests."""
    plan = Plan(data.draw, members, stages, tp or data.draw(st.integers(1, 3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    largest = data.draw(st.sampled_from([0, 16, 64]))
    counts = np.arange(TOKENS + 1)
    padded = np.where(counts <= largest, -(-counts // 16) * 16, counts).astype(np.int32)
    depth = data.draw(st.integers(1, 2)) if stages == 1 else stages
    gap = data.draw(st.sampled_from([0, 777]))
    requests = [
        (int(rng.integers(0, 10**11)), int(rng.integers(1, 150)), int(rng.integers(1, 20)))
        for _ in range(12)
    ]
    return plan, padded, largest, gap, depth, sorted(requests)


def assert_same(first: Any, second: Any) -> None:
    a, b = first.steps(), second.steps()
    assert len(a["end_ps"]) > 5 and first.num_finished == 12
    assert all((a[name] == b[name]).all() for name in a)
    assert first.busy_time() == second.busy_time()
    for name, part in first.blame().items():
        assert (second.blame()[name] == part).all()


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_folded_equals_expanded(data: Any) -> None:
    case = drawn_case(data, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    assert_same(simulate(*case, False), simulate(*case, True))


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(), port=st.tuples(st.integers(10**9, 10**12), st.integers(0, 10**7), st.booleans())
)
def test_alone_on_shared_links_nothing_changes(data: Any, port: tuple[int, int, bool]) -> None:
    """Flows take what the tables say, whatever the links, if nobody else moves: inside a stage,
    between members (here of one rank, whose flows may share one link, or of two), and between
    stages of one rank.
    """
    layouts = [
        (1, 1, 2),
        (1, 1, 3),
        (2, 1, 1),
        (3, 1, 1),
        (2, 1, 2),
        (3, 1, 2),
        (1, 2, 1),
        (1, 3, 1),
    ]
    members, stages, tp = data.draw(st.sampled_from(layouts))
    case = drawn_case(data, members, stages, tp)
    common = port[2] and stages == 1 and min(members, tp) == 1
    assert_same(simulate(*case, False), simulate(*case, False, (*port[:2], common)))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_hidden_states_cross_the_port_of_the_first_stage(data: Any) -> None:
    """One device per stage: nothing else leaves the first one, and the second one sends nothing."""
    case = drawn_case(data, 1, 2, 1)
    plan, padded = case[:2]
    sim = simulate(*case, False, (10**12, 0, False))
    steps = sim.steps()
    expected = int(padded[steps["tokens"]].sum()) * plan.sent_bytes_per_token
    moved = sim.network()["bytes"][1:].tolist()  # the first link is of ports in common
    assert moved == [expected, 0, 0, expected]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_each_rank_has_a_ring_of_its_own_between_members(data: Any) -> None:
    """What goes from member to member leaves by the ports of all its ranks, as much by each."""
    case = drawn_case(data, 2, 1, 2)
    plan = case[0]
    out = simulate(*case, False, (10**12, 0, False)).network()["bytes"][1::2]
    assert len(out) == 4 and (out > 0).all()
    if not plan.over_all_ranks:  # else the last rank of a member sends to the next one alone
        assert out[0] == out[1] and out[2] == out[3]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_members_and_stages_slow_each_other_down_on_one_port(data: Any) -> None:
    """With both, hidden states of one batch and a collective of the next may meet; nothing is lost,
    and the batches end no earlier for as long as they are the same. (Later steps may find more
    requests to take together, and be fewer.)
    """
    case = drawn_case(data, data.draw(st.integers(2, 3)), data.draw(st.integers(2, 3)))
    alone, shared = simulate(*case, False), simulate(*case, False, (10**9, 10**5, False))
    assert shared.num_finished == 12
    before, after = alone.steps(), shared.steps()
    # Rows stand group by group, but the members of a wave wait for each other: they are the same up
    # to the same step.
    places = [
        [np.flatnonzero(one["group"] == member) for member in range(case[0].members)]
        for one in (before, after)
    ]
    rounds = min(len(rows) for one in places for rows in one)
    first, second = (np.stack([rows[:rounds] for rows in one]) for one in places)
    alike = np.all(
        [before[name][first] == after[name][second] for name in ("tokens", "sequences")],
        axis=(0, 1),
    )
    same = rounds if alike.all() else int(alike.argmin())
    assert same > 0
    assert (after["end_ps"][second[:, :same]] >= before["end_ps"][first[:, :same]]).all()
    r = shared.requests()
    assert (sum(shared.blame().values()) == r["finish_ps"] - r["arrival_ps"]).all()
