"""Results cross processes, as pools of workers send them, and stay what they were."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmsim

ROOT = Path(__file__).resolve().parents[2]
LOAD = "synthetic:n=40,rate=20,input=lognormal:200,output=lognormal:30,seed=3"
CLUSTERS: dict[str, dict[str, Any]] = {
    "colocated": {"instances": 2},
    "disaggregated": {"prefill": 1, "decode": 1},
}
TABLES = ("requests", "steps", "series", "power", "sessions", "groups", "operator_limits")


def run(name: str = "colocated", workload: Any = LOAD, **options: Any) -> llmsim.Result:
    cluster = llmsim.Cluster.build("Qwen/Qwen3-8B", "H100", **CLUSTERS[name])
    return llmsim.run(cluster, workload, **options)


def copied(result: llmsim.Result) -> llmsim.Result:
    again = pickle.loads(pickle.dumps(result))
    assert isinstance(again, llmsim.Result)
    return again


def exports(result: llmsim.Result, folder: Path) -> dict[str, bytes]:
    """Every file that a result writes and that says no time of its writing."""
    folder.mkdir()
    result.to_csv(folder / "requests.csv")
    result.to_vllm_bench(folder / "vllm.json")
    result.to_openmetrics(folder / "metrics.txt")
    result.to_chakra(folder, group=0, step=1)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_result_comes_back_equal(name: str, tmp_path: Path) -> None:
    result = run(name, seed=2)
    again = copied(result)
    assert (again.summary, again.notes, repr(again)) == (result.summary, result.notes, repr(result))
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(again, table), getattr(result, table))
    assert exports(again, tmp_path / "again") == exports(result, tmp_path / "first")
    assert again.why(what_if=1).to_dict() == result.why(what_if=1).to_dict()
    assert sorted(again.graph(0, 1).nodes(data=True)) == sorted(result.graph(0, 1).nodes(data=True))
    assert copied(again).summary == result.summary


def worker(workload: Any) -> llmsim.Result:
    return run(workload=workload)


def test_pools_of_processes_give_results_back() -> None:
    requests = [llmsim.Request(0.05 * n, 100 + n, 5 + n) for n in range(10)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(worker, [LOAD, requests]))
    for again, workload in zip(found, (LOAD, requests), strict=True):
        here = run(workload=workload)
        assert again.summary == here.summary
        pd.testing.assert_frame_equal(again.requests, here.requests)
        assert again.groups["steps"].tolist() == here.groups["steps"].tolist()


def test_a_workload_that_is_read_once_can_be_run_again() -> None:
    requests = (llmsim.Request(0.01 * n, 100, 20) for n in range(30))
    result = run(workload=requests)
    assert len(result.requests) == 30
    assert len(copied(result).inputs.run().requests) == 30


def test_a_result_whose_files_have_changed_is_not_continued(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    line = '{"input_toks": 50, "output_toks": 5, "arrival_time_ns": 0}\n'
    trace.write_text(line)
    again = copied(run(workload=trace))
    trace.write_text(line * 2)
    assert len(again.requests) == 1
    with pytest.raises(
        llmsim.InputError, match=r"trace\.jsonl has changed since the run"
    ) as caught:
        again.graph()
    assert caught.value.file == str(trace)


def test_what_was_not_recorded_is_missed_there_too(tmp_path: Path) -> None:
    again = copied(run(series=False))
    with pytest.raises(llmsim.InputError, match="recorded no series"):
        again.save(tmp_path / "run")
