"""Every figure of the summary and of the screen, made again from the tables of the run folder in
plain Python.
"""

import json
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from llmsim.cli import main

ROOT = Path(__file__).resolve().parents[2]
PS_PER_S, PS_PER_MS = 10**12, 10**9
LOAD = "input=lognormal:400,output=lognormal:60,prefixes=4:tokens=128:share=0.6,seed=3"
CLUSTERS = {
    "h100_llama31_8b": f"synthetic:n=80,rate=20,{LOAD}",
    "h100_llama31_70b_tp4_pp2": f"synthetic:n=40,rate=8,{LOAD}",
    "h100_llama31_8b_pd_2p1d": f"synthetic:n=60,rate=12,{LOAD}",
    "h100_multi_instance": f"synthetic:n=60,rate=12,{LOAD}",
    "rtxpro6000_qwen3_30b_a3b_dp2_ep2": f"synthetic:n=40,rate=8,{LOAD}",
    "dual_node_multi_instance": f"synthetic:n=40,rate=8,{LOAD}",
    "single_node_power_instance": f"synthetic:n=40,rate=4,{LOAD}",
    "single_node_moe_pd_instance": f"synthetic:n=30,rate=4,{LOAD}",
    "single_node_memory_instance": f"synthetic:n=30,rate=4,{LOAD}",
    "heterogeneous_instance": f"synthetic:n=40,rate=4,{LOAD}",
}
Row = dict[str, Any]


class Run:
    """One run: its summary, the rows of its tables and the lines of its screen."""

    def __init__(self, name: str, folder: Path, text: str) -> None:
        self.summary: dict[str, Any] = json.loads(
            (folder / "summary.json").read_text(encoding="utf-8")
        )
        self.requests: list[Row] = pq.read_table(folder / "requests.parquet").to_pylist()
        self.steps: list[Row] = pq.read_table(folder / "steps.parquet").to_pylist()
        power = folder / "power.parquet"
        self.power: list[Row] = pq.read_table(power).to_pylist() if power.is_file() else []
        self.lines = dict(re.findall(r"^([^:\n]+):\s+(.*)$", text, re.MULTILINE))
        self.done = [row for row in self.requests if row["finish_ps"] is not None]

    @property
    def span_ps(self) -> int:
        return max(row["finish_ps"] for row in self.done) - min(
            row["arrival_ps"] for row in self.requests
        )


@pytest.fixture(scope="module", params=CLUSTERS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    cluster = ROOT / "cluster_config" / f"{request.param}.json"
    arguments = ["run", "--cluster-config", str(cluster), "--dataset", CLUSTERS[request.param]]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()) as stream:
            assert (
                main([*arguments, "--run-dir", str(folder), "--cost-source", "roofline", "-v"]) == 0
            )
    return Run(request.param, folder, stream.getvalue())


def rank(values: Sequence[Any], percent: int) -> float:
    """Linear interpolation between the closest ranks."""
    ordered = sorted(values)
    place = Fraction(percent * (len(ordered) - 1), 100)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return float(low + (place - math.floor(place)) * (high - low))


def close(value: Any) -> Any:
    """What a rounded figure may be."""
    return pytest.approx(float(value), rel=1e-9, abs=1e-6)


