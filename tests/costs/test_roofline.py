"""Times of the data sheet alone: large matrices and prefills by hand."""

import numpy as np
import pytest
from builders import request

from llmsim.costs.sources.roofline import (
    ATTENTION_LAUNCH_US,
    LAUNCH_US,
    RooflineSource,
    attention_flops_per_s,
    gemm_flops_per_s,
)
from llmsim.model import Attention, Gemm
from llmsim.model.hardware import hardware_names, load_hardware

TOKENS = 2048


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        ("H100", 0.75 * 989.4),
        ("MI300X", 708),  # AMD's published rate; 0.75 of its peak would be 981
        ("MI325X", 843),
        ("MI355X", 1686),
    ],
)
def test_large_matrices_run_at_the_rate_that_they_reach(device: str, tflops: float) -> None:
    asked = request(hardware=device)
    source = RooflineSource(asked)
    gemm = next(op for op in asked.operators if isinstance(op, Gemm) and op.name == "gate_up_proj")
    took_us = float(source.operator_us(gemm, np.array([float(TOKENS)]))[0])
    by_hand_us = TOKENS * gemm.flops_per_token / (tflops * 1e12) * 1e6 + LAUNCH_US
    assert took_us == pytest.approx(by_hand_us, rel=1e-3)
    attention = next(op for op in asked.operators if isinstance(op, Attention))
    pairs = np.array([TOKENS * (TOKENS + 1) / 2])
    prefill_us = float(source.attention_us(attention, np.array([float(TOKENS)]), pairs)[0])
    flops = pairs[0] * attention.flops_per_context_token
    by_hand_us = flops / (tflops * 1e12 * 2 / 3) * 1e6 + ATTENTION_LAUNCH_US
    assert prefill_us == pytest.approx(by_hand_us, rel=1e-3)


def test_a_rate_that_nobody_measured_is_a_share_of_the_peak() -> None:
    assert gemm_flops_per_s(1e15, 0) == 0.75e15
    assert gemm_flops_per_s(1e15, 0.9e15) == 0.75e15  # more than the share is no reason to hope
    assert gemm_flops_per_s(1e15, 0.6e15) == 0.6e15
    assert attention_flops_per_s(1e15, 0.6e15) == pytest.approx(0.4e15)


def test_measured_rates_are_below_the_peaks_of_their_sheets() -> None:
    sheets = [sheet for name in hardware_names() if (sheet := load_hardware(name)) is not None]
    measured = [sheet for sheet in sheets if sheet.matrix_flops]
    assert measured
    for sheet in measured:
        assert "matrix_flops" in sheet.sources
        for dtype, rate in sheet.matrix_flops.items():
            assert 0.3 * sheet.flops[dtype] < rate < sheet.flops[dtype], sheet.name
