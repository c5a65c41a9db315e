"""What anybody expects of any cluster: faster memory or links and less load are not slower, and order is no matter.

Random clusters, each request on the instance that its place in the trace says (RR), priced by data sheet and links.
Batches form otherwise where times are others, so that single requests may lose a little: means are compared.
"""

import copy
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import run_main
from tests.cli.test_any_cluster import arguments, cluster

Json = dict[str, Any]
SEEDS = (0, 2, 6, 12, 13, 17, 24, 26)
"""Of clusters that run."""
NOT_SLOWER = 1.03


def instances(document: Json) -> list[Json]:
    return [instance for node in document["nodes"] for instance in node["instances"]]


def drawn(seed: int) -> tuple[Json, list[str]]:
    draw = random.Random(seed)
    document = cluster(draw)
    for instance in instances(document):
        instance.pop("placement", None)  # one slow instance among fast ones: who gets what decides
    given = arguments(draw, apart=any("pd_type" in instance for instance in instances(document)))
    for name in ("--request-timeout", "--max-concurrency", "--request-routing-policy", "--queue-order"):
        if name in given:  # clients whose load follows from the times
            at = given.index(name)
            del given[at : at + 2]
    return document, [
        *given,
        "--request-routing-policy",
        "RR",
        "--collective-costs",
        "links",
        "--cost-source",
        "roofline",
    ]


def twice_the_memory(document: Json, given: list[str]) -> None:
    for instance in instances(document):
        instance["npu_mem"]["mem_bw"] *= 2


def twice_the_links(document: Json, given: list[str]) -> None:
    document["link_bw"] = [2 * one for one in document["link_bw"]]
    document["link_latency"] /= 2


def a_tenth_of_the_load(document: Json, given: list[str]) -> None:
    at = given.index("--dataset") + 1
    given[at] = re.sub(r"rate=(\d+)", lambda found: f"rate={int(found[1]) / 10}", given[at])


CHANGES: tuple[Callable[[Json, list[str]], None], ...] = (twice_the_memory, twice_the_links, a_tenth_of_the_load)


@pytest.mark.parametrize("seed", SEEDS)
def test_better_is_not_worse(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(document: Json, given: list[str]) -> Json:
        path = tmp_path / "c.json"
        path.write_text(json.dumps(document))
        code = run_main(["--cluster-config", str(path), *given, "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        found: Json = json.loads(out)
        return found

    document, given = drawn(seed)
    before = run(document, given)
    for change in CHANGES:
        other, options = copy.deepcopy(document), list(given)
        change(other, options)
        after = run(other, options)
        assert after["completed"] == before["completed"], change.__name__
        assert after["mean_e2el_ms"] <= before["mean_e2el_ms"] * NOT_SLOWER, change.__name__
    turned = json.loads(json.dumps(document), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    again = run(turned, given)
    assert sorted(again.pop("notes")) == sorted(before.pop("notes"))
    assert again == before
