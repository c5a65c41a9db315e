"""What must hold under default rules for any program on any network, by random programs of unlike
NPUs.
"""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from engine import chakra_file as ck
from engine.command import Result, run_case
from engine.default_rules import random_programs as rp

BACKENDS = ("unaware", "aware", "fair-share")


class Runner:
    """Writes cases into one folder and runs them."""

    def __init__(self, command: Path, scratch: Path) -> None:
        self.command, self.scratch = command, scratch

    def run(
        self, traces: list[list[bytes]], network: dict[str, Any], backend: str, **more: Any
    ) -> tuple[Result, dict[tuple[int, int], list[int]]]:
        """The result, and bytes, messages, busy, waiting and longest waiting by link."""
        case = self.scratch / "case"
        listed = "devices" in network
        ck.write_case(case, traces, ck.network("Ring", 2) if listed else network, **more)
        (case / "network.json").unlink(missing_ok=True)
        if listed:
            (case / "network.json").write_text(json.dumps(network))
        counters = self.scratch / "links.csv"
        flags = (f"--link-counters={counters}",)
        result = run_case(self.command, case, self.scratch, backend, flags, rules="default")
        assert result.exit_code == 0, result.errors
        links: dict[tuple[int, int], list[int]] = {}
        for line in counters.read_text().split()[1:]:
            a, b, *counts = map(int, line.split(","))
            known = links.setdefault((a, b), [0] * len(counts))
            links[a, b] = [x + y for x, y in zip(known, counts, strict=True)]
        return result, links


@pytest.fixture
def runner(command: Path, tmp_path: Path) -> Runner:
    return Runner(command, tmp_path)


def cables_between(a: int, b: int, network: dict[str, Any]) -> int:
    """How many; switches have the numbers after the NPUs, and the exits of those with a limit the
    numbers after.
    """
    if "links" not in network:
        return 1
    names = [str(npu) for npu in range(network["devices"])]
    switches = network.get("switches", [])
    names += [one["name"] for one in switches] + [
        one["name"] for one in switches if one.get("bisection_gb_per_s")
    ]
    return sum(
        one["count"] for one in network["links"] if {one["a"], one["b"]} == {names[a], names[b]}
    )


def any_network(rng: random.Random) -> dict[str, Any]:
    return rp.listed_network(rng) if rng.random() < 0.4 else rp.regular_network(rng)


@pytest.mark.parametrize("seed", range(12))
def test_the_order_of_a_file_and_its_numbers_do_not_matter(runner: Runner, seed: int) -> None:
    rng = random.Random(seed)
    network = any_network(rng)
    what = rp.program(rng, rp.num_npus(network), memory=True)
    more = {"system": rp.system(rng, network), "groups": what.groups}
    more["memory"] = {"memory-type": "MEMORY_POOL", "remote-mem-latency": 100, "remote-mem-bw": 10}
    for backend in BACKENDS:
        plain, links = runner.run(what.traces(), network, backend, **more)
        mixed, mixed_links = runner.run(what.traces(rng, scale=7), network, backend, **more)
        assert {
            (npu, node // 7): times for (npu, node), times in mixed.times().items()
        } == plain.times()
        assert links == mixed_links


@pytest.mark.parametrize("seed", range(12))
def test_contention_adds_time_and_no_bytes(runner: Runner, seed: int) -> None:
    """Without choices between ready nodes. One speed: a sender whose own link is the fastest of a
    way is done earlier where the network stores whole messages on the way, and only there.
    """
    rng = random.Random(1000 + seed)
    network, gb_per_s = any_network(rng), rng.choice((1, 50))
    for link in network.get("links", []):
        link["bandwidth_gb_per_s"] = gb_per_s
    for switch in network.get("switches", []):
        switch["bisection_gb_per_s"] = gb_per_s if "bisection_gb_per_s" in switch else 0
    network.update(
        {} if "links" in network else {"bandwidth": [gb_per_s] * len(network["bandwidth"])}
    )
    what = rp.program(rng, rp.num_npus(network), chained=True)
    more = {"system": rp.system(rng, network), "groups": what.groups}
    alone, links = runner.run(what.traces(), network, "unaware", **more)
    for backend in BACKENDS[1:]:
        result, counted = runner.run(what.traces(), network, backend, **more)
        last_ps = max((done for _, done in result.times().values()), default=0)
        assert {ends: row[:2] for ends, row in counted.items()} == {
            ends: row[:2] for ends, row in links.items()
        }
        for (a, b), (num_bytes, *_) in counted.items():
            cables = cables_between(a, b, network) or 1  # the limit of a switch is no cable
            assert num_bytes * 1000 <= cables * gb_per_s * last_ps
        for key, (issue, done) in result.times().items():
            assert alone.times()[key][0] <= issue
            assert alone.times()[key][1] <= done


@pytest.mark.parametrize("seed", range(12))
def test_faster_links_and_shorter_work_never_hurt_where_nothing_waits(
    runner: Runner, seed: int
) -> None:
    """On a congestion-unaware network; where links serve in order, earlier messages may overtake
    better ones.
    """
    rng = random.Random(2000 + seed)
    network = rp.regular_network(rng)
    what = rp.program(rng, rp.num_npus(network), chained=True)
    more = {"system": rp.system(rng, network), "groups": what.groups}
    before, _ = runner.run(what.traces(), network, "unaware", **more)
    better = copy.deepcopy(what)
    quicker = copy.deepcopy(network)
    at = rng.randrange(len(network["bandwidth"]))
    change = rng.choice(("bandwidth", "latency", "work"))
    if change == "bandwidth":
        quicker["bandwidth"][at] *= 1.5
    elif change == "latency":
        quicker["latency"][at] /= 2
    else:
        for items in better.items:
            for item in items:
                item.micros //= rng.choice((1, 2))
    after, _ = runner.run(better.traces(), quicker, "unaware", **more)
    for key, (issue, done) in after.times().items():
        assert issue <= before.times()[key][0]
        assert done <= before.times()[key][1]


@pytest.mark.parametrize("seed", range(8))
def test_names_of_npus_do_not_matter(runner: Runner, seed: int) -> None:
    """On a network that treats all alike, without collectives of all in the order of their numbers,
    and without lines and choices, where those who come in the same picosecond go by number.
    """
    rng = random.Random(3000 + seed)
    npus = rng.randint(2, 7)
    network = ck.network(
        rng.choice(("Switch", "FullyConnected")), npus, rng.choice((1, 50)), rng.choice((0, 500))
    )
    what = rp.program(rng, npus, chained=True)
    what.groups = {name: members for name, members in what.groups.items() if len(members) < npus}
    for items in what.items:
        for item in items:
            if item.kind == ck.COLL and item.attributes.get("pg_name") not in what.groups:
                item.kind, item.attributes = ck.METADATA, {}
    name = list(range(npus))
    rng.shuffle(name)
    renamed = copy.deepcopy(what)
    for npu, items in enumerate(what.items):
        renamed.items[name[npu]] = copy.deepcopy(items)
        for item in renamed.items[name[npu]]:
            for key in ("comm_dst", "comm_src"):
                if key in item.attributes:
                    item.attributes[key] = name[item.attributes[key]]
    renamed.groups = {key: [name[npu] for npu in members] for key, members in what.groups.items()}
    for backend in ("unaware", "fair-share"):
        more = {"system": rp.system(rng, network)}
        a, _ = runner.run(what.traces(), network, backend, groups=what.groups, **more)
        b, _ = runner.run(renamed.traces(), network, backend, groups=renamed.groups, **more)
        assert {(name[npu], node): times for (npu, node), times in a.times().items()} == b.times()
