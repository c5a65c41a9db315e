"""What Python callers give: values of options by type, classes, mappings, dates, and no runs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmsim
from llmsim.routing import GroupView, RequestView

LOAD = "synthetic:n=20,rate=20,input=50,output=5,seed=1"
CLUSTER = llmsim.Cluster.build("Qwen/Qwen3-8B", "H100", instances=2)


class Last:
    """Sends every request to the last group."""

    def __init__(self, skip: int = 0) -> None:
        self.skip = skip

    def route(self, request: RequestView, groups: list[GroupView]) -> int:
        return groups[-1 - self.skip].index


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("seed", "a", "'a'; give a whole number"),
        ("seed", 1.5, "1.5; give a whole number"),
        ("seed", True, "True; give a whole number"),
        ("num_reqs", "5", "'5'; give a whole number"),
        ("max_concurrency", [1], "a value of type list; give a whole number"),
        ("horizon", "long", "'long'; give a number"),
        ("log_interval", {}, "a value of type dict; give a number"),
        ("exact", "yes", "'yes'; give True or False"),
        ("session_affinity", 2, "2; give True or False"),
        ("profile_dir", [5], "a value of type list; give a path, or a list of paths"),
        ("calibration", {}, "a value of type dict; give the path of a file"),
        ("disable_term", 5, '5; give a text, such as "ttft:500", or a list of texts'),
        ("goodput", [1], "a value of type list; give a text"),
        ("request_routing_policy", Last(), "a value of type Last; give a text"),
        ("cost_source", b"auto", "a value of type bytes; give a text"),
    ],
)
def test_a_value_of_another_type_is_one_sentence(name: str, value: Any, expected: str) -> None:
    with pytest.raises(llmsim.InputError) as caught:
        llmsim.run(CLUSTER, LOAD, **{name: value})
    assert f"{name} is {expected}" in str(caught.value)
    assert (caught.value.field, caught.value.value) == (name, value)


def test_none_is_the_default() -> None:
    given: dict[str, Any] = dict.fromkeys(("seed", "exact", "horizon", "goodput", "max_num_seqs"))
    assert llmsim.run(CLUSTER, LOAD, **given).summary == llmsim.run(CLUSTER, LOAD).summary


def test_a_class_stands_for_its_name() -> None:
    by_class = llmsim.run(CLUSTER, LOAD, request_routing_policy=Last)
    assert set(by_class.requests["group"]) == {1}
    by_name = llmsim.run(CLUSTER, LOAD, request_routing_policy=f"{__name__}:Last:skip=1")
    assert set(by_name.requests["group"]) == {0}


def test_a_class_that_its_module_does_not_hold_is_refused() -> None:
    class Within(Last):
        pass

    with pytest.raises(llmsim.InputError, match=r"Within is not found as Within .* at the top lev"):
        llmsim.run(CLUSTER, LOAD, request_routing_policy=Within)


def test_a_router_of_a_script_leaves_nothing_behind(tmp_path: Path) -> None:
    """The class, its module and the result refer to each other through the core."""
    script = tmp_path / "script.py"
    script.write_text(
        "import llmsim\n"
        "class Mine:\n"
        "    def route(self, request, groups):\n"
        "        return groups[0].index\n"
        "cluster = llmsim.Cluster.build('Qwen/Qwen3-8B', 'H100', instances=2)\n"
        f"result = llmsim.run(cluster, {LOAD!r}, request_routing_policy=Mine)\n"
        "print(len(result.requests))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("20\n", "")


def test_targets_may_be_a_mapping() -> None:
    asked: Any = {"ttft": 500, "tpot": 30.5}
    both = [llmsim.run(CLUSTER, LOAD, goodput=one) for one in (asked, "ttft:500,tpot:30.5")]
    assert both[0].summary["goodput"] == both[1].summary["goodput"] is not None
    wrong: Any = 500
    with pytest.raises(llmsim.InputError, match='slo is int; give a text such as "ttft:500'):
        llmsim.size("Qwen/Qwen3-8B", "H100", slo=wrong, rate=1)


@pytest.mark.parametrize("column", ["arrival_s", "arrival_ms", "arrival_time_ns", "start_time_ms"])
@pytest.mark.parametrize("kind", ["dates", "durations"])
def test_dates_are_dates_in_a_column_of_any_unit(column: str, kind: str) -> None:
    seconds = [0, 1, 3]
    values = pd.to_timedelta(seconds, unit="s") if kind == "durations" else None
    if values is None:
        values = pd.to_datetime(seconds, unit="s") + pd.Timedelta(days=9000)
    table = pd.DataFrame({column: values, "input_tokens": 50, "output_tokens": 5})
    result = llmsim.run(CLUSTER, table)
    assert result.requests["arrival_ps"].tolist() == [one * 10**12 for one in seconds]


def test_a_missing_date_is_said() -> None:
    dates = [pd.Timestamp("2026-01-01"), pd.NaT]
    table = pd.DataFrame({"arrival_s": dates, "input_tokens": 50, "output_tokens": 5})
    with pytest.raises(llmsim.InputError, match=r"DataFrame:2: the arrival is given by none"):
        llmsim.run(CLUSTER, table)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"timestamp": [0.0], "prompt_length": [5], "completion": [3]},
            "output_tokens is missing; give the number of tokens beside timestamp, prompt_length, "
            "completion",
        ),
        (
            {"timestamp": [0.0], "prompt_length": [5], "outptu_tokens": [3]},
            'output_tokens is missing (did you mean "outptu_tokens"?)',
        ),
        (
            {"arrival_s": [0.0], "input_toks": [float("nan")], "output_toks": [3]},
            "input_tokens is missing; give the number of tokens beside arrival_s, output_toks",
        ),
    ],
)
def test_a_missing_column_does_not_name_one_that_is_taken(
    columns: dict[str, list[Any]], sentence: str
) -> None:
    with pytest.raises(llmsim.InputError) as caught:
        llmsim.run(CLUSTER, pd.DataFrame(columns))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"instances": 0}, "instances is 0; give a whole number from 1 to 65536"),
        ({"instances": 10**9}, "instances is 1000000000; give a whole number from 1 to 65536"),
        ({"instances": 1.5}, r"instances is 1\.5; give a whole number from 1"),
        ({"tp": "2"}, "tp is '2'; give a whole number from 1"),
        ({"ep": 0}, "ep is 0; give a whole number from 1"),
        ({"model": 5}, "model is int; give a name, or the path of a file"),
        ({"device": None}, "device is NoneType; give a name, or the path of a file"),
        ({"prefill": -1, "decode": 1}, "prefill is -1; give a whole number from 0 to 65536"),
        ({"instances": 2, "prefill": 1, "decode": 1}, "instances is 2 beside instances with a"),
    ],
)
def test_what_builds_a_cluster_is_checked(counts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(llmsim.InputError, match=sentence):
        llmsim.Cluster.build(**{"model": "Qwen/Qwen3-8B", "device": "H100", **counts})


def test_what_is_no_cluster_and_no_column_is_refused() -> None:
    wrong: Any = []
    with pytest.raises(llmsim.InputError, match="a cluster is list; give a mapping"):
        llmsim.Cluster.of(wrong)
    with pytest.raises(llmsim.InputError, match="object is not JSON serializable; give numbers"):
        llmsim.Cluster.of({"nodes": object()})
    with pytest.raises(llmsim.InputError, match="arrival_s is 0; give a list with a value for"):
        llmsim.run(CLUSTER, {"arrival_s": 0, "isl": 5, "osl": 5})
    with pytest.raises(llmsim.InputError, match="workload is empty"):
        llmsim.run(CLUSTER, "")


def test_a_cluster_is_shown_in_a_line() -> None:
    assert repr(CLUSTER) == "<llmsim.Cluster cluster: 2 x Qwen/Qwen3-8B, each on 1 H100>"
    assert "nodes is missing" in repr(llmsim.Cluster.of({"link_bw": 1, "link_latency": 0}))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("router", 'router is no option of a run; it is called "request_routing_policy" here'),
        ("vllm_version", 'vllm_version is no option of a run; it is called "engine_profile" here'),
        ("tensor_parallel_size", "the cluster file has it as `tp_size`; `llmsim init` writes one"),
        ("request_rate", "the dataset has it, as in synthetic:n=100,rate=10"),
        ("max_num_seq", '(did you mean "max_num_seqs"?); `llmsim run --help` lists them'),
    ],
)
def test_words_of_other_tools_say_where_it_is(name: str, sentence: str) -> None:
    with pytest.raises(llmsim.InputError) as caught:
        llmsim.run(CLUSTER, LOAD, **{name: 1})
    assert sentence in str(caught.value)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    result, wrong = llmsim.run(CLUSTER, LOAD), 5
    for call in (
        lambda: llmsim.diff(result, wrong),  # type: ignore[arg-type]
        lambda: llmsim.report([result, wrong], tmp_path / "a.html"),  # type: ignore[list-item]
        lambda: llmsim.report({"a": wrong}, tmp_path / "a.html"),  # type: ignore[dict-item]
    ):
        with pytest.raises(llmsim.InputError, match="a run is int; give a Result"):
            call()
    with pytest.raises(llmsim.InputError, match="no run is given"):
        llmsim.report([], tmp_path / "a.html")
    with pytest.raises(llmsim.InputError, match=r"there is no iteration 999, the last one is \d+"):
        result.graph(0, 999)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rate": "20"}, "rate is '20'; give a number"),
        ({"rate": None, "concurrency": 1.5}, r"concurrency is 1\.5; give a whole number"),
        ({"max_devices": "a"}, "max_devices is 'a'; give a whole number"),
        ({"percentile": "99"}, "percentile is '99'; give a number"),
        ({"architecture": 5}, "architecture is 5; give a text"),
        ({"device": 5}, "device is 5; give a text"),
        ({"model": 5}, "model is 5; give the path"),
        ({"rate": None, "dataset": 5}, "dataset is 5; give the path"),
        ({"jobs": "x"}, "jobs is 'x'; give a whole number"),
        ({"jobs": -1}, "jobs is -1; it must be from 0 to 1024"),
    ],
)
def test_arguments_of_size_are_checked_by_type(given: dict[str, Any], sentence: str) -> None:
    asked = {"model": "Qwen/Qwen3-8B", "device": "H100", "slo": "ttft:500", "rate": 1, **given}
    with pytest.raises(llmsim.InputError, match=sentence):
        llmsim.size(**asked)


def test_sweeps_and_logs_are_checked_by_type() -> None:
    wrong: Any = [1]
    with pytest.raises(llmsim.InputError, match="vary is list; give a mapping from names"):
        llmsim.sweep(CLUSTER, LOAD, wrong)
    with pytest.raises(llmsim.InputError, match="log is a value of type list; give the path of a"):
        llmsim.validate(wrong, "run")
    with pytest.raises(llmsim.InputError, match="log is a value of type list; give the path of a"):
        llmsim.calibrate(wrong, CLUSTER, LOAD)
