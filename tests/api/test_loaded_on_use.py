"""What a plain run loads and builds, and what it leaves to the runs that need it."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

import llmsim
from llmsim.loading import collections_paused, loaded_on_use, without_pydantic_plugins

ROOT = Path(__file__).resolve().parents[2]
PLAIN = """
import json, sys
import llmsim
llmsim.run("cluster_config/h100_llama31_8b.json", "dataset/chat_h100_300.jsonl", num_reqs=3)
from llmsim.config.cluster_file.layouts import LayoutInstance, Reconfiguration
built = [one.__name__ for one in (LayoutInstance, Reconfiguration) if one.__pydantic_complete__]
print(json.dumps([sorted(sys.modules), built]))
"""
NOT_LOADED = {
    "difflib",
    "importlib.metadata",
    "llmsim.config.topology.file",
    "llmsim.costs.sources.bundle.source",
    "llmsim.costs.sources.external.table",
    "llmsim.lowering.switches.layouts",
    "llmsim.workload.synthetic.workload",
    "numpy.random",
    "pandas",
    "pydantic.plugin._loader",
    "scipy",
    "shutil",
    "tempfile",
}


def test_a_plain_run_loads_no_feature_that_it_does_not_have() -> None:
    command = [sys.executable, "-c", PLAIN]
    # Compiles the cost tables, which takes more libraries than a run of compiled ones.
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded, built = json.loads(done.stdout)
    assert not NOT_LOADED & set(loaded)
    assert built == []


SPUN_S = """
import os, time
{imports}
time.sleep(0.3)
assert "OPENBLAS_THREAD_TIMEOUT" not in os.environ
tasks = "/proc/self/task"
others = [one for one in os.listdir(tasks) if int(one) != os.getpid()]
print(sum(int(open(f"{{tasks}}/{{one}}/schedstat").read().split()[0]) for one in others) / 1e9)
"""


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").is_file(), reason="reads the times of threads from /proc"
)
def test_threads_of_a_library_that_a_run_does_not_use_do_not_spin() -> None:
    def spun_s(imports: str) -> float:
        command = [sys.executable, "-c", SPUN_S.format(imports=imports)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    by_itself = spun_s("import numpy")
    if by_itself < 0.01:
        pytest.skip("the threads of this numpy do not spin")
    assert spun_s("import llmsim; llmsim.run") < by_itself / 3


def test_the_schema_is_whole_after_sections_were_built_apart() -> None:
    """A process of its own: here other tests may have made the schema."""
    program = (
        "import sys, json; from llmsim.config import cluster_schema, load_cluster;"
        "[load_cluster(path) for path in sys.argv[1:]]; print(json.dumps(cluster_schema()))"
    )
    files = [str(ROOT / "cluster_config" / name) for name in FILES]
    schemas = {
        subprocess.run(
            [sys.executable, "-c", program, *given], capture_output=True, text=True, check=True
        ).stdout
        for given in ([], files)
    }
    assert len(schemas) == 1 and "LayoutInstance" in json.loads(schemas.pop())["$defs"]


FILES = ("h100_llama31_8b_pd.json", "single_node_power_instance.json", "cxl_two_groups.json")


def test_collections_pause_and_what_was_made_counts_as_old() -> None:
    gc.collect()
    young = len(gc.get_objects(generation=0))
    with collections_paused():
        assert not gc.isenabled()
        kept = [[number] for number in range(50_000)]
        assert len(gc.get_objects(generation=0)) > young + 40_000
    assert gc.isenabled() and len(kept) == 50_000
    assert len(gc.get_objects(generation=0)) < 40_000


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collections_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pydantic_looks_for_its_plugins_again_afterwards() -> None:
    name = "pydantic.plugin._loader"
    known = sys.modules.pop(name, None)
    try:
        with without_pydantic_plugins():
            assert sys.modules[name].get_plugins() == ()
        assert name not in sys.modules
    finally:
        if known is not None:
            sys.modules[name] = known


def test_a_name_that_a_package_does_not_have() -> None:
    load = loaded_on_use("llmsim", {"run": "llmsim.api.run"})
    with pytest.raises(AttributeError, match="module 'llmsim' has no attribute 'ran'"):
        load("ran")
    assert load("run") is llmsim.run
