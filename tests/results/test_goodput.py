"""Goodput against a count request by request, and its targets as they are written."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_MS, Results, Status
from llmsim.results.requests.goodput import TARGETS, goodput_block, parse_targets


def one_by_one(results: Results, targets_ps: dict[str, int]) -> int:
    """The same with the definitions of docs/reference/metrics.md, a request at a time."""
    requests, good = results.requests, 0
    for row in range(len(results.workload)):
        if requests.status[row] != Status.FINISHED:
            continue
        ttft = int(requests.first_token_ps[row]) - int(requests.arrival_ps[row])
        e2el = int(requests.finish_ps[row]) - int(requests.arrival_ps[row])
        gaps = int(requests.emitted_tokens[row]) - 1
        found = {
            "ttft": Fraction(ttft),
            "tpot": Fraction(e2el - ttft, gaps) if gaps else Fraction(0),
            "e2el": Fraction(e2el),
        }
        good += all(found[name] <= limit for name, limit in targets_ps.items())
    return good


@given(
    seed=st.integers(0, 50),
    limits_ms=st.dictionaries(
        st.sampled_from(TARGETS), st.floats(0.1, 200) | st.floats(1e-9, 1e9), min_size=1
    ),
)
def test_as_counted_one_by_one(seed: int, limits_ms: dict[str, float]) -> None:
    from results.conftest import make_results

    results = make_results(60, seed=seed)
    targets = parse_targets([",".join(f"{name}:{limit!r}" for name, limit in limits_ms.items())])
    block = goodput_block(results, targets)
    assert block is not None
    assert block["good"] == one_by_one(results, targets)
    assert block["share"] == pytest.approx(block["good"] / 60, abs=1e-6)
    alone = {name: one_by_one(results, {name: limit}) / 60 for name, limit in targets.items()}
    assert block["shares"] == pytest.approx(alone, abs=1e-6)


def test_what_equals_its_target_meets_it() -> None:
    from results.conftest import make_results

    results = make_results(40, seed=3)
    done = (results.requests.status == Status.FINISHED).nonzero()[0]
    slowest = int((results.requests.finish_ps - results.requests.arrival_ps)[done].max())
    block = goodput_block(results, {"e2el": slowest})
    less = goodput_block(results, {"e2el": slowest - 1})
    assert block is not None and less is not None
    assert (block["good"], less["good"]) == (len(done), len(done) - 1)


def test_nothing_finished_and_nothing_asked() -> None:
    from results.conftest import make_results

    results = make_results(5, finished_share=0.0)
    assert goodput_block(results, {}) is None
    block = goodput_block(results, {"ttft": PS_PER_MS})
    assert block is not None
    assert (block["good"], block["request_goodput"]) == (0, None)


def test_targets_in_every_spelling() -> None:
    expected = {"ttft": 1000 * PS_PER_MS, "tpot": 40 * PS_PER_MS}
    assert parse_targets(["tpot:40,ttft:1000"]) == expected
    assert parse_targets(["ttft:1e3 tpot:40.0"]) == expected
    assert parse_targets(["ttft:1000", "tpot:40"]) == expected
    assert list(parse_targets(["e2el:1,tpot:2,ttft:3"])) == ["ttft", "tpot", "e2el"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tptf:3", 'did you mean "ttft"'),
        ("ttft", "milliseconds"),
        ("ttft:0", "above 0"),
        ("ttft:nan", "above 0"),
        ("ttft:inf", "above 0"),
        ("ttft:-1", "above 0"),
        ("ttft:1,ttft:2", "twice"),
        ("", "empty"),
        ("itl:3", "ttft, tpot, e2el"),
    ],
)
def test_wrong_targets(text: str, words: str) -> None:
    with pytest.raises(InputError, match="--goodput") as error:
        parse_targets([text])
    assert words in str(error.value)
