"""`llmsim.run` gives what the command line gives, for paths, tables and objects."""

import inspect
import json
import subprocess
import sys
import threading
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import llmsim
from llmsim.cli import main

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
TRACE = ROOT / "dataset" / "example_10.jsonl"
ROOFLINE: dict[str, Any] = {"cost_source": "roofline"}
FIELDS = json.loads(CLUSTER.read_text())


def run(workload: Any = TRACE, cluster: Any = CLUSTER, **options: Any) -> llmsim.Result:
    return llmsim.run(cluster, workload, **{**ROOFLINE, **options})


def test_the_summary_and_the_tables_are_those_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--cluster-config", str(CLUSTER), "--dataset", str(TRACE)]
    arguments += ["--cost-source", "roofline", "--run-dir", str(tmp_path / "cli"), "--json"]
    assert main([*arguments, "--max-num-seqs", "4", "--seed", "3"]) == 0
    printed = json.loads(capsys.readouterr().out)
    result = run(max_num_seqs=4, seed=3)
    assert json.loads(json.dumps(result.summary)) == printed
    result.save(tmp_path / "api")
    for name in ("requests", "steps", "series"):
        written = pq.read_table(tmp_path / "cli" / f"{name}.parquet")
        assert written.equals(pq.read_table(tmp_path / "api" / f"{name}.parquet"))
        frame = getattr(result, name)
        assert list(frame.columns) == written.column_names
        assert pa.Table.from_pandas(frame, preserve_index=False).to_pydict() == written.to_pydict()
    assert (tmp_path / "api" / "summary.json").read_bytes() == (
        tmp_path / "cli" / "summary.json"
    ).read_bytes()


def test_every_way_to_give_the_same_requests_gives_the_same_times() -> None:
    rows = [json.loads(line) for line in TRACE.read_text().splitlines()]
    frame = pd.DataFrame(
        {
            "arrival_s": [row["arrival_time_ns"] / 1e9 for row in rows],
            "input_tokens": [row["input_toks"] for row in rows],
            "output_tokens": [row["output_toks"] for row in rows],
        }
    )
    requests = [
        llmsim.Request(*map(float, row[:1]), *map(int, row[1:])) for row in frame.to_numpy()
    ]
    plain = run(enable_prefix_caching=False)
    ways = {
        "DataFrame": frame,
        "table": pa.Table.from_pandas(frame),
        "columns": {name: frame[name].to_numpy() for name in frame},
        "requests": requests,
    }
    for name, workload in ways.items():
        result = run(workload, enable_prefix_caching=False)
        assert result.summary["workload"] == {"source": name, "requests": len(rows)}
        for column in ("first_token_ps", "finish_ps"):
            assert result.requests[column].equals(plain.requests[column])


def test_the_requests_of_a_result_are_a_workload() -> None:
    first = run()
    again = run(first.requests)
    assert again.requests["request_id"].equals(first.requests["request_id"])
    assert again.summary["total_output_tokens"] == first.summary["total_output_tokens"]


def test_a_cluster_is_a_path_a_mapping_or_a_value(tmp_path: Path) -> None:
    expected = run().summary
    assert run(cluster=str(CLUSTER)).summary == expected
    assert run(cluster=FIELDS).summary == expected
    loaded = llmsim.Cluster.load(CLUSTER)
    assert loaded.fields() == FIELDS
    loaded.save(tmp_path / "copy.json")
    assert run(cluster=tmp_path / "copy.json").summary == expected


