"""Published means: one constant is found from one figure, predicts another deployment, and is
compared with it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from made_logs import CLUSTER, run_arguments, simulate

from llmsim.cli import main
from llmsim.config.errors import InputError
from llmsim.validation.logs.means_readers import read_means

SMALL = "synthetic:n=40,rate=6,input=lognormal:300,output=lognormal:40,seed=5"
GAP_NS = 3e6
PUBLISHED = (
    "completed",
    "total_output_tokens",
    "output_throughput",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
)


def two_instances(tmp_path: Path) -> Path:
    """The deployment of the other tests, twice."""
    data = json.loads(CLUSTER.read_text(encoding="utf-8"))
    node = data["nodes"][0]
    key = next(name for name in ("instances", "groups") if name in node)
    node[key] = node[key] * 2
    if "num_instances" in node:
        node["num_instances"] = 2
    path = tmp_path / "two.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def means_of_a_machine(tmp_path: Path, name: str, cluster: Path) -> Path:
    """What somebody published of a run on a machine with a host gap."""
    machine = {"kind": "llmsim calibration", "schema_version": 1, "hardware": "H100"}
    calibration = tmp_path / "machine.json"
    calibration.write_text(
        json.dumps({**machine, "constants": {"host_gap_ns": GAP_NS}}), encoding="utf-8"
    )
    simulate(
        "--calibration", calibration, "--run-dir", tmp_path / "real", cluster=cluster, dataset=SMALL
    )
    summary = json.loads((tmp_path / "real" / "summary.json").read_text(encoding="utf-8"))
    path = tmp_path / name
    path.write_text(json.dumps({key: summary[key] for key in PUBLISHED}), encoding="utf-8")
    return path


def test_a_gap_found_on_one_deployment_predicts_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = CLUSTER, two_instances(tmp_path)
    known, unknown = (means_of_a_machine(tmp_path, f"{c.stem}_means.json", c) for c in (one, two))
    out = tmp_path / "fitted.json"
    arguments = run_arguments(cluster=one, dataset=SMALL)
    assert (
        main(["calibrate", str(known), *arguments, "--fit", "host_gap_ns", "--out", str(out)]) == 0
    )
    assert "Fitted on mean TPOT" in capsys.readouterr().out
    fitted = json.loads(out.read_text(encoding="utf-8"))
    assert fitted["constants"]["host_gap_ns"] == pytest.approx(GAP_NS, rel=0.01)
    assert abs(fitted["errors_percent"]["unfitted"]["mean_tpot"]) > 10
    errors = {}
    for name, options in (("plain", ()), ("calibrated", ("--calibration", out))):
        simulate("--run-dir", tmp_path / name, *options, cluster=two, dataset=SMALL)
        capsys.readouterr()
        assert main(["validate", str(unknown), str(tmp_path / name), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["sound"] and set(shown["values"]) == {
            "mean_ttft", "mean_tpot", "p99_tpot", "output_throughput"
        }  # fmt: skip
        errors[name] = {key: abs(value["error_percent"]) for key, value in shown["values"].items()}
    assert errors["plain"]["mean_tpot"] > 10
    first = errors["calibrated"].pop("mean_ttft")  # of few requests, by the phase of a step
    assert first < 2.0 and max(errors["calibrated"].values()) < 1.0


def test_other_work_is_not_sound(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "means.json"
    path.write_text(
        '{"mean_tpot_ms": 10.0, "completed": 61, "total_input_tokens": 5}', encoding="utf-8"
    )
    assert main(["validate", str(path), str(run / "run"), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert (
        "not sound" in shown
        and "completed: 61 published, 60 simulated" in shown
        and "total input tokens" in shown
    )
    assert (tmp_path / "out" / "validation.md").read_text(encoding="utf-8") == shown


def test_the_summary_of_aiperf_is_means(tmp_path: Path) -> None:
    path = tmp_path / "profile_export_aiperf.json"
    data: dict[str, Any] = {
        "time_to_first_token": {"unit": "ms", "avg": 50.0, "p99": 90.0},
        "inter_token_latency": {"unit": "us", "avg": 20_000.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 1200.0},
        "request_count": {"unit": "requests", "avg": 300.0},
    }
    path.write_text(json.dumps(data), encoding="utf-8")
    means = read_means(path)
    assert means is not None and means.counts == {"completed": 300}
    assert dict(means.values) == pytest.approx(
        {"mean_ttft": 0.05, "p99_ttft": 0.09, "mean_tpot": 0.02, "output_throughput": 1200.0}
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "one --fit"),
        (("--fit", "host_gap_ns", "--fit", "time_factor"), "one --fit"),
        (("--fit", "luck"), "no constant"),
        (("--fit", "link_latency_ns"), "changes nothing"),
    ],
)
def test_means_determine_one_constant(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "means.json"
    path.write_text('{"mean_tpot_ms": 10.0}', encoding="utf-8")
    assert main(["calibrate", str(path), *run_arguments(dataset=SMALL), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_figure_to_fit_on_is_needed_and_must_be_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "means.json"
    path.write_text('{"mean_ttft_ms": 10.0}', encoding="utf-8")
    assert (
        main(["calibrate", str(path), *run_arguments(dataset=SMALL), "--fit", "host_gap_ns"]) == 2
    )
    assert "mean_tpot" in capsys.readouterr().err
    path.write_text('{"mean_tpot_ms": "fast"}', encoding="utf-8")
    with pytest.raises(InputError, match="mean_tpot_ms is 'fast'"):
        read_means(path)


def test_what_no_constant_can_reach_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "means.json"
    path.write_text('{"mean_tpot_ms": 0.001}', encoding="utf-8")
    assert (
        main(["calibrate", str(path), *run_arguments(dataset=SMALL), "--fit", "host_gap_ns"]) == 3
    )
    said = capsys.readouterr()
    assert "cannot bring mean tpot" in said.out
    assert "nothing was written" in said.err


@pytest.mark.parametrize("kind", ["openmetrics", "mlperf"])
def test_an_export_without_requests_is_compared_by_its_means(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    simulate("--run-dir", run, dataset=SMALL)
    exported = tmp_path / "exported"
    assert main(["export", str(run), "--format", kind, "-o", str(exported)]) == 0
    capsys.readouterr()
    assert main(["validate", str(exported), str(run), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    errors = {name: one["error_percent"] for name, one in values.items()}
    assert {"mean_ttft", "mean_tpot", "mean_latency"} <= errors.keys()
    assert all(abs(error) < 0.01 for error in errors.values()), errors


def test_metrics_of_several_engines_are_added_up(tmp_path: Path) -> None:
    """The last sample of each series counts; a scrape of a server has one, without a time."""
    lines = [
        *('vllm:e2e_request_latency_seconds_sum{engine="0"} 1 10',),
        *('vllm:e2e_request_latency_seconds_sum{engine="0"} 6 20',),
        *('vllm:e2e_request_latency_seconds_count{engine="0"} 2 20',),
        *('vllm:e2e_request_latency_seconds_sum{engine="1"} 4',),
        *('vllm:e2e_request_latency_seconds_count{engine="1"} 2',),
        *('vllm:time_per_output_token_seconds_sum{engine="1"} 3',),
        *('vllm:time_per_output_token_seconds_count{engine="1"} 100',),
        *('vllm:request_success_total{engine="1",finished_reason="stop"} 3',),
        *('vllm:request_success_total{engine="1",finished_reason="length"} 1',),
    ]
    path = tmp_path / "metrics"
    path.write_text("# HELP vllm:x y\n" + "\n".join(lines) + "\n")
    means = read_means(path)
    assert means is not None
    assert means.values == {"mean_latency": 2.5, "mean_itl": 0.03}
    assert means.counts == {"completed": 4}
    path.write_text(path.read_text().replace(" 6 20", " six 20"))
    with pytest.raises(InputError, match=r"metrics:3: .* is no sample of a metric"):
        read_means(path)
    path.write_text("vllm:e2e_request_latency_seconds_sum 0\n")
    with pytest.raises(InputError, match="_count is 0; scrape the metrics after"):
        read_means(path)
