"""`--prefix-storage` from the command line: the examples run, and what cannot be is said in one
sentence.
"""

import json
from pathlib import Path

import pytest

from llmsim.cli import run_main

ROOT = Path(__file__).resolve().parents[2]
TRACE = (
    "synthetic:n=60,rate=20,input=lognormal:100:max=400,output=lognormal:20:max=60,"
    "prefixes=12:tokens=1024,seed=1"
)
PRESSED = (
    "--num-gpu-blocks-override",
    "400",
    "--max-model-len",
    "4096",
    "--cost-source",
    "roofline",
    "--dataset",
    TRACE,
)


def run(cluster: str, *more: str) -> int:
    return run_main(
        [
            "--cluster-config",
            str(ROOT / "cluster_config" / f"{cluster}.json"),
            *PRESSED,
            "--dataset",
            TRACE,
            *more,
            "--json",
        ]
    )


@pytest.mark.parametrize(
    ("cluster", "options", "pools"),
    [
        ("h100_cpu_prefix_pool", ("--prefix-storage", "CPU"), ["CPU of group 0", "CPU of group 1"]),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "CPU", "--enable-prefix-sharing"),
            ["CPU of node 0"],
        ),
        (
            "h100_cxl_prefix_pool",
            ("--prefix-storage", "CXL", "--enable-prefix-sharing", "--kv-tier-write", "write-back"),
            ["CXL of the cluster"],
        ),
        (
            "h100_multi_shared_prefix_pool",
            (
                "--prefix-storage",
                "CPU+CXL",
                "--enable-prefix-sharing",
                "--kv-tier-write",
                "write-back",
            ),
            ["CPU of node 0", "CXL of the cluster", "CPU of node 1"],
        ),
    ],
)
def test_the_examples_run_and_recall(
    cluster: str, options: tuple[str, ...], pools: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cluster, *options) == 0
    summary = json.loads(capsys.readouterr().out)
    tiers = summary["kv_tiers"]
    assert [pool["name"] for pool in tiers] == pools
    assert summary["completed"] == 60 and all(
        found == "ok" for found in summary["invariants"].values()
    )
    assert (
        sum(pool["hit_tokens"] for pool in tiers) > 0
        and summary["blame"]["kv_transfer"]["mean_ms"] > 0
    )
    assert sum(pool["capacity_bytes"] for pool in tiers) >= 512 * 2**30


@pytest.mark.parametrize(
    ("cluster", "options", "said"),
    [
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "TAPE"),
            'is "TAPE"; it may be None, CPU, CXL, SSD, NVMEOF',
        ),
        ("h100_cpu_prefix_pool", ("--prefix-storage", "CXL"), "it has no cxl_mem"),
        ("h100_cxl_prefix_pool", ("--prefix-storage", "CPU+CXL"), "nodes[0] has no cpu_mem"),
        (
            "h100_cpu_prefix_pool",
            ("--enable-prefix-sharing",),
            "add --prefix-storage CPU or CXL or SSD",
        ),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "None", "--kv-chunk-size", "64"),
            "only with a second tier",
        ),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "CPU", "--kv-chunk-size", "24"),
            "not whole blocks of 16",
        ),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "CPU", "--kv-tier-write", "never"),
            "write-through-selective",
        ),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "CPU", "--kv-tier-eviction", "fifo"),
            "lru, lfu, cost",
        ),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "CPU", "--no-enable-prefix-caching"),
            "need the prefix cache",
        ),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "CPU", "--scheduler", "sglang", "--kv-tier-recall", "async"),
            "does not go with the scheduler sglang",
        ),
        ("h100_cpu_prefix_pool", ("--prefix-storage", "SSD"), "nodes[0] has no storage"),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "NVMEOF"),
            "it has no storage of the cluster",
        ),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "CPU", "--kv-tier-recall", "maybe"),
            "sync, async",
        ),
        (
            "h100_cpu_prefix_pool",
            ("--prefix-storage", "CPU", "--kv-tier-eviction", "lru+lfu"),
            "2 names; give one",
        ),
    ],
)
def test_refusals(
    cluster: str, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cluster, *options) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error, error


