"""Matrices at the clock of the power limit, by hand."""

import numpy as np
import pytest
from costs.builders import request
from msgspec.structs import replace

from llmsim.core import Provenance
from llmsim.costs.source import Curve
from llmsim.costs.sources.silicon.sustained_clock import sustained
from llmsim.model import Gemm


def burst(flops_per_s: float, op: Gemm, tokens: int = 4) -> Curve:
    """A curve that computes at one rate at every count."""
    ps = np.round(np.arange(tokens) * op.flops_per_token / flops_per_s * 1e12).astype(np.int64)
    marks = np.full(tokens, Provenance.MEASURED, dtype=np.uint8)
    return Curve(ps, marks, "table")


def matrix() -> Gemm:
    return next(op for op in request(hardware="A100").operators if isinstance(op, Gemm))


def test_the_page_that_gave_the_energy_comes_out() -> None:
    """295 TFLOP/s at the full clock are 257 at the limit of 400 W."""
    sheet, op = request(hardware="A100").hardware, matrix()
    found = sustained(burst(295e12, op), op, sheet)
    rate = op.flops_per_token / found.ps[1:] * np.arange(1, 4) * 1e12
    assert rate == pytest.approx(257e12, rel=2e-3)
    assert found.source == "table, at the clock of the power limit"
    assert found.ps[0] == 0 and set(found.provenance[1:]) == {Provenance.SCALED}


def test_what_stays_within_the_limit_keeps_its_time() -> None:
    """195 TFLOP/s x 1.6 pJ are the 312 W between idle and limit."""
    sheet, op = request(hardware="A100").hardware, matrix()
    slow = burst(194e12, op)
    assert sustained(slow, op, sheet) is slow
    fast = sustained(burst(196e12, op), op, sheet)
    assert fast.ps[1] > burst(196e12, op).ps[1]


def test_a_card_without_the_numbers_keeps_the_burst() -> None:
    sheet, op = request(hardware="A100").hardware, matrix()
    assert sheet is not None
    curve = burst(295e12, op)
    for name in ("tdp_w", "idle_w", "switching_fj_per_flop"):
        assert sustained(curve, op, replace(sheet, **{name: None})) is curve
    assert sustained(curve, op, None) is curve