def test_a_built_cluster_serves_on_as_many_devices() -> None:
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", tp=2, instances=3)
    result = run(cluster=cluster)
    assert [group["devices"] for group in result.summary["kv_cache"]] == [2, 2, 2]
    apart = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", prefill=1, decode=2)
    roles = [
        instance.get("pd_type")
        for node in apart.fields()["nodes"]
        for instance in node["instances"]
    ]
    assert roles == ["prefill", "decode", "decode"]
    assert run(cluster=apart).summary["kv_transfer"]
    wide = llmsim.Cluster.build(
        "meta-llama/Llama-3.1-8B", "H100", tp=2, prefill=1, decode=2, decode_tp=16
    )
    placed = [[one["tp_size"] for one in node["instances"]] for node in wide.fields()["nodes"]]
    assert placed == [[2], [16], [], [16], []]
    assert wide.label == (
        "meta-llama/Llama-3.1-8B: 1 prefill each on 2 H100, 2 decode each on 16 H100 on 2 nodes"
    )
    assert apart.label == "1 prefill + 2 decode x meta-llama/Llama-3.1-8B, each on 1 H100"
    with pytest.raises(llmsim.InputError, match="decode_tp is 2, but decode is 0; give") as caught:
        llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", decode_tp=2)
    assert caught.value.field == "decode_tp"
    with pytest.raises(llmsim.InputError, match="prefill is 1 and decode is 0; give both"):
        llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", prefill=1)


def test_data_parallel_ranks_share_experts_as_in_vllm() -> None:
    def built(**sizes: Any) -> dict[str, Any]:
        cluster = llmsim.Cluster.build("Qwen/Qwen3-30B-A3B", "H100", **sizes)
        nodes = cluster.fields()["nodes"]
        assert [len(node["instances"]) for node in nodes] == [1] + [0] * (len(nodes) - 1)
        return cast(dict[str, Any], nodes[0]["instances"][0])

    cut = built(tp=2, dp=4)
    assert (cut["tp_size"], cut["data_parallel_size"]) == (2, 4)
    assert cut["enable_expert_parallel"] is False and "ep_size" not in cut
    assert built(tensor_parallel_size=2, data_parallel_size=4, ep=8)["enable_expert_parallel"]
    assert built(tp=4, dp=4)["nnodes"] == 2
    dense = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", dp=2)
    assert run(cluster=dense).summary["kv_cache"][0]["devices"] == 1
    with pytest.raises(llmsim.InputError, match=r"--ep is 4, but --tp 2 x --dp 4 .* give --ep 8"):
        built(tp=2, dp=4, ep=4)
    with pytest.raises(llmsim.InputError, match="dp is 2 beside attention 1 and ffn 1"):
        built(dp=2, attention=1, ffn=1)
    with pytest.raises(llmsim.InputError, match="dp is 2 and data_parallel_size, the same size"):
        built(dp=2, data_parallel_size=4)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"device": "H100", "replicas": 2},
            'replicas is no option of Cluster.build; it is called "instances" here',
        ),
        ({"gpu": "H100"}, 'gpu is no option of Cluster.build; it is called "device" here'),
        (
            {"device": "H100", "instance": 2},
            'instance is no option of Cluster.build (did you mean "instances"?)',
        ),
        ({}, "device is missing; give a name, or the path of a file"),
    ],
)
def test_words_that_build_does_not_have_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(llmsim.InputError) as caught:
        llmsim.Cluster.build("Qwen/Qwen3-8B", **given)
    assert str(caught.value) == sentence
    assert caught.value.field == next((name for name in given if name != "device"), "device")


def test_build_lists_what_it_takes_where_no_name_is_near() -> None:
    from llmsim.api.cluster import _BUILD, _CALLED_HERE

    takes = set(inspect.signature(llmsim.Cluster.build).parameters) - {"others"}
    assert set(_BUILD) == takes
    assert set(_CALLED_HERE.values()) <= takes
    assert not set(_CALLED_HERE) & takes


def test_equal_clusters_are_compiled_once_while_their_files_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmsim.api import run as api_run
    from llmsim.api.preparation import prepare as module
    from llmsim.api.preparation.compiled import CompiledClusters

    compiled: list[str] = []
    original = module.compile_cluster

    def counted(*arguments: Any) -> Any:
        compiled.append("")
        return original(*arguments)

    monkeypatch.setattr(module, "compile_cluster", counted)
    monkeypatch.setattr(api_run, "_COMPILED", CompiledClusters())
    path = tmp_path / "cluster.json"
    path.write_text(CLUSTER.read_text())
    first = run(cluster=path)
    assert (
        run(cluster=path, seed=7, request_routing_policy="RR")
        .requests["finish_ps"]
        .equals(first.requests["finish_ps"])
    )
    assert len(compiled) == 1
    run(cluster=path, max_num_seqs=2)
    assert len(compiled) == 2
    text = json.loads(path.read_text())
    text["nodes"][0]["instances"][0]["npu_mem"]["mem_bw"] = 1000
    path.write_text(json.dumps(text))
    assert run(cluster=path).summary["mean_tpot_ms"] > first.summary["mean_tpot_ms"]
    assert len(compiled) == 3


