"""Errors by hand-computed figures, pairing, and what makes a comparison unsound."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.config.errors import InputError
from llmsim.validation import Recording
from llmsim.validation.compare.compare import compare
from llmsim.validation.compare.table import markdown
from llmsim.validation.logs.pairing import matching_rows
from llmsim.validation.logs.recording import KvUse


def recording(n: int = 40, **changes: Any) -> Recording:
    columns = {
        "source": "x",
        "kind": "llmsim results",
        "request_id": tuple(str(i) for i in range(n)),
        "arrival_s": np.arange(n) / 4,
        "ttft_s": np.full(n, 0.1),
        "latency_s": np.full(n, 1.1),
        "input_tokens": np.full(n, 50),
        "output_tokens": np.full(n, 11),
    }
    return Recording(**(columns | changes))


def codes(real: Recording, simulated: Recording, skip: float = 2.0) -> dict[str, bool]:
    return {finding.code: finding.unsound for finding in compare(real, simulated, skip).findings}


def test_known_errors() -> None:
    simulated = recording(ttft_s=np.full(40, 0.11), latency_s=np.full(40, 1.21))
    errors = compare(recording(), simulated).errors()
    for name in (
        "mean_ttft",
        "p99_ttft",
        "mean_tpot",
        "p50_latency",
        "paired_mape_tpot",
        "paired_median_latency",
    ):
        assert errors[name] == pytest.approx(10.0), name
    assert errors["makespan"] == pytest.approx(100 * 0.11 / (39 / 4 + 1.1))
    assert errors["output_throughput"] == pytest.approx(
        100 * ((39 / 4 + 1.1) / (39 / 4 + 1.21) - 1)
    )


def test_pairs_differ_where_means_agree() -> None:
    wobble = np.where(np.arange(40) % 2, 1.2, 0.8)
    errors = compare(recording(), recording(ttft_s=0.1 * wobble)).errors()
    assert errors["mean_ttft"] == pytest.approx(0)
    assert errors["paired_mape_ttft"] == pytest.approx(20.0)


def test_answers_of_one_token_have_no_tpot() -> None:
    tokens = np.full(40, 11)
    tokens[5] = 1
    both = recording(output_tokens=tokens)
    found = compare(both, both)
    assert np.isnan(both.tpot_s[5]) and found.errors()["mean_tpot"] == 0 and found.sound


def test_the_cold_engine_is_left_out_of_pairs_only() -> None:
    ttft = np.full(40, 0.1)
    ttft[:8] = 0.4
    found = compare(recording(ttft_s=ttft), recording())
    assert found.num_paired == 32 and found.paired["ttft"].mape == pytest.approx(0)
    assert found.errors()["mean_ttft"] < -30
    assert codes(recording(ttft_s=ttft), recording())["cold start"] is False
    assert codes(recording(ttft_s=ttft), recording(), skip=0)["cold start"] is True


def test_pairing_by_id_or_number() -> None:
    assert matching_rows(["bench-1", "bench-0"], ["0", "1", "2"]) == [1, 0]
    assert matching_rows(["a", "b"], ["b", "a"]) == [1, 0]
    assert matching_rows(["req-007"], ["7"]) == [0]
    assert matching_rows(["a", "b"], ["c"]) == [-1, -1]
    with pytest.raises(InputError, match="no request in common"):
        compare(recording(), recording(request_id=tuple("x" * (i + 1) for i in range(40))))


@given(st.permutations(range(12)))
def test_order_of_rows_does_not_matter(order: list[int]) -> None:
    real = recording(12, ttft_s=0.1 + np.arange(12) / 100)
    simulated = recording(12, ttft_s=0.1 + np.arange(12) / 90)
    assert compare(real, simulated.rows(order)).errors() == compare(real, simulated).errors()


def test_what_is_unsound() -> None:
    good = recording()
    assert compare(good, good).findings == ()
    assert codes(good, good.rows(range(39)))["counts"] is True
    assert codes(good, replace(good, output_tokens=good.output_tokens + 1))["lengths"] is True
    assert codes(good, replace(good, input_tokens=good.input_tokens + 1))["lengths"] is True
    assert codes(good, replace(good, arrival_s=good.arrival_s * 2))["arrivals"] is True
    assert (
        codes(good, replace(good, arrival_s=good.arrival_s + 0.02 * (np.arange(40) == 3)))[
            "arrivals"
        ]
        is False
    )
    assert codes(good, replace(good, kv=KvUse(0.99, 3, blocks_given=False)))["KV bound"] is True
    assert "KV bound" not in codes(good, replace(good, kv=KvUse(0.99, 3, blocks_given=True)))
    assert "KV bound" not in codes(good, replace(good, kv=KvUse(0.4, 0, blocks_given=False)))
    assert codes(good, good, skip=9.0)["excluded"] is True
    assert codes(recording(5), recording(5), skip=0)["few"] is False


def test_markdown_says_so() -> None:
    text = markdown(compare(recording(), recording().rows(range(39))))
    assert "not sound" in text and "| TTFT |" in text and "+0.00 %" in text
