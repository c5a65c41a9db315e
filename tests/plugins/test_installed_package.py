"""An installed package of plug-ins, written against the documented names, keeps working whatever
moves inside.
"""

import csv
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmsim.compat.moved_modules import MOVED

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).resolve().parent / "acme_serving"
ENTRY_POINTS = """\
[llmsim.routers]
acme-fewest = acme_serving.routing:FewestOutstanding
[llmsim.queue_orders]
acme-shortest = acme_serving.policies:ShortestPrompt
[llmsim.preemption_victims]
acme-last = acme_serving.policies:LastAdmitted
[llmsim.cache_evictions]
acme-lru = acme_serving.policies:LeastRecentlyFreed
[llmsim.admissions]
acme-limit = acme_serving.policies:Limit
[llmsim.schedulers]
acme-one = acme_serving.scheduler:OneByOne
[llmsim.cost_sources]
acme-streamed = acme_serving.costs:StreamedWeights
[llmsim.expert_routers]
acme-even = acme_serving.costs:EvenExperts
"""
ONE_GROUP = (
    "h100_llama31_8b.json",
    "synthetic:n=200,rate=40,input=lognormal:150:max=600,output=fixed:120,seed=4",
)
PRESSED = ("--num-gpu-blocks-override", "160", "--max-model-len", "2048")
"""A pool that preempts and evicts."""

NUMBERS = (
    "completed",
    "refused",
    "preemptions",
    "duration",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "prefix_cache",
    "energy",
)
"""Figures of a summary that do not name where they come from."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as pip leaves it: the package and what its metadata offer."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "acme_serving").symlink_to(PACKAGE, target_is_directory=True)
    info = folder / "acme_serving-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme_serving\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    return folder


def simulated(
    site: Path, folder: Path, *options: str, run: tuple[str, str] = ONE_GROUP
) -> tuple[dict, bytes, str]:
    """The summary, the table of requests, and what stderr says."""
    cluster, dataset = run
    output = folder / "requests.csv"
    command = [
        sys.executable,
        "-m",
        "llmsim",
        "run",
        "--cluster-config",
        str(ROOT / "cluster_config" / cluster),
    ]
    command += [
        "--dataset",
        dataset,
        "--cost-source",
        "roofline",
        "--output",
        str(output),
        "--json",
        *options,
    ]
    path = os.pathsep.join([str(ROOT), str(site)])
    done = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONPATH": path}, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout), output.read_bytes(), done.stderr.decode()


@pytest.mark.parametrize(
    ("mine", "twin", "run"),
    [
        (("--queue-order", "acme-shortest"), ("--scheduling-policy", "sjf"), ONE_GROUP),
        (("--preemption-victim", "acme-last"), (), ONE_GROUP),
        (("--cache-eviction", "acme-lru"), (), ONE_GROUP),
        (
            ("--admission", "acme-limit:requests=5"),
            ("--admission", "QUEUE_LIMIT:requests=5"),
            ONE_GROUP,
        ),
        (
            ("--request-routing-policy", "acme-fewest"),
            ("--request-routing-policy", "LOR"),
            (
                "h100_multi_instance.json",
                "synthetic:n=150,rate=60,input=lognormal:300,output=fixed:40,seed=2",
            ),
        ),
        (
            ("--expert-routing-policy", "acme-even"),
            ("--expert-routing-policy", "RAND"),
            (
                "rtxpro6000_qwen3_30b_a3b_dp2_ep2.json",
                "synthetic:n=12,rate=5,input=fixed:60,output=fixed:12",
            ),
        ),
    ],
    ids=["queue order", "victim", "eviction", "admission", "router", "expert router"],
)
def test_a_policy_equals_its_native_twin(
    mine: tuple[str, ...], twin: tuple[str, ...], run: tuple[str, str], site: Path, tmp_path: Path
) -> None:
    pressed = PRESSED if run is ONE_GROUP else ()
    own_summary, own_rows, _ = simulated(site, tmp_path, *pressed, *mine, run=run)
    twin_summary, twin_rows, _ = simulated(site, tmp_path, *pressed, *twin, run=run)
    assert own_rows == twin_rows
    assert {key: own_summary[key] for key in NUMBERS} == {key: twin_summary[key] for key in NUMBERS}


def test_a_scheduler_runs_one_request_after_the_other(site: Path, tmp_path: Path) -> None:
    spec = "synthetic:n=12,rate=50,input=fixed:200,output=fixed:20"
    summary, rows, _ = simulated(
        site, tmp_path, "--scheduler", "acme-one", run=(ONE_GROUP[0], spec)
    )
    assert summary["completed"] == 12
    ends = [
        float(row["latency"]) + float(row["arrival"])
        for row in csv.DictReader(rows.decode().splitlines())
    ]
    assert ends == sorted(ends) and len(set(ends)) == 12


def test_a_cost_source_prices_the_matrices_and_leaves_the_rest(site: Path, tmp_path: Path) -> None:
    """Weights are read at the whole bandwidth: faster than the roofline's efficiency allows."""
    spec = "synthetic:n=12,rate=50,input=fixed:200,output=fixed:20"
    own, _, _ = simulated(
        site, tmp_path, "--cost-source", "acme-streamed", run=(ONE_GROUP[0], spec)
    )
    sheet, _, _ = simulated(site, tmp_path, run=(ONE_GROUP[0], spec))
    assert "acme_serving.StreamedWeights" in json.dumps(own)
    assert own["mean_tpot_ms"] < sheet["mean_tpot_ms"]


def test_a_module_by_its_earlier_name_loads_with_a_warning(site: Path, tmp_path: Path) -> None:
    run = (
        "rtxpro6000_qwen3_30b_a3b_dp2_ep2.json",
        "synthetic:n=3,rate=5,input=fixed:60,output=fixed:3",
    )
    _, _, said = simulated(site, tmp_path, "--expert-routing-policy", "acme-even", run=run)
    assert (
        "llmsim.costs.expert_routing is now llmsim.costs.experts.routing; import it from there"
        in said
    )


@pytest.mark.parametrize(("earlier", "present"), MOVED.items())
def test_earlier_names_hold_the_same_objects(earlier: str, present: str) -> None:
    sys.modules.pop(earlier, None)
    with pytest.warns(FutureWarning, match=present):
        old = importlib.import_module(earlier)
    new = importlib.import_module(present)
    own = [
        name for name, value in vars(new).items() if getattr(value, "__module__", None) == present
    ]
    assert own
    assert all(getattr(old, name) is getattr(new, name) for name in own)
