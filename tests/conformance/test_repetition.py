"""Rounds of a scheduler that begins the same steps again for ever."""

from pathlib import Path

import pytest

from llmsim.scheduling.conformance.recorded import load_recording, replay
from llmsim.scheduling.conformance.repetition import Repetition

RECORDINGS = Path(__file__).parent / "recordings" / "connectors"


def test_equal_rounds_in_which_nobody_is_told_anything_repeat_each_other() -> None:
    rounds = Repetition()
    assert rounds.rests(10) == []
    rounds.stepped("a")
    assert rounds.rests(20) == []
    rounds.stepped("a")
    assert rounds.rests(30) == [10, 20, 30]


@pytest.mark.parametrize("told_in_round", [0, 1])
def test_what_a_scheduler_is_told_ends_the_repetition(told_in_round: int) -> None:
    rounds = Repetition()
    for number, now_ps in enumerate((10, 20)):
        assert rounds.rests(now_ps) == []
        rounds.stepped("a")
        if number == told_in_round:
            rounds.told()
    assert rounds.rests(30) == []


def test_a_request_that_comes_in_a_round_does_not_end_the_repetition() -> None:
    """Where it would have changed anything, the rounds would differ."""
    rounds = Repetition()
    for now_ps in (10, 20):
        assert rounds.rests(now_ps) == []
        rounds.stepped("a")
        rounds.added()
    assert rounds.rests(30) == [10, 20, 30]


def test_a_repetition_goes_on_until_somebody_comes_or_tells_something() -> None:
    for ends in (Repetition.added, Repetition.told):
        rounds = Repetition()
        for now_ps in (10, 20, 30):
            assert not rounds.goes_on
            rounds.rests(now_ps)
            rounds.stepped("a")
        assert rounds.goes_on
        ends(rounds)
        assert not rounds.goes_on


def test_rounds_that_differ_are_no_repetition() -> None:
    rounds = Repetition()
    assert rounds.rests(10) == []
    rounds.stepped("a")
    assert rounds.rests(20) == []
    rounds.stepped("b")
    assert rounds.rests(30) == []
    rounds.stepped("b")
    assert rounds.rests(40) == [20, 30, 40]


def test_a_recording_ends_where_vllm_repeats_itself() -> None:
    """vLLM 0.24 starts a prompt that does not fit beside parked ones, and preempts it, for ever;
    ours then runs one of the parked requests.
    """
    path = RECORDINGS / "vllm_0.24.0_40496.json.gz"
    case = load_recording(path)
    assert case["stands_still_at"] > case["steps"][-1]["t"]
    assert any(step["preempted"] for step in case["steps"])
    verdict = replay(path)
    assert verdict.difference == "" and verdict.steps > 1000
