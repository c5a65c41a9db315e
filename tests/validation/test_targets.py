"""The table of targets: what is met and missed is said of each metric, and a log of any deployment
gives one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_logs import run_arguments

from llmsim.api.preparation.prepare import trial
from llmsim.cli.run.arguments import checked_options
from llmsim.validation.logs.recording import Recording, recording_of

ROOT = Path(__file__).resolve().parents[2]
SMALL = "synthetic:n=60,rate=6,input=lognormal:300,output=lognormal:40,seed=5"


def evaluation(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "evaluation"))
    import targets

    return targets


def slowed(recording: Recording, factor: float) -> Recording:
    """The same run on a machine that is slower by a factor, as far as latencies go."""
    from dataclasses import replace

    return replace(
        recording, ttft_s=recording.ttft_s * factor, latency_s=recording.latency_s * factor
    )


def test_misses_are_told_from_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = evaluation(monkeypatch)
    options = checked_options(run_arguments(dataset=SMALL))
    same = recording_of(trial(options))
    exact = targets.reach(same, options, skip_seconds=0.0)
    assert exact.missed == () and all(
        row["nothing_fitted"] == pytest.approx(0, abs=1e-9) for row in exact.rows()
    )
    slow = targets.reach(slowed(same, 1.2), options, skip_seconds=0.0)
    rows = {row["metric"]: row for row in slow.rows()}
    assert rows["mean_tpot"]["nothing_fitted"] == pytest.approx(100 / 1.2 - 100, abs=0.1)
    assert not rows["mean_tpot"]["nothing_fitted_met"]
    assert "time_factor" in slow.chosen.constants
    assert abs(rows["mean_tpot"]["one_constant"]) < abs(rows["mean_tpot"]["nothing_fitted"]) / 5
    text = targets.targets_markdown({"slow": slow})
    assert "**-16." in text and "mean TPOT" in text.splitlines()[-1]


def test_the_targets_of_single_requests_follow_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = evaluation(monkeypatch)
    same = recording_of(trial(checked_options(run_arguments(dataset=SMALL))))
    found = []
    for wait_s in (0.1, 7.0, 40.0):
        named = {
            one.name: one
            for one in targets.targets_of(slowed(same, wait_s / float(np.mean(same.ttft_s))))
        }
        found.append(
            (named["paired_median_ttft"].one_constant, named["paired_mape_ttft"].one_constant)
        )
    assert found == [(8.0, 15.0), (4.0, 8.0), (0.5, 2.0)]


def test_it_is_a_command(run: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "evaluation" / "targets.py"),
        str(run / "out.csv"),
        "--skip-seconds",
        "0",
        "--json",
        *run_arguments(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert {row["metric"] for row in json.loads(done.stdout)} >= {
        "output_throughput",
        "p99_ttft",
        "paired_mape_tpot",
    }
    done = subprocess.run(
        [*command[:2], "absent.jsonl", *run_arguments()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "absent.jsonl" in done.stderr and "Traceback" not in done.stderr
