"""Logs that are made to deceive: no constant is kept that loses on the half that it never saw, and
what the report says of it is true.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmsim.config.errors import InputError
from llmsim.lowering.adjust.calibration import Calibration
from llmsim.validation.fit.calibrate import CalibrationReport, calibrate, loses, refusal
from llmsim.validation.logs.recording import Float64, Recording
from llmsim.validation.report.calibration_table import calibration_markdown

N = 40
FIRST = np.arange(N) < N // 2


def server(n: int = N, answers: Any = 50) -> Recording:
    """Steps of 10.5 to 13.5 ms, by request; one request every half second."""
    step_s: Float64 = np.linspace(10.5e-3, 13.5e-3, 7)[np.arange(n) % 7]
    answer = np.broadcast_to(answers, n)
    return Recording(
        "x",
        "made",
        tuple(map(str, range(n))),
        np.linspace(0, (n - 1) / 2, n),
        4 * step_s,
        (3 + answer) * step_s,
        np.full(n, 50),
        answer,
    )


def slower(base: Recording, factor: Any) -> Recording:
    return replace(base, ttft_s=base.ttft_s * factor, latency_s=base.latency_s * factor)


def calibrated(real: Recording, base: Recording, skip_seconds: float = 0.0) -> CalibrationReport:
    """A server as `base`, which `time_factor` slows down, and `host_gap_ns` by step."""

    def simulate(calibration: Calibration | None) -> Recording:
        known = (calibration or Calibration("H100", "x")).constants()
        gap_s = 1e-9 * (known["host_gap_ns"] or 0.0)
        found = slower(base, known["time_factor"] or 1.0)
        return replace(
            found,
            ttft_s=found.ttft_s + 4 * gap_s,
            latency_s=found.latency_s + (3 + base.output_tokens) * gap_s,
        )

    return calibrate(
        real, simulate, hardware="H100", wanted=(), available=("time_factor", "host_gap_ns"),
        skip_seconds=skip_seconds,
    )  # fmt: skip


def outlier(rows: tuple[int, ...], factor: float) -> Any:
    return np.where(np.isin(np.arange(N), rows), factor, 1.0)


ONE_TOKEN = server(answers=np.where(FIRST, 50, 1))
DECEIVING = {
    "slow first half": (slower(server(), np.where(FIRST, 1.2, 1.0)), server()),
    "first half slower": (slower(server(), np.where(FIRST, 1.2, 1.08)), server()),
    "other direction": (slower(server(), np.where(FIRST, 1.1, 0.95)), server()),
    "no decodes to test on": (slower(ONE_TOKEN, np.where(FIRST, 1.2, 1.0)), ONE_TOKEN),
    "one slow request": (slower(server(), outlier((5,), 40.0)), server()),
    "two slow requests": (slower(server(), outlier((5, 30), 40.0)), server()),
    "two short requests": (slower(server(), outlier((5, 30), 1e-3)), server()),
    "first tokens were right": (replace(slower(server(), 1.2), ttft_s=server().ttft_s), server()),
    "first tokens were late": (replace(slower(server(), 1.2), ttft_s=0.02 * np.ones(N)), server()),
}


@pytest.mark.parametrize("name", DECEIVING)
def test_nothing_is_kept_that_loses(name: str) -> None:
    report = calibrated(*DECEIVING[name])
    assert report.chosen is report.unfitted, report.chosen.constants
    said = calibration_markdown(report)
    for fit in report.fits:
        assert loses(fit, report.unfitted) is not None
    assert said.count("Not kept") == len(report.fits) and "nan %" not in said
    means = [abs(report.unfitted.held_out.errors()[f"mean_{one}"]) for one in ("ttft", "latency")]
    assert ("none is needed" in said) == (max(means) <= 0.5)
    assert (refusal(report) is None) == ("none is needed" in said and "unsound" not in said)


@pytest.mark.parametrize(
    ("real", "base"),
    [
        (slower(server(), 1.1), server()),
        (slower(server(20), 1.1), server(20)),
        (slower(server(answers=1), 1.1), server(answers=1)),
        (slower(server(), 1.1 * outlier((30,), 40.0)), server()),
        (replace(slower(server(), 1.1), arrival_s=np.zeros(N)), server()),
        (replace(slower(server(), 1.1), arrival_s=np.full(N, np.nan)), server()),
    ],
    ids=["plain", "few", "answers of one token", "a slow request", "all at once", "no arrivals"],
)
def test_what_wins_on_both_halves_is_kept(real: Recording, base: Recording) -> None:
    report = calibrated(real, base)
    assert report.chosen.constants == {"time_factor": pytest.approx(1.1, rel=1e-3)}
    assert refusal(report) is None


def test_a_small_gain_is_said_to_be_small() -> None:
    """Both halves are better with the constant, but by less than a tenth."""
    noise = np.where(np.arange(N) % 2, 1.3, 0.75)
    report = calibrated(slower(server(), noise), server())
    (first, _) = report.fits
    assert first.objective < report.unfitted.objective and loses(first, report.unfitted) is None
    said = calibration_markdown(report)
    assert report.chosen is report.unfitted and "improves both" not in said
    assert f"to {first.objective:.2f} %, less than a tenth" in said
    assert "lowers the error of the first half by a tenth" in str(refusal(report))


def test_another_constant_must_not_lose_to_the_one_before() -> None:
    """A gap of 1 ms explains the first half, and a factor the second one."""
    base = server(answers=np.where(np.arange(N) % 2, 2, 200))
    gap = replace(
        base, ttft_s=base.ttft_s + 4e-3, latency_s=base.latency_s + (3 + base.output_tokens) * 1e-3
    )
    factor = slower(base, 1.085)
    real = replace(
        base,
        ttft_s=np.where(FIRST, gap.ttft_s, factor.ttft_s),
        latency_s=np.where(FIRST, gap.latency_s, factor.latency_s),
    )
    report = calibrated(real, base)
    by_factor, by_gap = report.fits
    assert by_gap.objective < 0.9 * by_factor.objective
    assert loses(by_gap, report.unfitted) is None and loses(by_gap, by_factor) is not None
    assert report.chosen is by_factor


def test_halves_are_counted_without_the_cold_engine() -> None:
    with pytest.raises(InputError, match="6 of the 12 requests of the first half"):
        calibrated(slower(server(24), 1.1), server(24), skip_seconds=3.0)
    report = calibrated(slower(server(), 1.1), server(), skip_seconds=2.0)
    said = calibration_markdown(report)
    assert "Fitted on 16 requests of the first half (4 of the cold engine left out), tested" in said
