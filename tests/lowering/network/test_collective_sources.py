"""Who prices collectives: what a cluster file states of its links is used, or a note says among
whom it is not.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs.builders import LLAMA, needs_database, write_bundle
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.engine.profile import load_profile
from llmsim.core import Provenance
from llmsim.costs.collectives import among_whom
from llmsim.costs.compile import SCALED_LINKS, UNUSED_LINKS
from llmsim.costs.source import EngineVersions
from llmsim.costs.sources.silicon.database import Database, nearest_first, of_release
from llmsim.lowering import LoweredDeployment, LoweringOptions, lower
from llmsim.lowering.group import engine_versions
from llmsim.lowering.network.collective_costs import MeantRates
from tests.lowering.clusters import cluster, model

LAYOUTS: dict[str, dict[str, Any]] = {
    "tp": {"num_npus": 4, "tp_size": 4},
    "pp": {"num_npus": 2, "pp_size": 2},
    "tp x pp": {"num_npus": 4, "tp_size": 2, "pp_size": 2},
    "ep": {"num_npus": 4, "tp_size": 4, "ep_size": 4},
    "dp": {"members": 2, "dp_group": "a", "lockstep_dense_dp": True},
    "dp x ep": {"members": 4, "dp_group": "a", "ep_size": 4},
    "dp x tp": {"members": 2, "dp_group": "a", "num_npus": 2, "tp_size": 2},
    "dp over nodes": {"members": 1, "nodes": 2, "dp_group": "a", "ep_size": 2},
    "dcp": {"num_npus": 4, "tp_size": 4, "decode_context_parallel_size": 2},
    "pcp": {"num_npus": 2, "prefill_context_parallel_size": 2},
    "pairs": {"members": 2, "dp_group": "a", "ep_size": 2, "all2all_backend": "pplx"},
}
PLUGIN = """
import numpy as np
from llmsim.core import Provenance
from llmsim.costs.source import Curve

class Constant:
    name = "constant"
    enforce_floor = False

    def __init__(self, request):
        self._request = request

    def operator(self, op, last):
        if op.kind == "collective":
            return None
        return Curve(np.arange(last + 1) * 1000, np.zeros(last + 1, np.uint8), "constant")

    def attention(self, op):
        return None

    def notes(self):
        return []
"""


def lowered_with(
    folder: Path,
    layout: str,
    source: str,
    collectives: str,
    links: tuple[float, int],
    monkeypatch: pytest.MonkeyPatch,
) -> LoweredDeployment:
    """A small mixture of experts in a layout, on links of so many GB/s and ns, priced
    by a source.
    """
    path = model(folder, experts=8, kv_heads=2)
    document = cluster(path, **LAYOUTS[layout])
    document |= {"link_bw": links[0], "link_latency": links[1]}
    deployment = resolve(parse_cluster(json.dumps(document), "test.json"), EngineOverrides())
    options: dict[str, Any] = {"collectives": collectives}
    if source == "plug-in":
        (folder / "a_constant.py").write_text(PLUGIN)
        monkeypatch.syspath_prepend(str(folder))
        options |= {"cost_plugin": "a_constant:Constant"}
    else:
        options |= {"cost_source": source}
    return lower(deployment, LoweringOptions(**options))


def collective_prices(found: LoweredDeployment) -> dict[str, tuple[str, np.ndarray[Any, Any]]]:
    """Of each collective of the first group: among whom it is, and its times over all stages."""
    group = found.groups[0]
    among = {op.name: among_whom(op) for op in group.operators if op.kind == "collective"}
    prices: dict[str, list[Any]] = {}
    for placed in group.placed:
        if placed.cost.name in among:
            prices.setdefault(placed.cost.name, []).append(placed.cost.ps)
    return {name: (among[name], np.concatenate(times)) for name, times in prices.items()}


SOURCES = [
    (source, collectives)
    for source in ("roofline", "plug-in")
    for collectives in ("auto", "links", "nccl")
]
MEASURED = [
    ("silicon", "auto"), ("silicon", "links"), ("silicon", "nccl"), ("auto", "auto"),
    ("silicon", "measured"), ("plug-in", "measured"),
]  # fmt: skip
CASES = [pytest.param(*one, id="-".join(one)) for one in SOURCES]
CASES += [pytest.param(*one, id="-".join(one), marks=needs_database) for one in MEASURED]
IN_A_SERVER = ("tp", "ep", "dp", "dp x ep", "dp x tp", "dcp", "pcp")


def said_of_links(found: LoweredDeployment, what: str) -> set[str]:
    """Among whom a note says something of the links that measured times are on."""
    pattern = rf"collectives among (.*?) take measured times .*: {what}"
    return {one for note in found.notes for one in re.findall(pattern, note)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("source", "collectives"), CASES)
def test_stated_links_price_collectives_unless_measured_times_are_asked_for(
    tmp_path: Path, layout: str, source: str, collectives: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another link_bw, and another link_latency, change every collective; those that measured times
    are asked for alone, by a note, neither. The rates are below those of network cards, which bound
    what crosses servers.
    """
    if collectives == "measured" and layout == "pairs":
        pytest.skip("no table has exchanges of rows")
    base, wider, nearer = (
        lowered_with(tmp_path, layout, source, collectives, links, monkeypatch)
        for links in ((20.0, 2000), (40.0, 2000), (20.0, 1000))
    )
    stated = collective_prices(base)
    assert stated
    unused, scaled = (said_of_links(base, what) for what in (UNUSED_LINKS, SCALED_LINKS))
    for name, (among, ps) in stated.items():
        for other in (wider, nearer):
            changed = collective_prices(other)[name][1]
            if among in unused:
                assert (changed == ps).all(), name
            else:
                assert (changed <= ps).all() and changed[-1] < ps[-1], (name, among)
    assert bool(unused) <= (collectives == "measured")
    measured = source in ("silicon", "auto") and collectives == "auto"
    assert bool(scaled) == (measured and layout in (*IN_A_SERVER, "tp x pp"))


