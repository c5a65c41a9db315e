"""Every invariant fails when a run's figures are wrong: one column at a time is changed by one."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.core import Energy, Results, Status
from llmsim.results.invariants import OK, check_invariants, interval_lengths_ps
from llmsim.simulation.run import simulate

ROOT = Path(__file__).resolve().parents[2]
TRACE = "synthetic:n=20,rate=50,input=lognormal:200,output=lognormal:20,seed=1"
Change = Callable[[Results], Results]


def simulated(path: Path) -> Results:
    prepared = prepare(
        checked_options(
            ["--cluster-config", str(path), "--dataset", TRACE, "--cost-source", "roofline"]
        )
    )
    return simulate(prepared.lowered, prepared.workload, prepared.simulation)


@pytest.fixture(scope="module")
def apart() -> Results:
    """Prefill and decode on a group each."""
    return simulated(ROOT / "cluster_config" / "h100_llama31_8b_pd.json")


@pytest.fixture(scope="module")
def powered(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A node whose file says what it draws."""
    return simulated(ROOT / "cluster_config" / "single_node_power_instance.json")


def violated(results: Results) -> dict[str, str]:
    found = check_invariants(results, [True] * len(results.groups))
    return {name: text for name, text in found.items() if text != OK}


def plus(column: Any, rows: Any, amount: int = 1) -> Any:
    """A copy with some rows increased."""
    changed = np.array(column)
    changed[rows] += amount
    return changed


def counter(name: str, group: int, amount: int) -> Change:
    return lambda results: dataclasses.replace(
        results, counters={**results.counters, name: plus(results.counters[name], group, amount)}
    )


def request(name: str, row: int, value: int) -> Change:
    def changed(results: Results) -> Results:
        column = np.array(getattr(results.requests, name))
        column[row] = value
        return dataclasses.replace(
            results, requests=dataclasses.replace(results.requests, **{name: column})
        )

    return changed


def kv_transfer(name: str, rows: Any, amount: int) -> Change:
    def changed(results: Results) -> Results:
        assert results.kv_transfers is not None
        column = plus(getattr(results.kv_transfers, name), rows, amount)
        return dataclasses.replace(
            results, kv_transfers=dataclasses.replace(results.kv_transfers, **{name: column})
        )

    return changed


def blame(name: str, row: int, amount: int) -> Change:
    return lambda results: dataclasses.replace(
        results, blame={**results.blame, name: plus(results.blame[name], row, amount)}
    )


def late(row: int) -> Change:
    """Decoded one picosecond before its KV had landed."""

    def changed(results: Results) -> Results:
        h = results.kv_transfers
        assert h is not None
        scheduled_ps = np.array(h.decode_scheduled_ps)
        scheduled_ps[row] = h.kv_landed_ps[row] - 1
        return dataclasses.replace(
            results, kv_transfers=dataclasses.replace(h, decode_scheduled_ps=scheduled_ps)
        )

    return changed


def test_what_was_simulated_holds(apart: Results, powered: Results) -> None:
    assert violated(apart) == violated(powered) == {}
    assert apart.kv_transfers is not None and set(apart.kv_transfers.prefill_group) == {0}


