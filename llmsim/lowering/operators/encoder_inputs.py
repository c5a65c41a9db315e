"""What a workload says of the encoder inputs of its requests, in the core's form."""

from itertools import accumulate

from llmsim import _native
from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.workload.content import numbered_inputs


def with_encoder_inputs(encoder: "_native.EncoderConfig", workload: Workload) -> None:
    """Gives a group its requests' encoder inputs.

    An encoder without budgets is not modelled: its inputs are prompt tokens like others. Raises
    InputError for an input that is larger than what the encoder's times reach to.
    """
    rows = workload.encoder_inputs
    if rows is None or encoder.step_tokens == 0:
        encoder.inputs = None
        return
    largest = max((tokens for row in rows for _, tokens, _ in row), default=0)
    if 0 < encoder.pair_tokens < largest:
        raise InputError(
            f"encoder_inputs of the trace have up to {largest:,} tokens, but the times of the "
            f"encoder reach to {encoder.pair_tokens:,}; --max-num-encoder-input-tokens {largest} "
            "asks for more"
        )
    offsets = list(accumulate((len(row) for row in rows), initial=0))
    encoder.inputs = _native.EncoderInputs(offsets, list(numbered_inputs(rows)))
