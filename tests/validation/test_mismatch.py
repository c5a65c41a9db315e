"""What a log contradicts is named, and no constant is kept that loses on the half it was not fitted
on.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_logs import rows_of, run_arguments, simulate, write_engine_log

from llmsim.cli import main
from llmsim.config.errors import InputError
from llmsim.lowering.adjust.calibration import Calibration
from llmsim.validation import Recording
from llmsim.validation.compare.compare import compare
from llmsim.validation.compare.mismatch import most_at_once, ttft_growth
from llmsim.validation.fit.calibrate import calibrate, calibration_json, loses, objective, refusal
from llmsim.validation.report.calibration_table import calibration_markdown

LOADED = "synthetic:n=160,rate=8,input=fixed:300,output=fixed:120,seed=5"


def server(
    slots: int, *, n: int = 200, rate: float = 4.0, service_s: float = 1.0, factor: float = 1.0
) -> Recording:
    """Equal requests, one a time in each of `slots` slots."""
    arrival_s = np.arange(n) / rate
    free_s, begin_s = np.zeros(slots), np.zeros(n)
    for row in range(n):
        slot = int(free_s.argmin())
        begin_s[row] = max(arrival_s[row], free_s[slot])
        free_s[slot] = begin_s[row] + factor * service_s
    tokens = np.full(n, 50)
    ttft_s = begin_s - arrival_s + 0.02 * factor
    latency_s = begin_s - arrival_s + factor * service_s
    return Recording(
        "x", "made", tuple(map(str, range(n))), arrival_s, ttft_s, latency_s, tokens, tokens
    )


def codes(real: Recording, simulated: Recording) -> set[str]:
    return {finding.code for finding in compare(real, simulated, 0.0).findings if finding.unsound}


@given(st.integers(1, 12), st.floats(1.2, 4.0))
def test_a_server_with_fewer_slots_is_named(slots: int, overload: float) -> None:
    real, wide = server(slots, rate=slots * overload), server(100, rate=slots * overload)
    found = codes(real, wide)
    assert "saturation" in found
    assert ("limit" in found) == (most_at_once(wide)[0] > 1.1 * slots)
    assert most_at_once(real)[0] == slots
    assert ttft_growth(real) == pytest.approx(overload - 1, rel=0.1)
    assert "saturation" in codes(wide, real)


@given(st.integers(2, 12), st.floats(0.2, 0.9), st.floats(0.8, 1.1))
def test_a_slower_or_faster_machine_is_the_same_server(
    slots: int, load: float, factor: float
) -> None:
    real, simulated = (
        server(slots, rate=slots * load),
        server(slots, rate=slots * load, factor=factor),
    )
    assert not codes(real, simulated)


@pytest.mark.parametrize(
    ("factor", "named"), [(0.4, True), (0.6, False), (1.9, False), (2.5, True)]
)
def test_means_that_are_twice_off(factor: float, named: bool) -> None:
    found = codes(server(50), server(50, factor=factor))
    assert ({"mismatch tpot", "mismatch latency"} <= found) is named
    assert "mismatch ttft" not in found, "some milliseconds of TTFT are left unsaid"


def drifting(first: float, second: float, n: int = 80) -> Recording:
    """A machine whose first half of requests is slower by one factor and whose second half by
    another.
    """
    factor = np.where(np.arange(n) < n // 2, first, second)
    tokens = np.full(n, 50)
    ttft_s, latency_s = 0.05 * factor, 1.05 * factor
    return Recording(
        "x",
        "made",
        tuple(map(str, range(n))),
        np.arange(n) * 0.5,
        ttft_s,
        latency_s,
        tokens,
        tokens,
    )


def fitted_on(real: Recording) -> "calibrate":  # type: ignore[valid-type]
    def run(calibration: Calibration | None) -> Recording:
        ppm = 1_000_000 if calibration is None else calibration.time_factor_ppm or 1_000_000
        return drifting(ppm / 1e6, ppm / 1e6)

    return calibrate(
        real, run, hardware="H100", wanted=(), available=("time_factor",), skip_seconds=0.0
    )


@given(st.floats(0.75, 1.4), st.floats(0.75, 1.4))
@settings(deadline=None, max_examples=10, derandomize=True)
def test_a_kept_constant_never_loses_on_the_held_out_half(first: float, second: float) -> None:
    report = fitted_on(drifting(first, second))
    before, after = objective(report.unfitted.held_out), objective(report.chosen.held_out)
    if report.chosen.fitted:
        assert (
            after < before
            and loses(report.chosen, report.unfitted) is None
            and refusal(report) is None
        )
        return
    worse = [fit for fit in report.fits if loses(fit, report.unfitted) is not None]
    close = objective(report.unfitted.fit_half) < 0.1
    assert worse or close
    assert calibration_json(report, source="x")["fitted"] == []
    if abs(second - 1) > 0.006:
        assert "nothing was written" in str(refusal(report))
        assert "Not kept" in calibration_markdown(report) or close


def test_errors_are_said_to_differ_and_not_to_agree() -> None:
    text = calibration_markdown(fitted_on(drifting(1.3, 1.25)))
    assert "Held-out means differ by up to" in text and "agree to" not in text


def test_a_machine_that_needs_no_constant_is_no_error() -> None:
    report = fitted_on(drifting(1.0, 1.0))
    assert not report.chosen.fitted and refusal(report) is None
    assert "none is needed" in calibration_markdown(report)


def test_a_log_of_other_work_is_refused() -> None:
    real = drifting(1.1, 1.1)
    with pytest.raises(InputError, match=r"is not a log of what is simulated.*differ in length"):
        fitted_on(replace(real, output_tokens=real.output_tokens + np.arange(80) % 2))
    with pytest.raises(InputError, match=r"is not a log of what is simulated.*40 in .*, 80 in "):
        fitted_on(real.rows(range(40)))


def test_a_withheld_limit_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server had max_num_seqs 6; the options do not say so, and half of the log alone would
    take a slow machine.
    """
    simulate("--max-num-seqs", "6", "--output", tmp_path / "real.csv", dataset=LOADED)
    log = write_engine_log(rows_of(tmp_path / "real.csv"), tmp_path / "log.jsonl")
    out = tmp_path / "fitted.json"
    capsys.readouterr()
    arguments = [
        "calibrate",
        str(log),
        *run_arguments(dataset=LOADED),
        "--skip-seconds",
        "0",
        "--out",
        str(out),
    ]
    assert main(arguments) == 3
    said = capsys.readouterr()
    assert "max_num_seqs may be 6" in said.out and not out.exists()
    assert said.err.count("\n") == 1 and "does not match the options" in said.err
    assert main([*arguments, "--max-num-seqs", "6"]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["fitted"] == []