WRONG: Mapping[str, tuple[Change, str, str]] = {
    "finished": (
        counter("finished", 1, 1),
        "1 conservation",
        "20 requests are finished, the groups count 21",
    ),
    "running": (
        counter("running", 1, 1),
        "1 conservation",
        "0 requests are running, the groups count 1",
    ),
    "waiting": (
        counter("waiting", 0, 1),
        "1 conservation",
        "0 requests are waiting, the groups count 1",
    ),
    "cancelled": (
        counter("cancelled", 0, 1),
        "1 conservation",
        "0 requests were cancelled, the groups count 1",
    ),
    "left": (request("status", 3, Status.PENDING), "1 conservation", "19 requests are finished"),
    "queued": (request("queued_ps", 2, -1), "2 causality", "request 2 goes back in time"),
    "first": (request("first_token_ps", 4, 1), "2 causality", "request 4 goes back in time"),
    "gap": (
        lambda results: dataclasses.replace(
            results, itl_values_ps=np.concatenate([[-1], results.itl_values_ps[1:]])
        ),
        "3 clock",
        "a token came before the last one",
    ),
    "pool": (
        counter("pool_consistent", 1, -1),
        "4 blocks",
        "group 1: free, cached and referenced blocks",
    ),
    "free": (counter("free_blocks", 0, -1), "4 blocks", "blocks are free though nothing runs"),
    "generated": (
        counter("generation_tokens", 1, 1),
        "5 tokens",
        "emitted and generated tokens differ",
    ),
    "itl": (
        lambda results: dataclasses.replace(results, itl_counts=plus(results.itl_counts, 0)),
        "5 tokens",
        "inter-token latencies for",
    ),
    "idle": (
        counter("idle_with_work", 1, 2),
        "7 work conservation",
        "group 1 was left idle 2 times",
    ),
    "light": (
        counter("steps_below_lower_bound", 1, 3),
        "10 speed of light",
        "group 1: 3 steps are faster",
    ),
    "blame": (
        blame("decode_ps", 5, 1),
        "11 blame",
        "the parts of request 5's latency do not add up to it",
    ),
    "landed": (late(0), "13 transfers", "request 0 was decoded before its KV was there"),
    "never landed": (
        kv_transfer("kv_landed_ps", slice(7, 8), -(1 << 62)),
        "13 transfers",
        "request 7 was decoded before",
    ),
    "prefilled": (
        kv_transfer("prefill_end_ps", slice(6, 7), 1 << 60),
        "13 transfers",
        "request 6 was decoded before",
    ),
    "cached": (
        kv_transfer("decode_cached_tokens", slice(None), 1 << 20),
        "13 transfers",
        "whole prompt was cached",
    ),
    "moved": (kv_transfer("kv_transfer_bytes", slice(9, 10), 1), "13 transfers", "of request 9 "),
    "handed over": (
        counter("handed_over", 0, 1),
        "13 transfers",
        "20 prompts were handed over, the groups count 21",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_each_wrong_figure_is_found(apart: Results, what: str) -> None:
    change, name, sentence = WRONG[what]
    assert sentence in violated(change(apart))[name]


def test_parts_of_a_latency_that_cancel_out_are_found(apart: Results) -> None:
    size = int(apart.blame["decode_ps"].max()) + 1
    wrong = blame("queue_ps", 5, size)(blame("decode_ps", 5, -size)(apart))
    assert violated(wrong) == {"11 blame": "a part of a latency is negative"}


def test_a_users_own_times_may_be_faster_than_light(apart: Results) -> None:
    wrong = counter("steps_below_lower_bound", 1, 3)(apart)
    assert check_invariants(wrong, [True, False])["10 speed of light"] == OK


def powered_with(results: Results, **changes: Any) -> Results:
    assert results.energy is not None
    return dataclasses.replace(results, energy=replace(results.energy, **changes))


def test_four_ways_to_split_the_energy_agree(powered: Results) -> None:
    energy = powered.energy
    assert energy is not None and energy.total_aj > 0
    [parts], [group] = energy.components_aj, energy.groups
    assert parts is not None and group is not None
    first = next(iter(parts))
    more = {**parts, first: parts[first] + 1}
    watts = {**energy.series, f"{first}_w": np.asarray(energy.series[f"{first}_w"]) * 1.01}
    wrong = {
        "the groups of node 0 do not add up to its components": {"components_aj": (more,)},
        "requests and what nobody used are": {
            "unattributed_j": energy.unattributed_j + 1e-6 * energy.total_aj / 1e18
        },
        "the power series adds up to": {"series": watts},
        "group 0 has a negative part": {
            "groups": (replace(group, idle_aj=group.idle_aj + group.active_aj + 1, active_aj=-1),)
        },
    }
    for sentence, changes in wrong.items():
        assert sentence in violated(powered_with(powered, **changes))["12 energy"]


def test_a_cluster_that_drew_nothing_is_consistent(powered: Results) -> None:
    """All four ways are zero, to the last bit."""
    energy = powered.energy
    assert energy is not None
    nothing = Energy(
        start_ps=0,
        end_ps=1,
        components_aj=(None,),
        groups=(None,),
        pool_aj=0,
        request_j=np.zeros(20),
        unattributed_j=0.0,
        series={name: np.zeros_like(column)[:0] for name, column in energy.series.items()},
    )
    assert violated(dataclasses.replace(powered, energy=nothing)) == {}


def test_intervals_begin_where_the_one_before_of_their_node_ended() -> None:
    columns = {"time_ps": np.array([30, 50, 20, 60]), "node": np.array([0, 0, 1, 1])}
    energy = Energy(10, 60, (), (), 0, np.zeros(0), 0.0, columns)
    assert interval_lengths_ps(energy).tolist() == [20, 20, 10, 40]
