"""`sweep`, `validate` and `calibrate` of the API give what single runs and commands give."""

import json
from pathlib import Path

import pytest

import llmsim
from llmsim.cli import main
from llmsim.config.errors import InputError

LOAD = "synthetic:n=120,rate=8,input=lognormal:300,output=lognormal:60,seed=2"
ROOFLINE = {"cost_source": "roofline"}


@pytest.fixture(scope="module")
def cluster() -> llmsim.Cluster:
    return llmsim.Cluster.build("Qwen/Qwen3-8B", "H100")


def test_a_sweep_is_a_table_of_single_runs(cluster: llmsim.Cluster) -> None:
    vary = {"max_num_seqs": [8, 64], "goodput": [["ttft:100"], ["ttft:1000"]]}
    table = llmsim.sweep(cluster, LOAD, vary, **ROOFLINE)
    assert list(table["max_num_seqs"]) == [8, 8, 64, 64] and not table["problem"].any()
    single = llmsim.run(cluster, LOAD, max_num_seqs=8, goodput=["ttft:1000"], **ROOFLINE).summary
    assert table["p99_ttft_ms"][1] == single["p99_ttft_ms"]
    assert table["goodput.share"][1] == single["goodput"]["share"] > table["goodput.share"][0]


def test_a_cluster_that_does_not_fit_is_a_row(cluster: llmsim.Cluster) -> None:
    large = llmsim.Cluster.build("meta-llama/Llama-3.1-70B", "H100")
    table = llmsim.sweep(None, LOAD, {"cluster": [cluster, large]}, num_reqs=3, **ROOFLINE)
    assert table["completed"][0] == 3 and "does not fit" in table["problem"][1]


def test_clusters_of_a_sweep_have_names_of_their_own(
    cluster: llmsim.Cluster, tmp_path: Path
) -> None:
    two = llmsim.Cluster.build("Qwen/Qwen3-8B", "H100", tp=2)
    paths = [tmp_path / "one.json", tmp_path / "two.yaml", tmp_path / "sub" / "one.json"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        cluster.save(path)
    bare = {key: value for key, value in cluster.fields().items() if key != "description"}
    named = llmsim.Cluster.of(bare, "model-1.5")
    given = [cluster, two, two.fields(), bare, bare, named, str(paths[0]), *paths[1:]]
    table = llmsim.sweep(None, LOAD, {"cluster": given}, num_reqs=2, **ROOFLINE)
    assert list(table["cluster"]) == [
        "1 x Qwen/Qwen3-8B, each on 1 H100",
        "1 x Qwen/Qwen3-8B, each on 2 H100 (2)",
        "1 x Qwen/Qwen3-8B, each on 2 H100 (3)",
        "cluster (4)",
        "cluster (5)",
        "model-1.5",
        str(paths[0]),
        "two",
        str(paths[2]),
    ]
    assert table["mean_tpot_ms"][1] == table["mean_tpot_ms"][2] < table["mean_tpot_ms"][0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dataset", '; it is called "workload" here'),
        ("clusters", '; it is called "cluster" here'),
        ("tp", 'vary "cluster" over clusters that differ in it, such as llmsim.Cluster.build('),
        ("tensor_parallel_size", "llmsim.Cluster.build(model, device, tensor_parallel_size=...)"),
        ("tp_size", "llmsim.Cluster.build(model, device, tp=...)"),
        ("rate", 'vary "workload" over texts that differ in it, as in synthetic:n=100,rate=10'),
        ("max_num_seq", 'did you mean "max_num_seqs"?'),
        ("workloadd", 'did you mean "workload"?'),
    ],
)
def test_what_a_sweep_cannot_vary_names_what_it_can(
    name: str, said: str, cluster: llmsim.Cluster
) -> None:
    with pytest.raises(InputError, match=f"^vary names {name}, which is no option") as caught:
        llmsim.sweep(cluster, LOAD, {name: [1, 2]})
    assert said in str(caught.value) and caught.value.field == name


