"""Constants of engine profiles come out of the published runs that they are from."""

import sys
from pathlib import Path

import pytest

from tests.shared_data import SHARED, shared

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "evaluation"))

import published_constants  # noqa: E402
from measured.beside import beside_points  # noqa: E402
from measured.points import TRACE, Point  # noqa: E402

ROUNDING_NS = 50_000
"""Engine profiles state these constants in tenths of a millisecond."""


def run_of(name: str) -> Point:
    return next(point for point in beside_points() if point.name == name)


def test_runs_beside_the_table_have_names_and_pages_of_their_own() -> None:
    points = beside_points()
    assert len({point.name for point in points}) == len(points)
    assert all(point.source and point.real and not point.contradiction for point in points)
    assert [point.name for point in points if point.gave] == [
        "glm46_h200_c4",
        "q8_h100_sgl_c4",
        "lambda_llama8b_h100_10",
        "o20_a100_32k",
    ]


def test_a_request_of_an_older_engine(tmp_path: Path) -> None:
    """Ten prompts at once: the page's 62.4 ms less those of the engine, a tenth each."""
    pytest.importorskip("aiconfigurator_core")
    point = run_of("lambda_llama8b_h100_10")
    found = published_constants.of_requests(point, SHARED, tmp_path, 10)
    assert found.found_ns == pytest.approx(found.profile_ns, abs=ROUNDING_NS)


def test_a_request_of_another_engine(tmp_path: Path) -> None:
    """One chat at a time, beside three that decode: SGLang's first token after 27.7 ms."""
    pytest.importorskip("aiconfigurator_core")
    shared(TRACE)
    found = published_constants.of_requests(run_of("q8_h100_sgl_c4"), SHARED, tmp_path, 1)
    assert found.name == "chat.request_ns"
    assert found.found_ns == pytest.approx(found.profile_ns, abs=ROUNDING_NS)


def test_a_step_of_several_devices(tmp_path: Path) -> None:
    pytest.importorskip("aiconfigurator_core")
    shared(TRACE)
    point = run_of("glm46_h200_c4")
    found = published_constants.between_ranks(point, SHARED, tmp_path)
    assert found.found_ns == pytest.approx(found.profile_ns, abs=ROUNDING_NS)
