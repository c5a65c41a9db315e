"""Constants that were put into a run are found again in its log, and applied as they
were fitted.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_logs import CLUSTER, TP4, rows_of, run_arguments, simulate, write_engine_log
from msgspec.structs import replace

from llmsim.api.preparation.prepare import prepare
from llmsim.cli import main, run_main
from llmsim.cli.commands.recordings.calibrate import _simulated, what_can_be_fitted
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError
from llmsim.costs import OpCost
from llmsim.lowering.adjust.calibration import (
    Calibration,
    _scaled,
    calibration_of,
    load_calibration,
)
from llmsim.validation.fit.calibrate import CalibrationReport, calibrate, held_out_means_percent
from llmsim.validation.fit.golden_section import Axis, minimise
from llmsim.validation.fit.link import LINK, undetermined_link
from llmsim.validation.fit.nelder_mead import minimise_together
from llmsim.validation.logs.recording import Recording
from tests.costs.builders import needs_database

SMALL = "synthetic:n=40,rate=6,input=lognormal:300,output=lognormal:40,seed=5"


SILICON_TP4 = ["--cluster-config", str(TP4), "--dataset", SMALL, "--cost-source", "silicon"]


def write_calibration(path: Path, **constants: Any) -> Path:
    data = {
        "kind": "llmsim calibration",
        "schema_version": 1,
        "hardware": "H100",
        "constants": constants,
    }
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def log_of_a_machine(tmp_path: Path, cluster: Path = CLUSTER, **constants: Any) -> Path:
    calibration = write_calibration(tmp_path / "machine.json", **constants)
    simulate(
        "--calibration",
        calibration,
        "--output",
        tmp_path / "real.csv",
        cluster=cluster,
        dataset=SMALL,
    )
    return write_engine_log(rows_of(tmp_path / "real.csv"), tmp_path / "log.jsonl")


def calibrated(log: Path, tmp_path: Path, *options: str, cluster: Path = CLUSTER) -> dict[str, Any]:
    out = tmp_path / "fitted.json"
    assert (
        main(
            [
                "calibrate",
                str(log),
                *run_arguments(cluster=cluster, dataset=SMALL),
                "--out",
                str(out),
                "--skip-seconds",
                "0",
                *options,
            ]
        )
        == 0
    )
    data: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return data


def test_a_slower_machine_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = calibrated(log_of_a_machine(tmp_path, time_factor=1.07), tmp_path)
    assert data["fitted"] == ["time_factor"] and data["constants"]["time_factor"] == pytest.approx(
        1.07, rel=2e-3
    )
    held_out = data["errors_percent"]["fitted"]["held_out_half"]
    assert all(abs(held_out[f"mean_{name}"]) < 0.5 for name in ("ttft", "tpot", "latency"))
    assert abs(data["errors_percent"]["unfitted"]["held_out_half"]["mean_tpot"]) > 5
    assert "time_factor 1.0" in capsys.readouterr().out


def test_a_card_whose_cache_is_full_is_calibrated_too(tmp_path: Path) -> None:
    """Preemptions and queues amplify; the machine also lacks a term that the model has: one
    constant still carries.
    """
    full = ("--num-gpu-blocks-override", "130")
    calibration = write_calibration(tmp_path / "machine.json", time_factor=0.96)
    machine = (
        "--calibration",
        calibration,
        "--disable-term",
        "mixed_step",
        "--run-dir",
        tmp_path / "real",
    )
    simulate(*machine, "--output", tmp_path / "real.csv", *full, dataset=SMALL)
    summary = json.loads((tmp_path / "real" / "summary.json").read_text(encoding="utf-8"))
    assert summary["preemptions"] > 0 and summary["kv_cache"][0]["peak_usage"] > 0.98
    log = write_engine_log(rows_of(tmp_path / "real.csv"), tmp_path / "log.jsonl")
    data = calibrated(log, tmp_path, *full)
    held_out = data["errors_percent"]["fitted"]["held_out_half"]
    assert data["fitted"] == ["time_factor"] and data["constants"]["time_factor"] == pytest.approx(
        0.96, rel=0.01
    )
    assert all(abs(held_out[f"mean_{name}"]) < 0.5 for name in ("ttft", "tpot", "latency"))


def test_a_host_gap_is_told_from_a_slow_machine(tmp_path: Path) -> None:
    data = calibrated(log_of_a_machine(tmp_path, host_gap_ns=3e6), tmp_path)
    assert data["fitted"] == ["host_gap_ns"] and data["constants"]["host_gap_ns"] == pytest.approx(
        3e6, rel=0.02
    )


def test_a_link_is_fitted_where_there_is_one(tmp_path: Path) -> None:
    log = log_of_a_machine(tmp_path, TP4, link_bandwidth_gb_per_s=40.0)
    data = calibrated(log, tmp_path, "--fit", "link_bandwidth_gb_per_s", cluster=TP4)
    assert data["constants"]["link_bandwidth_gb_per_s"] == pytest.approx(40, rel=0.05)


def linked_server(gb_per_s: float, latency_ns: float, factor: float) -> Recording:
    """Steps of 10 ms and 160 collectives; the batch, and with it their size, differs from request
    to request.
    """
    n = 60
    step_s = np.empty(n)
    for row in range(n):
        collective_bytes = 16384 * (1 + row % 30)
        step_s[row] = factor * 10e-3 + 160 * (
            collective_bytes / (gb_per_s * 1e9) + 2 * latency_ns * 1e-9
        )
    tokens = np.full(n, 50)
    return Recording(
        "x",
        "made",
        tuple(map(str, range(n))),
        np.arange(n) * 0.5,
        4 * step_s,
        53 * step_s,
        tokens,
        tokens,
    )


@pytest.mark.parametrize(("gb_per_s", "latency_ns"), [(24.0, 8000.0), (400.0, 1500.0), (6.0, 0.0)])
def test_the_two_constants_of_a_link_are_found_together(gb_per_s: float, latency_ns: float) -> None:
    """One after the other they stop in the valley that joins them; nothing is named, so a link must
    win by itself.
    """

    def simulate(calibration: Calibration | None) -> Recording:
        known = (
            Calibration("H100", "x").constants() if calibration is None else calibration.constants()
        )
        bandwidth, latency = (known[name] for name in LINK)
        return linked_server(
            bandwidth or 16.0, 20e3 if latency is None else latency, known["time_factor"] or 1.0
        )

    report = calibrate(
        linked_server(gb_per_s, latency_ns, 1.0), simulate,
        hardware="H100", wanted=(), available=("time_factor", *LINK), skip_seconds=0.0,
    )  # fmt: skip
    assert [fit.fitted for fit in report.fits] == [("time_factor",), LINK]
    assert report.chosen.fitted == LINK and held_out_means_percent(report.chosen) < 0.2
    assert report.chosen.constants["link_bandwidth_gb_per_s"] == pytest.approx(gb_per_s, rel=0.05)
    assert report.chosen.constants["link_latency_ns"] == pytest.approx(
        latency_ns, rel=0.05, abs=100
    )
    assert report.chosen.simulations < 200


def test_a_difference_within_the_noise_leaves_the_first_constant() -> None:
    """Both explain the log; the second by 0.1 percentage points better, as a per cent of random
    time may do.
    """
    real = linked_server(16.0, 20e3, 1.05)

    def simulate(calibration: Calibration | None) -> Recording:
        known = (
            Calibration("H100", "x").constants() if calibration is None else calibration.constants()
        )
        gap_s = 1e-9 * (known["host_gap_ns"] or 0.0)
        found = linked_server(16.0, 20e3, known["time_factor"] or 1.0)
        off = np.where(np.arange(len(found)) % 2, 1.001, 0.999) if not gap_s else 1.0
        return dataclasses.replace(
            found,
            ttft_s=(found.ttft_s + 4 * gap_s) * off,
            latency_s=(found.latency_s + 53 * gap_s) * off,
        )

    report = calibrate(
        real,
        simulate,
        hardware="H100",
        wanted=(),
        available=("time_factor", "host_gap_ns"),
        skip_seconds=0.0,
    )
    first, second = report.fits
    assert second.objective < 0.9 * first.objective and report.chosen.fitted == ("time_factor",)


@needs_database
def test_measured_collectives_have_a_factor_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, slow = (
        {op.name: op for op in one.program_costs if isinstance(op, OpCost)}
        for calibration in (None, Calibration("H100", "x", collective_factor_ppm=3_000_000))
        for one in [
            prepare(replace(checked_options(SILICON_TP4), calibration=calibration)).lowered.groups[
                0
            ]
        ]
    )
    for name, op in plain.items():
        factor = 3 if name in ("all_reduce", "logits_gather") else 1
        assert np.array_equal(slow[name].ps, factor * op.ps), name
        assert ("x3 (calibration)" in slow[name].source) is (factor == 3)
    assert what_can_be_fitted(checked_options(SILICON_TP4))[1] == (
        "time_factor",
        "host_gap_ns",
        "collective_factor",
    )


def test_a_calibrated_run_is_labelled(tmp_path: Path) -> None:
    calibration = write_calibration(tmp_path / "c.json", time_factor=1.5, host_gap_ns=2e6)
    for name, options in (("plain", ()), ("slow", ("--calibration", calibration))):
        simulate("--run-dir", tmp_path / name, *options)
    plain, slow = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("plain", "slow")
    )
    assert slow["mean_tpot_ms"] > 1.5 * plain["mean_tpot_ms"]
    assert any("calibrated for H100" in note for note in slow["notes"])
    operators = [
        name for name in slow["sources"]["by_source"] if "of the host for each" not in name
    ]
    assert operators and all("x1.5 (calibration)" in source for source in operators)
    manifest = json.loads((tmp_path / "slow" / "manifest.json").read_text())
    assert manifest["config"]["calibration"]["time_factor_ppm"] == 1_500_000
    assert manifest["config"]["groups"][0]["engine"]["host_gap_ps"] == 2_000_000_000


def test_collectives_keep_their_own_time() -> None:
    options = checked_options(run_arguments(cluster=TP4))
    plain = prepare(options).lowered.groups[0]
    scaled = prepare(
        replace(options, calibration=Calibration("H100", "x", time_factor_ppm=2_000_000))
    ).lowered.groups[0]
    for before, after in zip(plain.program_costs, scaled.program_costs, strict=True):
        if isinstance(before, OpCost) and isinstance(after, OpCost):
            factor = 1 if before.name in ("all_reduce", "logits_gather") else 2
            assert np.array_equal(after.ps, factor * before.ps), before.name


@given(st.lists(st.integers(0, 9 * 10**15), min_size=1), st.integers(100_000, 10_000_000))
def test_scaling_is_exact(times_ps: list[int], ppm: int) -> None:
    expected = [(time * ppm + 500_000) // 1_000_000 for time in times_ps]
    assert _scaled(np.array(times_ps, dtype=np.int64), ppm).tolist() == expected


def test_units_survive_the_file() -> None:
    constants = {
        "time_factor": 1.25,
        "host_gap_ns": 10.0,
        "collective_factor": 2.0,
        "link_bandwidth_gb_per_s": 40.0,
        "link_latency_ns": 7.0,
    }
    assert calibration_of("H100", "x", constants).constants() == constants
    assert "link 40 GB/s" in calibration_of("H100", "x", constants).label


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "expected a calibration file"),
        ("{}", "kind"),
        ('{"kind": "llmsim calibration", "schema_version": 1}', "constants"),
        (
            (
                '{"kind": "llmsim calibration", "schema_version": 1, "hardware": "x", "constants": '
                '{"time_factor": 99}}'
            ),
            "0.1",
        ),
        (
            (
                '{"kind": "llmsim calibration", "schema_version": 1, "hardware": "x", "constants": '
                '{"luck": 1}}'
            ),
            "luck",
        ),
    ],
)
def test_bad_files(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        load_calibration(tmp_path / "c")


def test_a_calibration_of_other_hardware_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_calibration(tmp_path / "c.json", time_factor=1.1)
    path.write_text(path.read_text().replace("H100", "A100"), encoding="utf-8")
    assert run_main(run_arguments("--calibration", path)) == 2
    assert 'calibrates "A100", but the cluster has H100' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fit", "luck"], "time_factor"),
        (["--fit", "link_latency_ns"], "changes nothing"),
        (["--calibration", "x.json"], "expected a calibration file"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_bad_options(
    arguments: list[str], words: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", str(run / "out.csv"), *run_arguments(), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_log_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *run_arguments()]) == 2
    assert "log comes first" in capsys.readouterr().err


def test_the_simplex_follows_a_valley_to_its_end() -> None:
    axes = (Axis("a", 1, 100, 1e-4, True), Axis("b", 0, 50, 1e-3, False))

    def valley(values: tuple[float, ...]) -> float:
        a, b = values
        return abs(100 / a + b - 30) + 0.05 * abs(b - 10)

    a, b = minimise_together(valley, axes, (4.0, 5.0))
    assert a == pytest.approx(5, rel=0.02) and b == pytest.approx(10, rel=0.02)
    a, b = minimise_together(lambda v: v[0] - v[1], axes, (50.0, 25.0))
    assert a == pytest.approx(1, rel=1e-3) and b == pytest.approx(50, rel=1e-3), (
        "it stays within the axes"
    )


def test_the_search_finds_a_minimum_and_returns_the_best_value_seen() -> None:
    found = minimise(
        lambda x: abs(x - 1.234) + (0.5 if 1.2 < x < 1.21 else 0), Axis("x", 0.5, 2, 1e-4, True)
    )
    assert found.value == pytest.approx(1.234, rel=2e-4) and found.tried < 60
    assert minimise(lambda x: x, Axis("x", 0, 8, 1e-2, False)).value == 0


DP2_EP2 = CLUSTER.parent / "rtxpro6000_qwen3_30b_a3b_dp2_ep2.json"
LINKS = [(24.0, 8000.0), (10.0, 1000.0), (40.0, 20000.0)]


def fitted_link(trace: str, link: tuple[float, float]) -> CalibrationReport:
    """The link that a simulated log of data-parallel experts gives; nothing is known of it."""
    options = checked_options(
        ["--cluster-config", str(DP2_EP2), "--dataset", trace, "--cost-source", "roofline"]
    )
    hardware, available = what_can_be_fitted(options)
    assert set(LINK) <= set(available)
    machine = calibration_of(hardware, "machine", dict(zip(LINK, link, strict=True)))
    return calibrate(
        _simulated(options, machine), lambda constants: _simulated(options, constants),
        hardware=hardware, wanted=LINK, available=available, skip_seconds=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("link", LINKS)
def test_the_link_of_data_parallel_experts_is_found_at_light_load(
    link: tuple[float, float],
) -> None:
    """A search of the error alone stopped in a dent at 954 GB/s and 21 us for the last of them."""
    report = fitted_link(
        "synthetic:n=60,rate=2,input=lognormal:300,output=lognormal:40,seed=5", link
    )
    found = tuple(report.chosen.constants[name] for name in LINK)
    assert found == pytest.approx(link, rel=0.02)
    assert "link" not in {finding.code for finding in report.findings}


@pytest.mark.parametrize("link", LINKS[:2])
def test_a_link_is_found_in_a_rough_log_or_said_to_be_open(link: tuple[float, float]) -> None:
    """Where steps meet requests by chance, other links explain the log as well; then a finding says
    so, and the bandwidth is still near.
    """
    report = fitted_link(
        "synthetic:n=60,rate=8,input=lognormal:300,output=lognormal:40,seed=5", link
    )
    found = tuple(report.chosen.constants[name] for name in LINK)
    near = found == pytest.approx(link, rel=0.25, abs=1000.0)
    assert near or "link" in {finding.code for finding in report.findings}
    assert found[0] == pytest.approx(link[0], rel=0.3)


def test_links_that_explain_a_log_alike_are_a_finding() -> None:
    link = dict(zip(LINK, (24.0, 8000.0), strict=True))
    near = {name: 1.2 * value for name, value in link.items()}
    assert not undetermined_link(link, [near])
    assert not undetermined_link({"time_factor": 1.0}, [{"time_factor": 2.0}])
    for name in LINK:
        (finding,) = undetermined_link(link, [near, {**link, name: 2 * link[name]}])
        assert not finding.unsound and "does not determine the link" in finding.sentence
