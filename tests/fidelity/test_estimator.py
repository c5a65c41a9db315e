"""Steps against the estimator of aiconfigurator-core, and the errors of interpolation: the scripts'
own figures.
"""

import pytest

from evaluation.leave_one_out import CARDS, leave_one_out
from tests.costs.builders import needs_database

pytestmark = needs_database
LIMIT_PERCENT = 5.0


@pytest.mark.parametrize(
    ("model", "card"),
    [
        ("meta-llama/Llama-3.1-8B", "A100"),
        ("meta-llama/Llama-3.1-70B", "H200"),
        ("Qwen/Qwen3-30B-A3B", "B200"),
        ("Qwen/Qwen3-30B-A3B", "H100"),
    ],
)
def test_steps_agree_or_their_difference_is_named(model: str, card: str) -> None:
    from evaluation.estimator import compare

    steps = list(compare(model, card))
    assert len(steps) == 6
    for step in steps:
        assert abs(step.percent) <= LIMIT_PERCENT or abs(step.alike_percent) <= LIMIT_PERCENT, step
    assert all(abs(step.alike_percent) <= LIMIT_PERCENT for step in steps)
    decodes = [
        step
        for step in steps
        if step.what.startswith("decode") and not step.what.startswith("decode 1 ")
    ]
    assert all(abs(step.counted_percent) <= LIMIT_PERCENT for step in decodes)


@pytest.mark.parametrize("card", CARDS)
def test_what_is_left_out_is_predicted(card: str) -> None:

    errors = {one.what: one for one in leave_one_out(card)}
    for what in ("GEMM, unseen shape", "GEMM, unseen tokens", "decode attention"):
        assert len(errors[what].values) > 100
        assert errors[what].percentile(50) <= LIMIT_PERCENT
    assert errors["GEMM by the data sheet (analytic)"].percentile(50) > errors[
        "GEMM, unseen shape"
    ].percentile(50)