HALF, SHEET, TWICE = 225.0, 450.0, 900.0


@needs_database
@pytest.mark.parametrize("layout", IN_A_SERVER)
def test_the_links_of_the_data_sheet_are_those_that_were_measured(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file states of them then changes nothing, and slower links make nothing faster, at
    any size.
    """

    def priced(collectives: str, links: tuple[float, int]) -> dict[str, Any]:
        found = lowered_with(tmp_path, layout, "silicon", collectives, links, monkeypatch)
        return collective_prices(found)

    measured, sheet = priced("measured", (HALF, 0)), priced("auto", (SHEET, 1000))
    slower, faster = priced("auto", (HALF, 1000)), priced("auto", (TWICE, 1000))
    later, nearer = priced("auto", (SHEET, 5000)), priced("auto", (SHEET, 0))
    assert sheet
    for name, (_, ps) in sheet.items():
        assert (ps == measured[name][1]).all()
        for longer, shorter in ((slower, faster), (later, nearer)):
            assert (longer[name][1] >= ps).all() and (longer[name][1] > ps).any()
            assert (shorter[name][1] <= ps).all() and ((shorter[name][1] > 0) == (ps > 0)).all()


@needs_database
def test_the_source_says_from_which_links_to_which(tmp_path: Path) -> None:
    """A number's source is part of the result; times on other links are not measured ones."""
    document = cluster(LLAMA, num_npus=4, tp_size=4) | {"link_bw": HALF, "link_latency": 1500}
    deployment = resolve(parse_cluster(json.dumps(document), "test.json"), EngineOverrides())
    costs = lower(deployment, LoweringOptions(cost_source="silicon")).groups[0].costs
    reduces = [op for op in costs.ops if op.name == "all_reduce"]
    assert reduces
    for op in reduces:
        assert op.source.endswith("from links of 450 GB/s and 1000 ns to 225 GB/s and 1500 ns")
        assert set(op.provenance.tolist()) == {int(Provenance.SCALED)}


@pytest.mark.parametrize(
    ("own", "stated", "meant"),
    [(32, 16, 16), (450, 16, 225), (32, 32, 32), (450, 200, 450), (32, 450, 32), (450, 900, 900)],
)
def test_one_number_for_several_cards_states_what_their_data_sheets_do(
    own: int, stated: int, meant: int
) -> None:
    """A file has one link_bw for cards whose links differ: only beyond all of them it changes
    them.
    """
    assert MeantRates(32, 450).rate_of(own, stated) == meant


@given(st.integers(1, 1000), st.integers(1, 1000), st.sampled_from([32, 64, 450]))
@settings(derandomize=True)
def test_a_slower_number_never_means_a_faster_link(one: int, other: int, own: int) -> None:
    means = MeantRates(32, 450).rate_of
    assert means(own, min(one, other)) <= means(own, max(one, other))
    assert MeantRates(own, own).rate_of(own, one) == one


@pytest.mark.parametrize("layout", ["tp", "pp", "tp x pp", "dp x tp"])
def test_beside_a_bundle_the_stated_links_price_every_collective(
    tmp_path: Path, layout: str
) -> None:
    """The database has tables of the card; they are of another machine than the one that the file
    describes.
    """
    write_bundle(tmp_path, hardware="H100", tp=LAYOUTS[layout].get("tp_size", 1))
    found = []
    for links in ((50.0, 2000), (100.0, 2000), (50.0, 1000)):
        document = cluster(LLAMA, **LAYOUTS[layout]) | {
            "link_bw": links[0],
            "link_latency": links[1],
        }
        deployment = resolve(parse_cluster(json.dumps(document), "test.json"), EngineOverrides())
        one = lower(deployment, LoweringOptions(profile_dirs=(tmp_path,)))
        assert one.groups[0].costs.from_bundle
        assert not any("take measured times" in note for note in one.notes)
        found.append(collective_prices(one))
    stated, *others = found
    assert stated
    for name, (among, ps) in stated.items():
        assert all(other[name][1][-1] < ps[-1] for other in others), (name, among)


NUMBERS = st.integers(0, 3)
VERSIONS = st.builds(lambda one, two, three: f"{one}.{two}.{three}", NUMBERS, NUMBERS, NUMBERS)
RELEASES = st.builds(lambda one, two: f"{one}.{two}", NUMBERS, NUMBERS) | VERSIONS


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


@given(st.lists(VERSIONS, unique=True, max_size=8), RELEASES)
@settings(derandomize=True)
def test_the_release_itself_comes_first_then_the_nearest_below_then_above(
    versions: list[str], wanted: str
) -> None:
    found = nearest_first(versions, wanted)
    assert sorted(found) == sorted(versions)
    release = numbers(wanted)
    below = [one for one in found if numbers(one)[: len(release)] <= release]
    assert found[: len(below)] == below == sorted(below, key=numbers, reverse=True)
    assert found[len(below) :] == sorted(found[len(below) :], key=numbers)
    if any(of_release(one, wanted) for one in versions):
        assert of_release(found[0], wanted)
    assert nearest_first(versions, "") == sorted(versions, key=numbers, reverse=True)


def test_a_database_gives_the_engines_tables_first_and_says_which_stand_in(tmp_path: Path) -> None:
    for framework, file, versions in (
        ("vllm", "custom_allreduce_perf.parquet", ("0.14.0", "0.19.0", "0.24.0", "0.27.0")),
        ("nccl", "nccl_perf.parquet", ("2.23", "2.27.3", "2.29.2")),
    ):
        for version in versions:
            place = tmp_path / "data" / "card" / "comm" / framework / version
            place.mkdir(parents=True)
            (place / file).touch()

    def labels(vllm: str, nccl: str) -> tuple[list[str], list[str]]:
        found = Database("card", tmp_path, "0.12.0", (), EngineVersions(vllm, nccl))
        tables = found.tables("all_reduce"), found.nccl()
        short = [
            [re.sub(r".*card (\S+) (\S+) \S+?(, nearest.*)?$", r"\2\3", one.label) for one in kind]
            for kind in tables
        ]
        return short[0], short[1]

    assert labels("0.19", "2.27.5") == (
        ["0.19.0", *(f"{one}, nearest to vLLM 0.19" for one in ("0.14.0", "0.24.0", "0.27.0"))],
        [f"{one}, nearest to NCCL 2.27.5" for one in ("2.27.3", "2.23", "2.29.2")],
    )
    assert labels("0.24", "2.28.9")[0][0] == "0.24.0"
    assert labels("0.33", "2.30.7")[0][0] == "0.27.0, nearest to vLLM 0.33"
    assert labels("", "") == (
        ["0.27.0", "0.24.0", "0.19.0", "0.14.0"],
        ["2.29.2", "2.27.3", "2.23"],
    )


def test_every_profile_of_vllm_names_its_kernels() -> None:
    for name in ("vllm-0.19", "vllm-0.24", "vllm-0.33"):
        assert (
            engine_versions(name).vllm == name.removeprefix("vllm-") and engine_versions(name).nccl
        )
    assert engine_versions("transformers-5") == EngineVersions()
    assert load_profile("vllm-0.24").nccl_release == "2.28.9"


@needs_database
@pytest.mark.parametrize(("profile", "version"), [("vllm-0.19", "0.19.0"), ("vllm-0.24", "0.24.0")])
def test_a_run_takes_the_collectives_of_its_engine(
    tmp_path: Path, profile: str, version: str
) -> None:
    document = cluster(model(tmp_path), num_npus=4, tp_size=4, engine_profile=profile)
    deployment = resolve(parse_cluster(json.dumps(document), "test.json"), EngineOverrides())
    found = lower(deployment, LoweringOptions(cost_source="silicon"))
    sources = [one.cost.source for one in found.groups[0].placed if one.cost.name == "all_reduce"]
    assert sources and all(f"vllm {version} all_reduce" in source for source in sources)
