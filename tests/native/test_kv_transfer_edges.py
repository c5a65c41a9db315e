"""Edges of the hand-over: routes that name no table, and what a client is told who left while its
KV was on the way.
"""

from typing import Any

import numpy as np
import pd
import pytest
from pd import MS, PER_TOKEN, STEP, Cluster, kv_transfers, run

from llmsim import _native
from llmsim.core import Status

PROMPT_PS = STEP + 64 * PER_TOKEN
TRANSFER_PS = 256 * MS
"""64 tokens of 4 kB at 1 MB/s."""
MESSAGE_PS = 1000


def with_table(monkeypatch: pytest.MonkeyPatch, table: int) -> Any:
    """A run whose only route names this table, of which there is one."""

    def routed(cluster: Cluster, places: list[list[int]]) -> Any:
        config = _native.KvTransferConfig(cluster.push, cluster.layerwise, places)
        config.add_table([(0, 0, cluster.kinds)], cluster.block_size, False)
        config.add_route(0, 1, table)
        return config

    monkeypatch.setattr(pd, "kv_transfers", routed)
    return run([(0, 64, 2)], Cluster([50], [50]))


@pytest.mark.parametrize("table", [-1, 1, 2])
def test_a_route_that_names_no_table_is_refused(
    monkeypatch: pytest.MonkeyPatch, table: int
) -> None:
    with pytest.raises(ValueError, match="a route names an unknown table"):
        with_table(monkeypatch, table)


def test_the_first_table_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_table(monkeypatch, 0).kv_transfers()["kv_transfer_bytes"].tolist() == [64 * 4000]
    assert kv_transfers is not pd.kv_transfers