def test_threads_do_not_meet() -> None:
    expected = [run(seed=seed, request_routing_policy="RAND").summary for seed in range(4)]
    found: list[Any] = [None] * 4

    def work(seed: int) -> None:
        found[seed] = run(seed=seed, request_routing_policy="RAND").summary

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_sessions_are_rows_of_their_own(tmp_path: Path) -> None:
    lines = [
        {
            "session_id": f"s{n}",
            "arrival_time_ns": n * 10**9,
            "sub_requests": [
                {"input_toks": 100, "output_toks": 10},
                {"input_toks": 120, "output_toks": 5, "tool_duration_ns": 10**8},
            ],
        }
        for n in range(3)
    ]
    trace = tmp_path / "sessions.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sessions = run(trace).sessions
    assert sessions["session_id"].tolist() == ["s0", "s1", "s2"]
    assert sessions["calls"].tolist() == [2, 2, 2]
    assert sessions["emitted_tokens"].tolist() == [15, 15, 15]
    assert (sessions["duration_ps"] > 10**11).all()


def test_a_request_that_can_never_run_is_warned_of_and_the_others_are_served() -> None:
    requests = [llmsim.Request(0, 10, 5), llmsim.Request(0.1, 10_000_000, 5)]
    with pytest.warns(UserWarning, match="1 of 2 requests can never run"):
        result = run(requests)
    assert result.requests["status"].tolist() == ["finished", "rejected"]


@pytest.mark.parametrize(
    ("workload", "options", "field", "sentence"),
    [
        (TRACE, {"max_num_seq": 4}, "max_num_seq", 'did you mean "max_num_seqs"'),
        (TRACE, {"output": "a.csv"}, "output", "use Result.to_csv"),
        (3.5, {}, "workload", "workload is float"),
        ([{"arrival_s": 0, "input_tokens": 5}], {}, "output_tokens", "output_tokens is missing"),
        ([{"input_tokens": 5, "output_tokens": 5}], {}, "arrival_s", "given by none"),
        (
            [{"arrival_s": float("inf"), "input_tokens": 5, "output_tokens": 5}],
            {},
            "arrival_s",
            "requests:1: arrival_s is inf",
        ),
        ({"arrival_s": [0, 1], "input_tokens": [5]}, {}, "workload", "different lengths"),
        (
            [{"arrival_s": 0, "input_tokens": 5, "output_tokens": 5, "model": object()}],
            {},
            "workload",
            "a request holds a object",
        ),
    ],
)
def test_errors_name_the_culprit(
    workload: Any, options: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(llmsim.InputError) as caught:
        run(workload, **options)
    assert caught.value.field == field
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_of_a_cluster_name_file_field_and_value(tmp_path: Path) -> None:
    broken = json.loads(json.dumps(FIELDS))
    broken["nodes"][0]["instances"][0]["tp_size"] = "two"
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(broken, indent=1))
    for cluster, name in ((path, str(path)), (broken, "cluster")):
        with pytest.raises(llmsim.InputError) as caught:
            run(cluster=cluster)
        error = caught.value
        assert (error.file, error.value) == (name, "two")
        assert error.field == "nodes[0].instances[0].tp_size"
    with pytest.raises(llmsim.InputError, match="cluster is int"):
        run(cluster=3)


