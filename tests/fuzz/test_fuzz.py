"""Damaged inputs for every reader, from fixed seeds: a bounded share of `python -m fuzz`."""

from pathlib import Path

import pytest

from fuzz.runner import damaged, verdict
from fuzz.targets import TARGETS, Refused
from llmsim.config.errors import LlmsimError

FAST, SLOW = 40, 6
"""Inputs of a target."""


@pytest.fixture(autouse=True)
def debug(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised is seen, and nothing turns a defect into a refused input."""
    monkeypatch.setenv("LLMSIM_DEBUG", "1")


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_damaged_input_is_read_or_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    for seed in range(SLOW if target.slow else FAST):
        assert verdict(target, tmp_path, damaged(target, seed)) == "", f"seed {seed}"


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_sound_input_is_read(name: str, tmp_path: Path) -> None:
    """Otherwise the mutations of a target would all end at the same refusal."""
    target = TARGETS[name]
    refused = 0
    samples = target.samples()[:12]
    for sample in samples:
        try:
            target.read(tmp_path, sample)
        except (LlmsimError, Refused) as error:
            refused += 1
            first = error
    assert refused < len(samples), f"no sample is read: {first}"


def test_the_same_seed_gives_the_same_bytes() -> None:
    target = TARGETS["trace.mooncake"]
    assert [damaged(target, seed) for seed in range(50)] == [
        damaged(target, seed) for seed in range(50)
    ]
    assert len({damaged(target, seed) for seed in range(50)}) > 40
