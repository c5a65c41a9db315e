"""What a workload says of the encoder inputs of its requests, in the core's form."""

from itertools import accumulate

from llmsim import _native
from llmsim.core import Workload
from llmsim.workload.content import numbered_inputs


def with_encoder_inputs(encoder: "_native.EncoderConfig", workload: Workload) -> None:
    """Gives a group its requests' encoder inputs.

    An encoder without budgets is not modelled: its inputs are prompt tokens like others.
    """
    rows = workload.encoder_inputs
    if rows is None or encoder.step_tokens == 0:
        encoder.inputs = None
        return
    offsets = list(accumulate((len(row) for row in rows), initial=0))
    encoder.inputs = _native.EncoderInputs(offsets, list(numbered_inputs(rows)))
