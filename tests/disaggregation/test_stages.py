"""Pipeline stages of prefill and decode groups hand their hidden states on over the links that KV
takes.
"""

import json
from pathlib import Path

import pytest
from test_runs import assert_sound, cluster, instance

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.core import Results
from llmsim.simulation.run import simulate

TRACE = "synthetic:n=12,rate=50,input=fixed:400,output=fixed:8,seed=1"


def run(
    tmp_path: Path, stages: int, way: str, link_gb_per_s: float, *, ahead: bool = False
) -> tuple[list[tuple[int, ...]], Results]:
    """The groups whose steps share links, and what became of the requests."""
    keys = {"pp_size": stages, "num_npus": stages, "async_scheduling": ahead}
    document = cluster(
        [instance("prefill", **keys), instance("decode", **keys)], link_bw=link_gb_per_s
    )
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    options = [
        "--cluster-config",
        str(path),
        "--dataset",
        TRACE,
        "--cost-source",
        "roofline",
        "--kv-transfer",
        way,
    ]
    prepared = prepare(checked_options(options))
    results = simulate(prepared.lowered, prepared.workload, prepared.simulation)
    return [domain.groups for domain in prepared.lowered.contended], results


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("way", ["whole", "layerwise"])
@pytest.mark.parametrize(("stages", "expected"), [(1, []), (2, [(0,), (1,)]), (4, [(0,), (1,)])])
def test_groups_of_several_stages_share_links(
    tmp_path: Path, stages: int, expected: list[tuple[int, ...]], way: str, ahead: bool
) -> None:
    groups, results = run(tmp_path, stages, way, 50, ahead=ahead)
    assert groups == expected
    assert_sound(results)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("way", ["whole", "layerwise"])
def test_a_thin_link_slows_steps_as_well_as_kv(tmp_path: Path, way: str, ahead: bool) -> None:
    """400 tokens of 16 kB of hidden states and residual take 13 ms at half a gigabyte per second.
    Layer by layer, they meet the KV of the stage's 16 layers, 4 kB each, which takes 52 ms alone.
    """
    took_ps = []
    for link in (50, 0.5):
        _, results = run(tmp_path, 2, way, link, ahead=ahead)
        assert results.kv_transfers is not None
        took_ps.append(int(results.kv_transfers.prefill_end_ps[0] - results.requests.arrival_ps[0]))
    own_kv_ps = 52e9 if way == "layerwise" else 0
    assert 12e9 + own_kv_ps / 2 < took_ps[1] - took_ps[0] < 15e9 + own_kv_ps
