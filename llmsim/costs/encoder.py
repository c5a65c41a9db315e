"""Times of attention in a vision tower. Nobody has published times by shape, so that the data sheet
gives them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmsim.core import Provenance
from llmsim.costs.hardware_limits import own_peak_rates_of
from llmsim.costs.source import CostRequest, Curve, to_ps
from llmsim.costs.sources.roofline import LAUNCH_US, attention_flops_per_s

if TYPE_CHECKING:
    from llmsim.model import EncoderAttention


def encoder_attention_curve(op: EncoderAttention, request: CostRequest) -> Curve:
    """flops / `attention_flops_per_s` + 3 us at each count of the feature; the device's peak is
    known.
    """
    peak_rates = own_peak_rates_of(request)
    assert peak_rates is not None, "untimed_encoder looked"
    counts = np.arange(request.counts(op.feature) + 1, dtype=np.float64)
    peak, reached = peak_rates.peak(op.weight_dtype), peak_rates.reached(op.weight_dtype)
    us = counts * op.flops_per_token / attention_flops_per_s(peak, reached) * 1e6 + LAUNCH_US
    us[0] = 0.0
    provenance = np.full(len(counts), Provenance.ANALYTIC, dtype=np.uint8)
    return Curve(to_ps(us), provenance, f"data sheet of {request.hardware_name}")