def test_the_front_of_a_sweep_is_drawn(cluster: llmsim.Cluster) -> None:
    pytest.importorskip("matplotlib")
    large = llmsim.Cluster.build("meta-llama/Llama-3.1-70B", "H100")
    vary = {"cluster": [cluster, large], "max_num_seqs": [4, 16, 64]}
    table = llmsim.sweep(None, LOAD, vary, num_reqs=60, **ROOFLINE)
    fits = table[table["problem"] == ""]
    axes = fits.plot.pareto(minimize="mean_tpot_ms", maximize="output_throughput")
    drawn, front = axes.lines
    assert list(drawn.get_xdata()) == list(fits["mean_tpot_ms"]) and len(fits) == 3
    kept = sorted(
        (row["mean_tpot_ms"], row["output_throughput"], row["max_num_seqs"])
        for _, row in fits.iterrows()
        if not (
            (fits["mean_tpot_ms"] <= row["mean_tpot_ms"])
            & (fits["output_throughput"] >= row["output_throughput"])
            & (fits.index != row.name)
        ).any()
    )
    assert list(zip(front.get_xdata(), front.get_ydata(), strict=True)) == [
        (tpot, tokens) for tpot, tokens, _ in kept
    ]
    assert [text.get_text() for text in axes.texts] == [
        f"max_num_seqs={most}" for _, _, most in kept
    ]
    whole = table.plot.pareto(minimise=(), maximise=["output_throughput", "request_throughput"])
    assert (
        whole.get_xlabel().splitlines()[0] == "output_throughput"
        and len(whole.lines[0].get_xdata()) == 3
    )
    assert fits.plot(x="max_num_seqs", y="p99_ttft_ms").lines  # what pandas draws
    with pytest.raises(InputError, match="3 columns"):
        table.plot.pareto(minimise=["p99_ttft_ms", "p99_tpot_ms"])
    with pytest.raises(InputError, match="did you mean"):
        table.plot.pareto(minimise="mean_tpot")


@pytest.mark.parametrize("vary", [{}, {"seed": 3}, {"seed": []}, {"max_num_seq": [1]}])
def test_a_sweep_of_nothing_is_refused(cluster: llmsim.Cluster, vary: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(InputError):
        llmsim.sweep(cluster, LOAD, vary, num_reqs=2, **ROOFLINE)
    with pytest.raises(InputError, match="varied and given"):
        llmsim.sweep(cluster, LOAD, {"seed": [1]}, seed=2)


def slower(cluster: llmsim.Cluster) -> llmsim.Cluster:
    """The same cluster whose engine loses 3 ms a step."""
    return llmsim.Cluster.of({**cluster.fields(), "engine": {"host_gap_ns": 3_000_000}})


@pytest.fixture(scope="module")
def recorded(cluster: llmsim.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose engine loses 3 ms a step, as if it were a real server's log."""
    path = tmp_path_factory.mktemp("recorded") / "log.jsonl"
    requests = llmsim.run(slower(cluster), LOAD, **ROOFLINE).requests
    lines = [
        {
            "request_id": f"r{i}",
            "input_toks": int(row["input_tokens"]),
            "output_toks": int(row["emitted_tokens"]),
            "arrival_time": row["arrival_ps"] / 1e12,
            "queued_ts": row["arrival_ps"] / 1e12,
            "scheduled_ts": row["scheduled_ps"] / 1e12,
            "first_token_ts": row["first_token_ps"] / 1e12,
            "last_token_ts": row["finish_ps"] / 1e12,
        }
        for i, (_, row) in enumerate(requests.iterrows())
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_validate_gives_what_the_command_prints(
    cluster: llmsim.Cluster,
    recorded: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = llmsim.run(cluster, LOAD, **ROOFLINE)
    result.save(tmp_path / "run")
    found = llmsim.validate(recorded, result).as_json()
    capsys.readouterr()
    assert main(["validate", str(recorded), str(tmp_path / "run"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    plain = json.loads(json.dumps(found))
    for one in (plain, printed):
        one.pop("simulated", None)
    assert plain.keys() == printed.keys()
    with pytest.raises(InputError, match="skip_seconds is -1"):
        llmsim.validate(recorded, result, skip_seconds=-1)


def test_calibrate_finds_what_was_planted(cluster: llmsim.Cluster, recorded: Path) -> None:
    found = llmsim.calibrate(recorded, cluster, LOAD, fit=["host_gap_ns"], **ROOFLINE)
    assert found["constants"]["host_gap_ns"] == pytest.approx(3_000_000, rel=0.05)
    with pytest.raises(InputError, match="fitted from nothing"):
        llmsim.calibrate(recorded, cluster, LOAD, calibration="c.json", **ROOFLINE)
