"""Collectives by every algorithm: folded runs are expanded ones, and sources name the algorithm."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmsim._native import engine
from llmsim.config.errors import InputError
from llmsim.model import load_model

from ..clusters import check_folded_is_expanded, cluster, lowered, model
from ..layout.legal import SHAPES, instance, representatives

TRACE = "synthetic:n=6,rate=2000,input=lognormal:80,output=lognormal:5,seed=3"
SUMS = ("ring", "direct", "direct2", "halvingDoubling", "doubleBinaryTree", "bruck")
PARTS = ("ring", "direct", "direct2", "halvingDoubling", "bruck")
ROWS = ("ring", "direct", "direct2")
OPTIONS = {
    "all_reduce_implementation": SUMS,
    "all_gather_implementation": PARTS,
    "reduce_scatter_implementation": PARTS,
    "all_to_all_implementation": ROWS,
}


def one_switch(folder: Path, devices: int) -> str:
    """A topology of all devices on one switch."""
    links = [
        {"a": str(device), "b": "s", "bandwidth_gb_per_s": 50, "latency_ns": 1000}
        for device in range(devices)
    ]
    network = {"devices": devices, "switches": [{"name": "s"}], "links": links}
    path = folder / f"switch{devices}.json"
    path.write_text(json.dumps(network))
    return str(path)


def sources(document: dict[str, Any]) -> set[str]:
    """The sources of the costs of the first group's collectives."""
    group = lowered(document).groups[0]
    names = {op.name for op in group.operators if op.kind == "collective"}
    return {cost.source for cost in group.program_costs if cost.name in names}


@pytest.mark.parametrize("network", ["mesh", "switch"])
@pytest.mark.parametrize("word", [*SUMS, "inSwitch"])
@pytest.mark.parametrize("tp", [2, 3, 8])
def test_all_reduces_fold_as_they_expand(tmp_path: Path, word: str, tp: int, network: str) -> None:
    if word == "inSwitch" and network == "mesh":
        return
    shape = SHAPES["thirds" if tp == 3 else "dense"]
    document = cluster(
        model(tmp_path, **shape), tp_size=tp, num_npus=tp, all_reduce_implementation=word
    )
    if network == "switch":
        document["topology"] = one_switch(tmp_path, tp)
    check_folded_is_expanded(document, trace=TRACE)
    name = engine.AlgorithmChoice.parse(word).name
    assert any(source.startswith(f"engine, {name}") for source in sources(document))


@pytest.mark.parametrize("shape", ["dense", "thirds", "experts", "latent", "mixed"])
def test_every_structure_folds_by_some_algorithms(tmp_path: Path, shape: str) -> None:
    """The algorithms go round, so that each meets many structures; every second one is enough here,
    since `evaluation/layouts.py` runs all.
    """
    path = model(tmp_path, **SHAPES[shape])
    config = load_model(path)
    for number, layout in enumerate(representatives(config)[::2]):
        members, keys = instance(config, layout)
        words = {
            option: known[(number + place) % len(known)]
            for place, (option, known) in enumerate(OPTIONS.items())
        }
        check_folded_is_expanded(cluster(path, members=members, **keys, **words), trace=TRACE)


def some_words(known: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """One algorithm for all dimensions, or one for each of up to three."""
    return st.lists(st.sampled_from(known), min_size=1, max_size=3)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.tuples(*map(some_words, OPTIONS.values())),
    st.sampled_from([(1, 4, 1), (1, 2, 2), (2, 2, 1), (3, 2, 1), (2, 3, 1), (4, 1, 2)]),
    st.sampled_from(["pplx", "deepep_low_latency", "deepep_high_throughput", "naive", ""]),
    st.sampled_from(["BALANCED", "ZIPF:s=1.2"]),
    st.sampled_from(["mesh", "switch"]),
)  # fmt: skip
def test_any_algorithms_fold_as_they_expand(
    tmp_path: Path,
    words: tuple[list[str], ...],
    layout: tuple[int, int, int],
    backend: str,
    experts: str,
    network: str,
) -> None:
    members, tp, pp = layout
    keys: dict[str, Any] = {"num_npus": tp * pp, "tp_size": tp, "ep_size": tp * members}
    if pp > 1:
        keys["pp_size"] = pp
    if members > 1:
        keys |= {"dp_group": "a", "all2all_backend": backend or "allgather_reducescatter"}
    options = {option: ",".join(some) for option, some in zip(OPTIONS, words, strict=True)}
    path = model(tmp_path, experts=12, heads=12, kv_heads=12, layers=4)
    document = cluster(path, members=members, links=[50, 40, 20], **keys, **options)
    if network == "switch":
        document["topology"] = one_switch(tmp_path, members * tp * pp)
    check_folded_is_expanded(document, trace=TRACE, experts=experts)


def test_one_algorithm_per_dimension(tmp_path: Path) -> None:
    """Ranks of a member are dimension 0; those of members, without stages, dimension 1."""
    keys = {"num_npus": 2, "tp_size": 2, "dp_group": "a", "ep_size": 2, "all2all_backend": "naive"}
    document = cluster(
        model(tmp_path, experts=8), members=2, links=[50, 25], **keys,
        all_reduce_implementation="halvingDoubling,direct",
    )  # fmt: skip
    found = sources(document)
    assert "engine, halving-doubling all_reduce on links of 50 GB/s" in found
    assert "engine, direct all_reduce on links of 25 GB/s" in found


def test_rings_are_the_default(tmp_path: Path) -> None:
    document = cluster(model(tmp_path), tp_size=4, num_npus=4)
    said = cluster(
        model(tmp_path), tp_size=4, num_npus=4,
        **dict.fromkeys(list(OPTIONS)[:3], "ring"),
    )  # fmt: skip
    assert sources(document) == sources(said)
    assert all("ring" in source for source in sources(document))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"all_reduce_implementation": "rings"},
            'all_reduce_implementation is "rings"; ring, direct',
        ),
        (
            {"all_gather_implementation": "doubleBinaryTree"},
            "has no messages for this collective; one of ring, direct, halvingDoubling",
        ),
        ({"all_to_all_implementation": "ring,bruck"}, 'all_to_all_implementation is "bruck"'),
        ({"all_reduce_implementation": "inSwitch"}, "name a topology in the cluster file"),
    ],
)
def test_what_is_not_possible(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        lowered(cluster(model(tmp_path), tp_size=4, num_npus=4, **options))
    assert sentence in str(caught.value)
    assert "nodes[0].instances[0]" in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_a_switch_that_not_all_ranks_hang_on(tmp_path: Path) -> None:
    document = cluster(model(tmp_path), tp_size=4, num_npus=4, all_reduce_implementation="inSwitch")
    ring = {"dimensions": [{"kind": "ring", "size": 4, "bandwidth_gb_per_s": 50, "latency_ns": 1}]}
    (tmp_path / "ring.json").write_text(json.dumps(ring))
    with pytest.raises(InputError, match="needs all its ranks on one switch"):
        lowered(document | {"topology": str(tmp_path / "ring.json")})


def test_direct_on_nominal_links_is_noted(tmp_path: Path) -> None:
    notes = lowered(
        cluster(model(tmp_path), tp_size=4, num_npus=4, all_reduce_implementation="direct")
    ).notes
    assert any("to every other rank at once" in note for note in notes)
    assert not lowered(cluster(model(tmp_path), tp_size=4, num_npus=4)).notes