def test_pictures_show_the_numbers() -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    result = run()
    for metric in ("ttft", "tpot", "e2el"):
        line = result.plot.latency_cdf(metric).lines[0]
        shown = np.asarray(line.get_xdata(), dtype=float)
        assert shown.mean() == pytest.approx(result.summary[f"mean_{metric}_ms"], rel=1e-5)
    assert len(result.plot.timeline().patches) == 3 * len(result.requests)
    assert {text.get_text() for text in result.plot.load().get_legend().get_texts()} == {
        "running",
        "waiting",
    }
    assert max(result.plot.kv_cache().lines[0].get_ydata()) <= 100
    with pytest.raises(llmsim.InputError, match='metric is "p99"'):
        result.plot.latency_cdf("p99")
    assert "TTFT" in repr(result) and "<table>" in result._repr_html_()
    assert [ax.get_xlabel() for ax in result.plot().axes] == ["TTFT (ms)", *["time (s)"] * 3]
    with pytest.raises(llmsim.InputError, match="recorded no series"):
        run(series=False).plot()


def test_runs_are_compared_by_user_and_device() -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    load = "synthetic:n=80,rate=40,input=300,output=40,seed=1"
    one, two = (
        llmsim.run(llmsim.Cluster.build("Qwen/Qwen3-8B", "H100", instances=n), load) for n in (1, 2)
    )
    axes = one.plot.pareto({"two": two}, "one")
    assert {text.get_text() for text in axes.texts} == {"one", "two"}
    assert list(axes.lines[0].get_xdata()) == [1e3 / r.summary["mean_tpot_ms"] for r in (one, two)]
    assert list(axes.lines[0].get_ydata()) == [
        one.summary["output_throughput"],
        two.summary["output_throughput"] / 2,
    ]
    single = llmsim.run(one.cluster, "synthetic:n=3,rate=1,input=30,output=1,seed=1")
    with pytest.raises(llmsim.InputError, match='"one token" has no TPOT'):
        one.plot.pareto({"one token": single})