@pytest.mark.parametrize("options", [(), ("--prefix-storage", "CXL")])
def test_a_pool_that_holds_nothing_is_noted(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("h100_cxl_prefix_pool", *options) == 0
    summary = json.loads(capsys.readouterr().out)
    assert any("cxl_mem holds nothing" in note for note in summary["notes"]) is not bool(options)
    if options:  # two groups share the pool, whose mem_size is of all four devices
        assert [pool["capacity_bytes"] for pool in summary["kv_tiers"]] == [1024 * 2**30] * 2


STORAGE = {
    "mem_size": 3840,
    "read_bw": 14,
    "write_bw": 6,
    "read_latency": 80000,
    "write_latency": 10000,
    "queue_depth": 64,
}
LAYOUTS: dict[str, list[dict[str, object]]] = {
    "two groups": [{}, {}],
    "pipeline stages": [{"num_npus": 4, "tp_size": 2, "pp_size": 2}],
    "data-parallel experts": [
        {
            "model_name": "Qwen/Qwen3-30B-A3B-Instruct-2507",
            "num_npus": 2,
            "tp_size": 2,
            "dp_group": "a",
        }
    ]
    * 2,
    "prefill and decode": [{"pd_type": "prefill"}, {"pd_type": "decode"}],
    "decode context": [{"num_npus": 16, "tp_size": 16, "decode_context_parallel_size": 2}],
    "prefill context": [{"num_npus": 4, "tp_size": 2, "prefill_context_parallel_size": 2}],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("recall", ["sync", "async"])
def test_every_layout_has_tiers(
    layout: str, recall: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Host memory, storage of the node and of the cluster under any group, with every
    step checked.
    """
    document = json.loads(
        (ROOT / "cluster_config" / "h100_cpu_prefix_pool.json").read_text(encoding="utf-8")
    )
    (node,) = document["nodes"]
    node["instances"] = [node["instances"][0] | more for more in LAYOUTS[layout]]
    node["num_instances"] = len(node["instances"])
    node["storage"], node["cpu_mem"]["mem_size"], document["storage"] = STORAGE, 4, STORAGE
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    options = (
        "--prefix-storage",
        "CPU+SSD+NVMEOF",
        "--kv-tier-write",
        "write-back",
        "--kv-tier-recall",
        recall,
    )
    more = (
        "--enable-prefix-sharing",
        "--kv-tier-eviction",
        "lru+cost+lfu",
        "--check-every-step",
        "--json",
    )
    assert run_main(["--cluster-config", str(path), *PRESSED, *options, *more]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["completed"] == 60 and all(
        found == "ok" for found in summary["invariants"].values()
    )
    assert sum(pool["hit_tokens"] for pool in summary["kv_tiers"]) > 0


@pytest.mark.parametrize(
    ("scheduler", "blocks"), [("sglang", "6400"), ("sarathi", "400"), ("mlfq", "400")]
)
def test_every_scheduler_has_tiers(
    scheduler: str, blocks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (
        "--prefix-storage",
        "CPU",
        "--scheduler",
        scheduler,
        "--enable-prefix-caching",
        "--check-every-step",
    )
    assert run("h100_cpu_prefix_pool", *more, "--num-gpu-blocks-override", blocks) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["completed"] == 60 and all(
        found == "ok" for found in summary["invariants"].values()
    )
    assert sum(pool["hit_tokens"] for pool in summary["kv_tiers"]) > 0


def test_the_series_adds_up_to_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    assert (
        run("h100_cpu_prefix_pool", "--prefix-storage", "CPU", "--run-dir", str(tmp_path / "run"))
        == 0
    )
    pools = json.loads(capsys.readouterr().out)["kv_tiers"]
    series = pq.read_table(tmp_path / "run" / "kv_tiers.parquet").to_pydict()
    for number, pool in enumerate(pools):
        rows = [i for i, index in enumerate(series["pool"]) if index == number]
        for name in (
            "hit_tokens",
            "recalled_bytes",
            "written_bytes",
            "evicted_chunks",
            "thrashed_chunks",
        ):
            assert sum(series[name][i] for i in rows) == pool[name]
        assert series["used_bytes"][rows[-1]] == pool["used_bytes"] > 0


@pytest.mark.parametrize("layout", ["data-parallel experts", "pipeline stages"])
def test_tiers_that_nothing_goes_to_change_nothing(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Collectives and hidden states are then flows on links that nobody else uses, and last as
    without tiers. Stages are scheduled ahead without tiers only, unless the user says otherwise.
    """
    document = json.loads(
        (ROOT / "cluster_config" / "h100_cpu_prefix_pool.json").read_text(encoding="utf-8")
    )
    (node,) = document["nodes"]
    node["instances"] = [node["instances"][0] | more for more in LAYOUTS[layout]]
    node["num_instances"] = len(node["instances"])
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    found = []
    for more in ((), ("--prefix-storage", "CPU", "--kv-tier-write", "write-back")):
        trace = (
            "--dataset",
            "synthetic:n=40,rate=20,input=lognormal:100:max=400,output=lognormal:20:max=60,seed=1",
        )
        same = "--no-async-scheduling"
        assert run_main(["--cluster-config", str(path), *trace, *more, same, "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert all(pool["written_chunks"] == 0 for pool in summary["kv_tiers"])
        found.append(
            {
                key: value
                for key, value in summary.items()
                if key.endswith("_ms") or key == "duration"
            }
        )
    assert found[0] == found[1] and len(found[0]) > 5


MEDIA = ("CPU", "CXL", "SSD", "NVMEOF")


def recalled_ttft_ms(
    folder: Path, medium: str, latency_ns: float, capsys: pytest.CaptureFixture[str]
) -> float:
    """Time to first token of a prompt whose KV, pushed out of the device by another one, comes back
    from `medium`.
    """
    cluster = json.loads(
        (ROOT / "cluster_config" / "h100_llama31_8b.json").read_text(encoding="utf-8")
    )
    drive = {
        "mem_size": 3840,
        "read_bw": 14,
        "write_bw": 6,
        "read_latency": 80000,
        "write_latency": 10000,
    }
    cluster |= {"link_bw": 450, "link_latency": latency_ns, "storage": drive}
    cluster["cxl_mem"] = {"mem_size": 512, "mem_bw": 64, "mem_latency": 250, "num_devices": 1}
    cluster["nodes"][0] |= {
        "cpu_mem": {"mem_size": 512, "mem_bw": 256, "mem_latency": 0},
        "storage": drive,
    }
    (folder / "cluster.json").write_text(json.dumps(cluster), encoding="utf-8")
    prompts = [[1] * 2048, [2] * 2560, [1] * 2048]
    lines = [
        {
            "input_toks": len(ids),
            "output_toks": 2,
            "arrival_time_ns": i * 10**10,
            "input_tok_ids": ids,
        }
        for i, ids in enumerate(prompts)
    ]
    (folder / "t.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    given = ["--cluster-config", str(folder / "cluster.json"), "--dataset", str(folder / "t.jsonl")]
    options = [
        "--num-gpu-blocks-override",
        "170",
        "--max-model-len",
        "2688",
        "--cost-source",
        "roofline",
    ]
    storage = [
        "--prefix-storage",
        medium,
        "--kv-chunk-size",
        "1024",
        "--output",
        str(folder / "o.csv"),
        "--json",
    ]
    assert run_main([*given, *options, *storage]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert sum(pool["hit_tokens"] for pool in summary["kv_tiers"]) > 0
    assert set(summary["invariants"].values()) == {"ok"}
    return float(summary["mean_ttft_ms"])


@pytest.mark.parametrize("medium", MEDIA)
def test_a_recall_pays_link_latency_from_every_medium(
    tmp_path: Path, medium: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One recall among three requests: their mean TTFT is later by a third of what the link is
    slower, exactly.
    """
    fast, slow = (recalled_ttft_ms(tmp_path, medium, latency, capsys) for latency in (1e3, 1e6))
    assert slow - fast == pytest.approx(0.999 / 3, abs=1e-6)


@pytest.mark.parametrize(
    "tiers", ["CPU+NVMEOF", "CXL+NVMEOF", "CXL+SSD", "SSD+NVMEOF", "NVMEOF+SSD", "NVMEOF+CXL"]
)
def test_what_a_full_tier_gives_up_goes_to_the_next_one(
    tiers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(
        (ROOT / "cluster_config" / "h100_cxl_prefix_pool.json").read_text(encoding="utf-8")
    )
    first, second = tiers.split("+")
    size_gib = {first: 1, second: 64}
    (node,) = document["nodes"]
    node["cpu_mem"] = {"mem_size": size_gib.get("CPU", 64), "mem_bw": 256, "mem_latency": 0}
    document["cxl_mem"]["mem_size"] = size_gib.get("CXL", 64)
    node["storage"] = STORAGE | {"mem_size": size_gib.get("SSD", 64)}
    document["storage"] = STORAGE | {"mem_size": size_gib.get("NVMEOF", 64)}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    options = ("--prefix-storage", tiers, "--kv-tier-write", "write-back", "--check-every-step")
    assert run_main(["--cluster-config", str(path), *PRESSED, *options, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["completed"] == 60
    assert all(found == "ok" for found in summary["invariants"].values())
    handed = [pool for pool in summary["kv_tiers"] if pool["name"].startswith(second)]
    assert sum(pool["written_bytes"] for pool in handed) > 0
