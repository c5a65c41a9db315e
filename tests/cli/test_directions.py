"""Faster memory or links and less load are not slower, and the order of JSON keys is no matter, on
random clusters.

Each request runs on the group that its row in the trace says (RR), priced by data sheet and links.
Batches form otherwise where times are others, so that single requests may lose a little: means are
compared.
"""

import copy
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from mixes.clusters import Json, draw_cluster, instances_of
from mixes.options import draw_options

from llmsim.cli import run_main

SEEDS = (1, 3, 4, 5, 6, 8, 12, 14, 15, 17)
"""Seeds of clusters that run."""
NOT_SLOWER = 1.03
LOAD_FOLLOWS_TIMES = (
    "--request-timeout",
    "--max-concurrency",
    "--think-time",
    "--horizon",
    "--request-routing-policy",
    "--decode-routing-policy",
    "--queue-order",
)
REPLACED = ("--cost-source", "--collective-costs")
FIXED = [
    "--request-routing-policy",
    "RR",
    "--collective-costs",
    "links",
    "--cost-source",
    "roofline",
]


def sampled(seed: int) -> tuple[Json, list[str]]:
    """A cluster and options under which the same work reaches each group, whatever the times."""
    draw = random.Random(seed)
    document = draw_cluster(draw)
    for instance in instances_of(document):
        instance.pop("placement", None)  # one slow instance among fast ones: who gets what decides
    options = draw_options(draw, document)
    for name in (*LOAD_FOLLOWS_TIMES, *REPLACED):
        if name in options:
            at = options.index(name)
            del options[at : at + 2]
    return document, [*options, *FIXED]


def twice_the_memory(document: Json, options: list[str]) -> None:
    for instance in instances_of(document):
        instance["npu_mem"]["mem_bw"] *= 2


def twice_the_links(document: Json, options: list[str]) -> None:
    rates = document["link_bw"]
    document["link_bw"] = [2 * rate for rate in rates] if isinstance(rates, list) else 2 * rates
    document["link_latency"] /= 2


def a_tenth_of_the_load(document: Json, options: list[str]) -> None:
    at = options.index("--dataset") + 1
    options[at] = re.sub(r"rate=(\d+)", lambda found: f"rate={int(found[1]) / 10}", options[at])


CHANGES: tuple[Callable[[Json, list[str]], None], ...] = (
    twice_the_memory,
    twice_the_links,
    a_tenth_of_the_load,
)


@pytest.mark.parametrize("seed", SEEDS)
def test_better_is_not_worse(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(document: Json, options: list[str]) -> Json:
        path = tmp_path / "c.json"
        path.write_text(json.dumps(document))
        code = run_main(["--cluster-config", str(path), *options, "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        found: Json = json.loads(out)
        return found

    document, options = sampled(seed)
    before = run(document, options)
    for change in CHANGES:
        other, changed = copy.deepcopy(document), list(options)
        change(other, changed)
        after = run(other, changed)
        assert after["completed"] == before["completed"], change.__name__
        assert after["mean_e2el_ms"] <= before["mean_e2el_ms"] * NOT_SLOWER, change.__name__
    turned = json.loads(json.dumps(document), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    again = run(turned, options)
    assert sorted(again.pop("notes")) == sorted(before.pop("notes"))
    assert again == before