def test_latencies(run: Run) -> None:
    done = run.done
    columns: dict[str, list[Any]] = {
        "ttft": [row["first_token_ps"] - row["arrival_ps"] for row in done],
        "e2el": [row["finish_ps"] - row["arrival_ps"] for row in done],
        "queueing_delay": [row["scheduled_ps"] - row["arrival_ps"] for row in done],
        "tpot": [
            Fraction(row["finish_ps"] - row["first_token_ps"], row["emitted_tokens"] - 1)
            for row in done
            if row["emitted_tokens"] > 1
        ],
        "itl": [gap for row in done for gap in row["itl_ps"]],
    }
    for name, values in columns.items():
        mean = Fraction(sum(values), len(values)) if name != "tpot" else sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        assert run.summary[f"mean_{name}_ms"] == close(mean / PS_PER_MS), name
        assert run.summary[f"std_{name}_ms"] == pytest.approx(
            math.sqrt(variance) / PS_PER_MS, rel=1e-6, abs=1e-6
        )
        for label, percent in (("median", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
            assert run.summary[f"{label}_{name}_ms"] == close(rank(values, percent) / PS_PER_MS), (
                name,
                label,
            )


def test_throughputs(run: Run) -> None:
    summary, done = run.summary, run.done
    prompt, output = (sum(row[name] for row in done) for name in ("input_tokens", "emitted_tokens"))
    assert (summary["completed"], summary["unfinished"]) == (
        len(done),
        len(run.requests) - len(done),
    )
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (prompt, output)
    assert summary["duration"] == close(Fraction(run.span_ps, PS_PER_S))
    for name, amount in (
        ("request_throughput", len(done)),
        ("output_throughput", output),
        ("total_token_throughput", prompt + output),
    ):
        assert summary[name] == close(Fraction(amount * PS_PER_S, run.span_ps)), name


def test_causes_of_latency(run: Run) -> None:
    total_ps = sum(row["finish_ps"] - row["arrival_ps"] for row in run.done)
    for name, part in run.summary["blame"].items():
        sum_ps = sum(row[f"{name}_ps"] for row in run.done)
        assert part["mean_ms"] == close(Fraction(sum_ps, len(run.done) * PS_PER_MS)), name
        assert part["share"] == close(Fraction(sum_ps, total_ps)), name


def test_steps_and_caches(run: Run) -> None:
    summary = run.summary
    assert summary["steps"] == len(run.steps)
    handed_over = summary["kv_transfer"] is not None
    queried, hit = (summary["prefix_cache"][name] for name in ("queried_tokens", "hit_tokens"))
    assert summary["prefix_cache"]["hit_rate"] == (close(hit / queried) if queried else None)
    assert summary["prefix_cache"]["both_sides_of_hand_overs"] == handed_over
    if not handed_over and not summary["preemptions"]:
        assert queried in (0, sum(row["input_tokens"] for row in run.requests))
        assert hit == sum(row["cached_tokens"] for row in run.requests)
    assert summary["preemptions"] == sum(row["preempted"] for row in run.steps)
    for cache in summary["kv_cache"]:
        free = [row["free_blocks"] for row in run.steps if row["group"] == cache["group"]]
        usable = cache["num_blocks"] - 1
        assert cache["capacity_tokens"] == usable * cache["block_size_tokens"]
        assert cache["peak_usage"] == close(Fraction(cache["peak_blocks_used"], usable))
        assert cache["peak_blocks_used"] >= usable - min(free, default=usable)
    if handed_over:
        moved = [row for row in run.done if row["prefill_group"] is not None]
        assert summary["kv_transfer"]["requests"] == len(moved)
        assert summary["kv_transfer"]["bytes"] == sum(row["kv_transfer_bytes"] for row in moved)
        landed = [row["kv_landed_ps"] - row["kv_reserved_ps"] for row in moved]
        assert summary["kv_transfer"]["mean_transfer_ms"] == close(
            Fraction(sum(landed), len(landed) * PS_PER_MS)
        )


def test_busy_shares(run: Run) -> None:
    """Time with a batch on the devices, whose intervals overlap in a pipeline, over
    the makespan.
    """
    busy_ps = {}
    for group in {row["group"] for row in run.steps}:
        reached = busy_ps[group] = 0
        for row in sorted(
            (one for one in run.steps if one["group"] == group), key=lambda one: one["start_ps"]
        ):
            busy_ps[group] += max(0, row["end_ps"] - max(row["start_ps"], reached))
            reached = max(reached, row["end_ps"])
    span_ps = max(run.span_ps, *busy_ps.values())
    for found in run.summary["utilisation"]:
        assert found["busy"] == close(Fraction(busy_ps.get(found["group"], 0), span_ps)), found[
            "group"
        ]


def test_sources(run: Run) -> None:
    sources = run.summary["sources"]
    total_s = sum(operator["time_s"] for operator in sources["operators"])
    assert sources["busy_time_s"] == pytest.approx(total_s, rel=1e-6, abs=1e-4)
    for name, share in sources["by_source"].items():
        own_s = sum(
            operator["time_s"] for operator in sources["operators"] if operator["source"] == name
        )
        assert share == pytest.approx(own_s / total_s, abs=1e-4), name
    for name, share in sources["by_provenance"].items():
        own_s = sum(one["time_s"] * (one["provenance"][name] or 0) for one in sources["operators"])
        assert share == pytest.approx(own_s / total_s, abs=1e-4), name


def test_energy(run: Run) -> None:
    energy = run.summary["energy"]
    if energy is None:
        assert not run.power
        return
    columns = [name for name in run.power[0] if name.endswith("_w")]
    start_ps = min(row["arrival_ps"] for row in run.requests)
    before, drawn_j = {}, dict.fromkeys(columns, 0.0)
    for row in run.power:
        length_s = (row["time_ps"] - before.get(row["node"], start_ps)) / PS_PER_S
        before[row["node"]] = row["time_ps"]
        for name in columns:
            drawn_j[name] += row[name] * length_s
    total_j = sum(drawn_j.values()) + energy["pool_j"]
    emitted = sum(row["emitted_tokens"] for row in run.requests)
    assert energy["total_j"] == pytest.approx(total_j, rel=1e-9)
    for name, part_j in energy["components_j"].items():
        assert part_j == pytest.approx(drawn_j[f"{name}_w"], rel=1e-9), name
    assert energy["mean_power_w"] == pytest.approx(
        total_j * PS_PER_S / (max(before.values()) - start_ps), rel=1e-9
    )
    assert energy["j_per_output_token"] == pytest.approx(total_j / emitted, rel=1e-9)
    own_j = [row["energy_j"] for row in run.done]
    assert energy["mean_request_j"] == pytest.approx(sum(own_j) / len(own_j), rel=1e-9)
    assert energy["p99_request_j"] == pytest.approx(
        rank([Fraction(one) for one in own_j], 99), rel=1e-9
    )
    by_row: dict[int, float] = {}
    for row in run.power:
        by_row[row["time_ps"]] = by_row.get(row["time_ps"], 0.0) + sum(
            row[name] for name in columns
        )
    assert energy["peak_power_w"] == pytest.approx(max(by_row.values()), rel=1e-9)


def test_cost(run: Run) -> None:
    cost = run.summary["cost"]
    if cost is None or cost["total"] is None:
        return
    hours = Fraction(run.span_ps, PS_PER_S * 3600)
    devices = sum(group["devices"] * group["price_per_device_hour"] for group in cost["groups"])
    assert cost["price_per_hour"] >= devices - 1e-9
    total = cost["price_per_hour"] * float(hours) + (cost["electricity"] or 0.0)
    prompt, output = (
        sum(row[name] for row in run.done) for name in ("input_tokens", "emitted_tokens")
    )
    assert cost["total"] == pytest.approx(total, rel=1e-9)
    assert cost["per_million_output_tokens"] == pytest.approx(1e6 * total / output, rel=1e-9)
    assert cost["per_million_tokens"] == pytest.approx(1e6 * total / (prompt + output), rel=1e-9)


def test_the_screen_shows_the_summary(run: Run) -> None:
    summary, lines = run.summary, run.lines
    assert lines["Duration (s)"] == f"{summary['duration']:.3f}"
    assert lines["Output tokens"] == str(summary["total_output_tokens"])
    assert lines["Total throughput (tok/s)"] == f"{summary['total_token_throughput']:.2f}"
    for label, name in (("TTFT", "ttft"), ("ITL", "itl"), ("Queueing delay", "queueing_delay")):
        shown = [
            f"{summary[f'{word}_{name}_ms']:.3f}"
            for word in ("mean", "median", "p90", "p95", "p99", "std")
        ]
        assert lines[label].split() == shown
    present = [
        f"{name} {100 * part['share']:.1f} %"
        for name, part in summary["blame"].items()
        if part["share"]
    ]
    assert lines["Latency by cause"] == ", ".join(present)
    assert lines["Invariants"] == f"{len(summary['invariants'])} checked, all hold"
    assert ("count twice" in lines["Prefix cache"]) == (summary["kv_transfer"] is not None)
    error = summary["sources"]["table_interpolation_error_percent"]
    shown = f"{error['half']:.1f} %, nine in ten {error['most']:.1f} %; a system's is larger"
    assert lines["Table interpolation error"] == shown
    assert summary["sources"]["expected_error_percent"] == error
