"""Steps with prompts of a log beside the simulated ones: what was put into a machine is read out
of its log again.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from made_logs import TRACE, run_arguments
from msgspec.structs import replace

from evaluation.prompt_steps import (
    FirstTokens,
    PromptStep,
    Stamps,
    first_tokens,
    parts_markdown,
    read_stamps,
    steps_markdown,
)
from llmsim.api.checked.run_options import RunOptions
from llmsim.api.preparation.prepare import trial
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError
from llmsim.core import PS_PER_S
from llmsim.lowering.adjust.calibration import calibration_of


def write_log(path: Path, options: RunOptions) -> Path:
    """What an engine would have logged, whose monotonic clock is 500 s behind the client's."""
    results = trial(options)
    requests = results.requests
    columns = {
        "arrival_time": requests.arrival_ps / PS_PER_S + 500,
        "queued_ts": requests.arrival_ps / PS_PER_S,
        "scheduled_ts": requests.scheduled_ps / PS_PER_S,
        "first_token_ts": requests.first_token_ps / PS_PER_S,
        "last_token_ts": requests.finish_ps / PS_PER_S,
        "input_toks": results.workload.input_tokens,
        "output_toks": requests.emitted_tokens,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    lines = [
        json.dumps({"request_id": "r", **dict(zip(columns, row, strict=True))}) for row in rows
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("factor", [1.0, 1.06])
def test_a_slower_machine_shows_in_every_step(factor: float, tmp_path: Path) -> None:
    options = checked_options(run_arguments(dataset=TRACE))
    slower = calibration_of("H100", "x", {"time_factor": factor})
    log = write_log(tmp_path / "log.jsonl", replace(options, calibration=slower))
    found = first_tokens(log, options)
    steps = found.steps()
    assert len(steps) > 10
    missing = sum(step.missing_ms for step in steps) / sum(step.simulated_ms for step in steps)
    assert missing == pytest.approx(factor - 1, abs=5e-3)
    text = steps_markdown(steps)
    assert text.count("\n| ") == 1 + len({-(-step.rows // 128) for step in steps})
    assert f"- {len(steps)} steps" in text
    assert "| 60 not queued | behind it |" in parts_markdown(found)


def stamps(*requests: tuple[float, float, float, float, int]) -> Stamps:
    *times, tokens = (np.array(column) for column in zip(*requests, strict=True))
    return Stamps(*times, tokens)


DECODES = (0.0, 0.0, 1.0, 9.0, 10)


def test_only_prompts_that_ran_whole_and_by_themselves_count() -> None:
    lone = (2.0, 2.0, 2.5, 8.0, 100)
    in_one_step = (3.0, 3.0, 3.5, 8.0, 100)
    across_two_steps = (4.0, 4.0, 5.0, 8.0, 100)
    behind_its_chunk = (4.0, 4.5, 5.5, 8.0, 100)
    log = stamps(DECODES, lone, in_one_step, in_one_step, across_two_steps, behind_its_chunk)
    assert log.alone() == {(1,): (0.5, 1), (2, 3): (0.5, 2), (4,): (1.0, 4)}


def test_steps_are_those_that_both_have_without_cached_tokens() -> None:
    real = stamps(DECODES, (2.0, 2.0, 2.5, 8.0, 100), (3.0, 3.0, 3.5, 8.0, 100))
    ours = stamps(DECODES, (2.0, 2.0, 2.4, 8.0, 100), (3.0, 2.2, 3.5, 8.0, 100))
    (step,) = FirstTokens(real, ours, np.array([0, 64, 0])).steps()
    assert (step.rows, step.decodes) == (37, 1)
    assert step.missing_ms == pytest.approx(100)


def test_a_run_without_common_steps_says_so() -> None:
    assert "no step with a prompt" in steps_markdown([])
    assert "- |" in steps_markdown([PromptStep(200, 3, 20.0, 18.0)])


def test_a_log_without_scheduling_stamps_is_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", checked_options(run_arguments(dataset=TRACE)))
    log.write_text(log.read_text("utf-8").replace("scheduled_ts", "planned_ts"), "utf-8")
    with pytest.raises(InputError, match="scheduled_ts is missing"):
        read_stamps(log)


def test_a_log_of_another_trace_is_refused(tmp_path: Path) -> None:
    options = checked_options(run_arguments(dataset=TRACE))
    log = write_log(tmp_path / "log.jsonl", options)
    other = checked_options(run_arguments(dataset=TRACE.replace("seed=5", "seed=6")))
    with pytest.raises(InputError, match="give the trace that the engine served"):
        first_tokens(log, other)
