"""Experts on several ranks beside a profile bundle, end to end: a bundle that holds the silicon
database's own times must run as the database does on the links that the cluster file states.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs.builders import needs_database, write_csv

from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.core import Results
from llmsim.costs import CompiledCosts, OpCost, SplitAttention
from llmsim.costs.experts.routing import parse_expert_routing
from llmsim.lowering import LoweredGroup, LoweringOptions, lower
from llmsim.model import Collective, Moe
from llmsim.routing import parse_router
from llmsim.simulation.options import SimulationOptions
from llmsim.simulation.run import simulate
from llmsim.workload import load_dataset

MODEL = "Qwen/Qwen3-30B-A3B"
NOT_IN_BUNDLES = ("kv_write", "expert_choice")
"""Operators that a bundle's rows of attention and experts contain."""
TRACE = "synthetic:n=24,rate=40,input=lognormal:300,output=lognormal:20,seed=5"
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp4 x ep4": {"members": 4},
    "dp2 x tp2, ep4": {"members": 2, "tp_size": 2, "num_npus": 2},
    "tp2, ep2": {"tp_size": 2, "num_npus": 2, "ep_size": 2},
    "pairs": {"members": 4, "all2all_backend": "pplx"},
}


def file_of(members: int = 1, **instance: Any) -> dict[str, Any]:
    """One server of H100, of which the file states what the data sheet does."""
    ranks = members * instance.get("tp_size", 1)
    memory = {"mem_size": 79, "mem_bw": 3350, "mem_latency": 0}
    one = {
        "model_name": MODEL, "hardware": "H100", "npu_mem": memory, "num_npus": 1, "tp_size": 1,
        "ep_size": ranks, "max_num_batched_tokens": 1024, "max_num_seqs": 64, **instance,
    }  # fmt: skip
    if members > 1:
        one["dp_group"] = "experts"
    return {"link_bw": 450, "link_latency": 1000, "nodes": [{"instances": [one] * members}]}


def group_of(document: dict[str, Any], **options: Any) -> LoweredGroup:
    deployment = resolve(parse_cluster(json.dumps(document), "test.json"), EngineOverrides())
    return lower(deployment, LoweringOptions(**options)).groups[0]


def run_of(document: dict[str, Any], **options: Any) -> Results:
    deployment = resolve(parse_cluster(json.dumps(document), "test.json"), EngineOverrides())
    lowered = lower(deployment, LoweringOptions(**options))
    trace = load_dataset(TRACE, known_models=lowered.models, granularity=lowered.granularity)
    return simulate(lowered, trace, SimulationOptions(router=parse_router("RR")))


def write_mirror(root: Path, lowered: LoweredGroup) -> None:
    """A bundle with the database's times of every token count; of experts one row each."""
    folder = root / "H100" / MODEL / "bf16"
    own, tp1 = folder / f"tp{lowered.info.tp}", folder / "tp1"
    costs, expert = lowered.costs, next(op for op in lowered.operators if isinstance(op, Moe))
    collectives = {op.name for op in lowered.operators if isinstance(op, Collective)}
    layers = {
        op.name: op for op in costs.ops if op.name not in (*collectives, *NOT_IN_BUNDLES, "moe")
    }
    for name, feature in (("dense", "tokens"), ("per_sequence", "sequences")):
        rows = [row for op in layers.values() if op.feature == feature for row in rows_of(op)]
        write_csv(own / f"{name}.csv", f"layer,{feature},time_us", rows)
    write_csv(
        own / "attention.csv",
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
        attention_rows(costs),
    )
    times_us = next(op for op in costs.ops if op.name == expert.name).ps / 1e6
    share = expert.experts_local / expert.experts_total
    experts = [(n * share, expert.experts_local, us) for n, us in enumerate(times_us) if n]
    tp1.mkdir(parents=True, exist_ok=True)
    write_csv(tp1 / "moe.csv", "tokens,activated_experts,time_us", experts)


def rows_of(op: OpCost) -> list[tuple[object, ...]]:
    return [(op.name, n, ps / 1e6) for n, ps in enumerate(op.ps.tolist()) if n]


def attention_rows(costs: CompiledCosts) -> list[tuple[object, ...]]:
    assert isinstance(costs.attention, SplitAttention)
    grid = costs.attention.grid
    prefills = [
        (q, k, 0, 0, grid.prefill_ps[i, j] / 1e6)
        for i, q in enumerate(grid.q_axis)
        for j, k in enumerate(grid.k_axis)
    ]
    decodes = [
        (0, 0, n, kv, grid.decode_ps[i, j] / 1e6)
        for i, n in enumerate(grid.n_axis)
        for j, kv in enumerate(grid.kv_axis)
    ]
    return [*prefills, *decodes]


@needs_database
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mirror_of_the_database_runs_as_it_does(tmp_path: Path, layout: str) -> None:
    """On the links by default, and with measured collectives where they are asked for."""
    document = file_of(**LAYOUTS[layout])
    even = {"expert_routing": parse_expert_routing("BALANCED")}
    silicon = {"cost_source": "silicon", "disabled_terms": NOT_IN_BUNDLES, **even}
    write_mirror(tmp_path, group_of(document, **silicon))
    bundle = {"profile_dirs": (tmp_path,), **even}
    assert group_of(document, **bundle).costs.from_bundle
    beside, database = run_of(document, **bundle), run_of(document, **silicon, collectives="links")
    assert beside.requests.finish_ps == pytest.approx(database.requests.finish_ps, rel=1e-4)
    if layout == "pairs":
        return  # nobody has measured them
    beside = run_of(document, **bundle, collectives="measured")
    database = run_of(document, **silicon)
    assert beside.requests.finish_ps == pytest.approx(database.requests.finish_ps, rel=1e-4)


@needs_database
def test_beside_a_bundle_experts_wait_for_the_fullest_rank_too(tmp_path: Path) -> None:
    """Its time is the bundle's own for the pairs and experts of that rank: more ranks wait longer
    for the same work, and one rank for nobody.
    """
    ratios = []
    for members in (1, 2, 4):
        document = file_of(members)
        shutil.rmtree(tmp_path / "H100", ignore_errors=True)
        even = {"expert_routing": parse_expert_routing("BALANCED")}
        write_mirror(tmp_path, group_of(document, cost_source="silicon", **even))
        waiting, alike = (
            next(op for op in group_of(document, **given).costs.ops if op.name == "moe")
            for given in ({"profile_dirs": (tmp_path,)}, {"profile_dirs": (tmp_path,), **even})
        )
        assert ("of the fullest rank" in waiting.source) == (members > 1)
        assert "of the fullest rank" not in alike.source
        ratios.append(waiting.ps[1:] / alike.ps[1:])
    alone, two, four = ratios
    assert (alone == 1.0).all() and (two >= 1.0).all() and two.max() > 1.05
    assert np.median(four) > np.median(two) > 1.0