@pytest.mark.parametrize("push", [False, True])
@pytest.mark.parametrize("after_ps", [1, TRANSFER_PS // 2, TRANSFER_PS - 1])
def test_who_leaves_while_the_kv_is_on_the_way_waited_for_the_kv(push: bool, after_ps: int) -> None:
    """Not for the decode group's next step: the KV never came."""
    reserved_ps = PROMPT_PS + 2 * MESSAGE_PS
    patience_ps = reserved_ps + after_ps
    cluster = Cluster([50], [50], push=push, bytes_per_s=10**6)
    sim = run([(0, 64, 3)], cluster, timeouts=[patience_ps])
    blame = {name: int(column[0]) for name, column in sim.blame().items()}
    assert sim.requests()["cancelled_ps"].tolist() == [patience_ps]
    assert blame["prefill_ps"] == PROMPT_PS
    assert blame["kv_transfer_ps"] >= after_ps and blame["wait_ps"] == 0
    assert sum(blame.values()) == patience_ps


def test_who_leaves_while_the_pool_below_is_read_waited_for_the_kv() -> None:
    """The third prompt is the first with half a block more: that lands long before the pool's 128
    tokens are read.
    """
    cluster = Cluster([50], [12], caching=True, bytes_per_s=10**6, tier_chunks=20, tier_parks=True)
    rows = [(0, 128, 2), (2_000_000, 150, 8), (6_000_000, 136, 3)]
    begin = list(range(1, 9))
    keys = [begin, list(range(11, 20)), begin]
    patient = run(rows, cluster, keys)
    landed_ps, arrival_ps = int(patient.kv_transfers()["kv_landed_ps"][2]), rows[2][0] * 10**6
    there_ps = int(patient.kv_transfers()["decode_scheduled_ps"][2])
    assert patient.kv_transfers()["decode_cached_tokens"].tolist() == [0, 0, 128]
    assert there_ps - landed_ps > 100 * MS
    waited_ps = {}
    for left_ps in ((landed_ps + there_ps) // 2, there_ps - 1, there_ps):
        sim = run(rows, cluster, keys, timeouts=[-1, -1, left_ps - arrival_ps])
        blame = {name: int(column[2]) for name, column in sim.blame().items()}
        assert blame["wait_ps"] == 0 and sum(blame.values()) == left_ps - arrival_ps
        waited_ps[left_ps] = blame["kv_transfer_ps"]
    (first, second, third) = waited_ps.items()
    assert second[1] - first[1] == second[0] - first[0] and third[1] - second[1] == 1


def test_who_leaves_when_a_part_has_landed_waited_for_the_kv() -> None:
    """Layer by layer on one link, the first of four layers is there after a quarter of the time."""
    cluster = Cluster([50], [50], push=True, layerwise=True, bytes_per_s=10**6, sharing="FIFO")
    whole = run([(0, 64, 3)], cluster).kv_transfers()
    landed_ps = int(whole["kv_landed_ps"][0])
    for share in (2, 3):
        left_ps = landed_ps - TRANSFER_PS * share // 8
        sim = run([(0, 64, 3)], cluster, timeouts=[left_ps])
        blame = {name: int(column[0]) for name, column in sim.blame().items()}
        assert blame["wait_ps"] == 0 and sum(blame.values()) == left_ps
        assert blame["kv_transfer_ps"] == left_ps - PROMPT_PS


def test_a_run_that_is_cut_says_where_its_prompts_stand() -> None:
    """One runs and one waits where they prefill; then the second runs, and in the end both wait for
    their KV.
    """
    cluster = Cluster([50], [50], max_seqs=1, bytes_per_s=10**6)
    rows = [(0, 64, 3), (0, 64, 3)]
    status = {
        name: int(getattr(Status, name)) for name in ("WAITING", "RUNNING", "FINISHED", "PARKED")
    }
    for cut_ps, expected in (
        (PROMPT_PS // 2, ["RUNNING", "WAITING"]),
        (PROMPT_PS + MS, ["PARKED", "RUNNING"]),
        (PROMPT_PS + TRANSFER_PS + 2 * STEP, ["PARKED", "PARKED"]),
        (10 * TRANSFER_PS, ["FINISHED", "FINISHED"]),
    ):
        found = run(rows, cluster, horizon_ps=cut_ps).requests()["status"].tolist()
        assert found == [status[name] for name in expected], cut_ps


def caching_in(layers: tuple[int, ...]) -> Any:
    """A program of four equal layers, some of which cache something: a state in the first of them,
    KV in the others.
    """

    def program(budget: int, max_seqs: int, *_: Any) -> Any:
        compute, tokens = _native.NodeKind.COMPUTE, _native.Feature.TOKENS
        every = np.full(budget + 1, STEP // 4, np.int64)
        nothing = np.zeros(budget + 1, np.int64)
        behind = np.arange(budget + 1, dtype=np.int64) * PER_TOKEN
        marks, zero = np.zeros(budget + 1, np.uint8), np.zeros(1, np.int64)
        state, kv = layers[:1], layers[1:]
        empty = (np.empty(0, np.int64), np.empty(0, np.uint8))
        attention = _native.Operator(
            "attention", _native.NodeKind.ATTENTION, tokens, 1, len(kv), *empty, layers=kv
        )
        ops = [
            _native.Operator("layer", compute, tokens, 1, 4, every, marks),
            _native.Operator(
                "state", compute, tokens, 1, 1, nothing, marks, layers=state, caches=True
            ),
            *([attention] if kv else []),
            _native.Operator("tail", compute, tokens, 2, 1, behind, marks),
        ]
        price = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
        padding = np.arange(budget + 1, dtype=np.int32)
        return _native.Program(ops, price, padding, _native.LowerBound(), 0)

    return program


@pytest.mark.parametrize("caching", [(0, 1, 2, 3), (1, 3), (2,), (0, 2, 3)])
def test_layers_leave_when_what_they_cache_is_there(
    monkeypatch: pytest.MonkeyPatch, caching: tuple[int, ...]
) -> None:
    """Behind their layer; with the step where nothing caches their KV."""
    monkeypatch.setattr(pd, "program", caching_in(caching))
    landed_ps = []
    for layer in range(4):

        def one_layer(cluster: Cluster, places: list[list[int]], layer: int = layer) -> Any:
            config = _native.KvTransferConfig(cluster.push, cluster.layerwise, places)
            table = config.add_table([(0, 0, [([layer], 1000, 0, 0)])], cluster.block_size, False)
            config.add_route(0, 1, table)
            return config

        monkeypatch.setattr(pd, "kv_transfers", one_layer)
        cluster = Cluster([50], [50], push=True, layerwise=True, bytes_per_s=10**12)
        landed_ps.append(int(run([(0, 64, 1)], cluster).kv_transfers()["kv_landed_ps"][0]))
    leaves_ps = [
        STEP // 4 * (layer + 1) if layer in caching else STEP + 64 * PER_TOKEN for layer in range(4)
    ]
    assert [ps - landed_ps[0] for ps in landed_ps] == [ps - leaves_ps[0] for ps in leaves_ps]


def test_layers_of_an_operator_ascend() -> None:
    for layers in ((1, 1), (2, 1), (-1, 0), (0,)):
        op = _native.Operator(
            "op",
            _native.NodeKind.COMPUTE,
            _native.Feature.TOKENS,
            1,
            2,
            np.zeros(2, np.int64),
            np.zeros(2, np.uint8),
            layers=layers,
        )
        zero = np.zeros(1, np.int64)
        price = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
        with pytest.raises(ValueError, match="operator op: there are 2 layers, which ascend"):
            _native.Program([op], price, np.zeros(2, np.int32), _native.LowerBound(), 0)