def test_importing_loads_nothing_and_a_run_needs_no_command_line() -> None:
    script = (
        "import sys, llmsim; assert 'numpy' not in sys.modules; "
        f"llmsim.run({str(CLUSTER)!r}, {str(TRACE)!r}, cost_source='roofline'); "
        "print([name for name in ('typer', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists() -> None:
    assert set(llmsim.__all__) <= set(dir(llmsim))
    for name in llmsim.__all__:
        assert getattr(llmsim, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'runs'"):
        llmsim.runs  # noqa: B018


@pytest.mark.parametrize(
    "call",
    [
        lambda missing: llmsim.run(missing, TRACE),
        lambda missing: llmsim.run(CLUSTER, missing),
        lambda missing: llmsim.validate(missing, missing),
        lambda missing: llmsim.calibrate(missing, CLUSTER, TRACE),
        lambda missing: llmsim.diff(missing, missing),
        lambda missing: llmsim.report(missing, f"{missing}.html"),
    ],
)
def test_errors_name_the_file_that_is_missing(call: Any, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.json")
    with pytest.raises(llmsim.InputError) as error:
        call(missing)
    assert error.value.file == missing


def test_type_checkers_read_the_package() -> None:
    """Without the marker they take every name of an installed package as untyped."""
    assert resources.files("llmsim").joinpath("py.typed").is_file()


def test_lists_and_mappings_stand_for_the_text_of_the_command_line() -> None:
    drafts = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.8}
    for name, value, text in (
        ("speculative_config", drafts, json.dumps(drafts)),
        ("cudagraph_capture_sizes", [1, 2, 4], "1,2,4"),
    ):
        theirs = llmsim.run(CLUSTER, TRACE, cost_source="roofline", **{name: value})
        same = llmsim.run(CLUSTER, TRACE, cost_source="roofline", **{name: text})
        plain = llmsim.run(CLUSTER, TRACE, cost_source="roofline", **{name: None})
        assert theirs.summary["mean_tpot_ms"] == same.summary["mean_tpot_ms"]
        assert theirs.summary["mean_tpot_ms"] != plain.summary["mean_tpot_ms"]
    for name in ("speculative_config", "cudagraph_capture_sizes"):
        with pytest.raises(llmsim.InputError, match=name):
            llmsim.run(CLUSTER, TRACE, **{name: ["x"]})


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"tp_size": 3}, "nodes[0].instances[0].tp_size", 3),
        ({"pd_type": "prefill"}, "nodes[0].instances[0].pd_type", "prefill"),
        ({"model_name": "no/such"}, "nodes[0].instances[0].model_name", "no/such"),
        ({"tp_size": "2"}, "nodes[0].instances[0].tp_size", "2"),
    ],
)
def test_an_error_of_a_cluster_carries_its_field_and_value(
    change: dict[str, Any], field: str, value: Any
) -> None:
    fields = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100").fields()
    fields["nodes"][0]["instances"][0] |= change
    with pytest.raises(llmsim.InputError) as caught:
        llmsim.run(fields, "synthetic:n=1,rate=1,input=8,output=2")
    assert (caught.value.file, caught.value.field, caught.value.value) == ("cluster", field, value)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('{"input_toks": 8, "output_toks": 0, "arrival_time_ns": 0}\n', "output_toks", 0),
        ('{"input_toks": 8, "arrival_time_ns": 0}\n', "output_toks", None),
        (
            '{"arrival_time_ns": 0, "sub_requests": [{"new_toks": 3, "output_toks": "x"}]}\n',
            "sub_requests[0].output_toks",
            "x",
        ),
        ("arrival,input,output\n0,eight,2\n", "input", "eight"),
    ],
)
def test_an_error_of_a_trace_carries_its_field_and_value(
    text: str, field: str, value: Any, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(llmsim.InputError) as caught:
        llmsim.run(llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100"), path)
    error = caught.value
    assert (error.file, error.field, error.value) == (str(path), field, value)


def test_an_error_of_a_table_is_in_the_words_of_its_columns() -> None:
    table = {"time": [0, 1], "prompt_tokens": [8, -2], "completion_tokens": [2, 2]}
    with pytest.raises(llmsim.InputError) as caught:
        llmsim.run(llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100"), table)
    assert str(caught.value).startswith('columns:2: "prompt_tokens" is -2, but must be')
    assert (caught.value.field, caught.value.value) == ("prompt_tokens", -2)
    with pytest.raises(llmsim.InputError) as caught:
        llmsim.run(
            llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100"),
            "synthetic:n=none,rate=1,input=8,output=2",
        )
    assert (caught.value.field, caught.value.value) == ("n", "none")


@pytest.mark.parametrize(
    "nothing", ["", [], {"arrival_s": [], "input_tokens": [], "output_tokens": []}], ids=repr
)
def test_a_workload_without_requests_is_refused_in_its_own_words(nothing: Any) -> None:
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100")
    with pytest.raises(llmsim.InputError, match=r"^workload is empty.*; give a ") as caught:
        llmsim.run(cluster, nothing)
    assert caught.value.field == "workload" and "input_toks" not in str(caught.value)


@pytest.mark.parametrize(("column", "value"), [("arrival_s", -1), ("arrival_ms", 1.7e12)])
def test_a_time_that_no_run_has_is_told_in_the_words_of_its_column(
    column: str, value: float
) -> None:
    table = {column: [0, value], "input_tokens": [8, 8], "output_tokens": [2, 2]}
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100")
    with pytest.raises(llmsim.InputError, match=f"columns:2: {column} is .* 53 days") as caught:
        llmsim.run(cluster, table)
    assert (caught.value.field, caught.value.value) == (column, value)


def test_targets_that_are_none_have_a_field() -> None:
    with pytest.raises(llmsim.InputError, match="needs milliseconds above 0") as caught:
        llmsim.size("meta-llama/Llama-3.1-8B", "H100", rate=1, slo="ttft:zero")
    assert (caught.value.field, caught.value.value) == ("slo", "ttft:zero")


def test_a_share_is_no_percentile() -> None:
    result = llmsim.run(
        llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100"),
        {"arrival_s": [0], "input_tokens": [8], "output_tokens": [2]},
    )
    with pytest.raises(llmsim.InputError, match=r"percentile is 0.99 \(did you mean 99\?\)"):
        result.why(percentile=0.99)
    with pytest.raises(llmsim.InputError, match=r"percentile is 0.95 \(did you mean 95\?\)"):
        llmsim.size("meta-llama/Llama-3.1-8B", "H100", rate=1, slo="ttft:500", percentile=0.95)
    with pytest.raises(llmsim.InputError, match="group is 'first'"):
        result.graph("first")  # type: ignore[arg-type]
