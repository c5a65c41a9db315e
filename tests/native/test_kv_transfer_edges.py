"""Edges of the hand-over: routes that name no table, and what a client is told who left while its
KV was on the way.
"""

from typing import Any

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


@pytest.mark.parametrize(("even_layers", "later_ps"), [(0, 0), (2, 0), (4, 0), (8, -STEP // 2)])
def test_layers_in_equal_parts_of_a_step_leave_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, even_layers: int, later_ps: int
) -> None:
    """The last of four layers is ready at the end of four parts of the layers' time; of eight, in
    the middle.
    """

    def even(cluster: Cluster, places: list[list[int]]) -> Any:
        config = _native.KvTransferConfig(cluster.push, cluster.layerwise, places)
        kinds = [
            ([min(layer, even_layers - 1) if even_layers else layer], 1000, 0, 0)
            for layer in range(4)
        ]
        config.add_route(
            0, 1, config.add_table([(0, 0, kinds)], cluster.block_size, False, even_layers)
        )
        return config

    cluster = Cluster([50], [50], push=True, layerwise=True, bytes_per_s=10**12)
    expected_ps = int(run([(0, 64, 1)], cluster).kv_transfers()["kv_landed_ps"][0])
    monkeypatch.setattr(pd, "kv_transfers", even)
    found_ps = int(run([(0, 64, 1)], cluster).kv_transfers()["kv_landed_ps"][0])
    assert found_ps - expected_ps == pytest.approx(later_ps, abs=10**6)
