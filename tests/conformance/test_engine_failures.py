"""An engine's scheduler that ends with an error: the case counts apart, and the sweep goes on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from llmsim.cli import main
from llmsim.cli.commands.recordings import conformance
from llmsim.scheduling.conformance import compare as vllm_compare
from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang import worker
from llmsim.scheduling.conformance.sglang.compare import failure_of, first_difference
from llmsim.scheduling.conformance.sglang.ours import our_run
from llmsim.scheduling.conformance.sglang.random_cases import random_case
from llmsim.scheduling.conformance.smallest import smallest

STEP = {"schedule_ps": 0, "end_ps": 5, "scheduled": [("0", 7, 0)], "running": 0}
FAILURE = "SGLang's scheduler ends with AttributeError: no batch (decode.py:1)"
ENGINE = {"version": "0.5.23", "engine_profile": "sglang-0.5"}


def verdict(seed: int, difference: str = "", reason: str = "") -> dict[str, Any]:
    return {
        "seed": seed,
        "steps": 10,
        "difference": difference,
        "not_comparable": reason,
        "options": json.dumps({"page_size": 16}),
    }


def report(verdicts: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(conformance, "_sglang", lambda *_: iter([dict(ENGINE), *verdicts]))
    return main(["conformance", "sglang", "--cases", str(len(verdicts)), *options])


def test_steps_before_an_engines_error_are_compared() -> None:
    failed = [STEP, {"failed": FAILURE}]
    later = {**STEP, "running": 1}
    assert first_difference([STEP, later], failed) == (1, "")
    assert first_difference([STEP], failed) == (1, "")
    assert first_difference([later], failed) == (0, "step 0: running is 1, SGLang's 0")
    assert failure_of(failed) == FAILURE
    assert failure_of([STEP]) == ""


def test_steps_that_only_one_side_has_differ() -> None:
    assert first_difference([STEP, STEP], [STEP]) == (1, "step 1: only ours goes on")
    assert first_difference([STEP], [STEP, STEP]) == (1, "step 1: only SGLang goes on")
    assert first_difference([STEP], [STEP, {"aborted": ["0"]}]) == (
        1,
        "step 1: only SGLang goes on",
    )


def test_an_error_of_sglangs_process_becomes_part_of_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scheduler runs in a forked process, as the real one does."""
    case = random_case(3, 4)

    def fails(_: Case) -> Iterator[Case]:
        yield from our_run(case).steps[:2]
        raise AttributeError("no\nbatch")

    monkeypatch.setattr(worker, "their_steps", fails)
    found = worker._verdict(case)
    assert found["steps"] == 2 and found["difference"] == ""
    assert found["not_comparable"].startswith(
        "SGLang's scheduler ends with AttributeError: no batch (test_engine_failures.py:"
    )


def test_a_difference_before_the_error_stays_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(3, 4)

    def fails(_: Case) -> Iterator[Case]:
        first = our_run(case).steps[0]
        yield first | {"waiting": first["waiting"] + 1}
        raise AttributeError("no batch")

    monkeypatch.setattr(worker, "their_steps", fails)
    found = worker._verdict(case)
    assert found["difference"].startswith("step 0: waiting is ")
    assert found["not_comparable"] == ""


def test_a_case_that_differs_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the steps with one of the requests differ: the others are left out."""
    case = random_case(3, 12)
    culprit = case["requests"][7]["id"]

    def differs(one: Case) -> Iterator[Case]:
        for step in our_run(one).steps:
            named = any(name == culprit for name, _, _ in step["scheduled"])
            yield step | {"waiting": step["waiting"] + named}

    monkeypatch.setattr(worker, "their_steps", differs)
    found = worker._smallest_verdict(case)
    assert found["requests"] == 1
    assert found["difference"].startswith("step 0: waiting is ")


def test_parts_are_left_out_halves_first() -> None:
    tried: list[int] = []

    def differs(one: Case) -> bool:
        tried.append(len(one["requests"]))
        return {3, 6} <= set(one["requests"])

    case = {"requests": list(range(8))}
    assert smallest(case, differs, 60)["requests"] == [3, 6]
    assert tried[:2] == [4, 4]
    assert len(smallest(case, differs, 3)["requests"]) > 2


def test_cases_without_comparison_are_counted_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = [verdict(1), verdict(2, reason=FAILURE), verdict(3)]
    assert report(verdicts, monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"seed 2: not comparable, {FAILURE} (10 steps)")
    assert lines[-1] == "2/3 cases identical, 1 not comparable, 30 steps, SGLang 0.5.23"
    assert report(verdicts, monkeypatch, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["identical"] == 2 and shown["first_difference"] is None
    assert shown["not_comparable"] == [{"seed": 2, "reason": FAILURE}]


def test_a_difference_beside_them_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report([verdict(1, reason=FAILURE), verdict(2, "step 0: x")], monkeypatch) == 1
    assert report([verdict(1, reason=FAILURE)], monkeypatch) == 2
    assert capsys.readouterr().out.endswith(
        "0/1 cases identical, 1 not comparable, 10 steps, SGLang 0.5.23\n"
    )


def test_an_error_of_vllms_scheduler_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Case) -> Any:
        raise KeyError("blocks")

    monkeypatch.setattr(vllm_compare, "live_case", fails)
    found = vllm_compare.compare(3, 4)
    assert found.difference == "" and found.requests == 4
    assert found.not_comparable.startswith("vLLM's scheduler ends with KeyError: 'blocks' (test_")


def test_an_error_of_our_scheduler_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Case) -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(worker, "our_run", fails)
    found = worker._verdict(random_case(3, 4))
    assert found["difference"] == "our scheduler ends with an error: no room"
    monkeypatch.setattr(vllm_compare, "live_case", lambda case: (case, []))
    monkeypatch.setattr(vllm_compare, "run_groups", fails)
    assert vllm_compare.compare(3, 4).difference == "our scheduler ends with an error: no room"
