"""The operators of a layer that keeps a state: projections, convolution, recurrence, gated norm.

Gated delta nets (Qwen3-Next), lightning attention (MiniMax-01), which has no convolution and no
gates of its own, and state spaces (Mamba-2: Nemotron-H, Granite 4, Bamba, Falcon-H1), which project
everything in one GEMM, as vLLM's MambaMixer2 does.
"""

from functools import partial

from llmsim.model.operator import Elementwise, Operator, StateSpace, collective
from llmsim.model.operators.attention_variants import LinearAttention
from llmsim.model.operators.factory import OperatorFactory

SUM_BYTES = 4
"""Of a token's squares, in fp32."""


def linear_layer(make: OperatorFactory) -> list[Operator]:
    """The mixer of all layers with a state on one rank; nothing where there are none."""
    model = make.model
    repeat = model.layers_of("linear")
    if not repeat or model.linear is None:
        return []
    linear, hidden = model.linear.on_rank(make.layout.tp), model.hidden_size
    values = linear.value_heads * linear.value_dim
    channels, taps = linear.conv_channels, linear.conv_channels * linear.conv_kernel
    program = _projections(make, linear, repeat)
    if taps:
        weights = taps + channels * linear.conv_bias
        program.append(
            make.elementwise(
                "linear_conv",
                repeat,
                reads=channels,
                writes=channels,
                flops=2 * taps,
                weights=weights,
                block="state_space",
            )
        )
    program += _recurrence(make, linear, repeat)
    flops = (8 if linear.norm != "none" else 4) * values
    weights = linear.norm_weights
    program.append(
        make.elementwise(
            "linear_norm",
            repeat,
            reads=2 * values,
            writes=values,
            flops=flops,
            weights=weights,
            block="state_space",
            reduces=True,
        )
    )
    if _norm_spans_ranks(model.linear, make.layout.tp):
        program.append(
            collective("norm_sum", "all_reduce", "tp", SUM_BYTES, part="layer", repeat=repeat)
        )
    bias = hidden * linear.bias
    out = make.gemm(
        "linear_out_proj",
        hidden,
        values,
        part="linear",
        block="state_space",
        repeat=repeat,
        bias=bias,
    )
    return [*program, out]


def _projections(make: OperatorFactory, linear: LinearAttention, repeat: int) -> list[Operator]:
    gemm = partial(make.gemm, block="state_space", repeat=repeat)
    hidden, heads = make.model.hidden_size, linear.value_heads
    width = linear.conv_channels + heads * linear.value_dim  # and the output's gate
    if linear.kind == "state_space":
        width += linear.gates * heads
        bias = width * linear.bias
        return [gemm("linear_in_proj", width, hidden, part="linear", bias=bias)]
    program: list[Operator] = [gemm("linear_qkvz_proj", width, hidden, part="linear")]
    if linear.gates:
        program.append(gemm("linear_ba_proj", linear.gates * heads, hidden, part="wide"))
    return program


def _norm_spans_ranks(linear: LinearAttention, tp: int) -> bool:
    """A norm over all heads in one group needs the other ranks' squares (vLLM's
    Mixer2RMSNormGated).
    """
    return (
        linear.kind == "state_space" and linear.norm == "whole" and linear.key_heads == 1 and tp > 1
    )


def _recurrence(
    make: OperatorFactory, linear: LinearAttention, repeat: int
) -> tuple[Operator, Operator]:
    """The recurrence of `linear`, a rank's share, and its traffic with the states.

    A gated delta net decays the state, takes k S, adds an outer product and reads q S: 7 key_dim
    value_dim flops per head and token (arXiv 2412.06464, equation 10). Lightning attention does
    without k S: 5 (arXiv 2501.08313, equation 10). So does a state space, S <- exp(dt A) S + B (dt
    x), y = C S + D x: 5 (arXiv 2405.21060, equation 16; dt x and D x are small beside them). Every
    step reads and writes the state of each sequence once.
    """
    heads, size = linear.value_heads, make.wide_size
    state = linear.state_bytes(make.dtypes.activation)
    numbers = linear.head_weights * heads
    computed = StateSpace(
        name="linear_attention",
        repeat=repeat,
        block="state_space",
        hidden=make.model.hidden_size,
        heads=heads,
        kv_heads=linear.key_heads,
        head_dim=linear.value_dim,
        weight_dtype=make.wide_dtype,
        weight_bytes=numbers * size,
        read_bytes_per_token=(linear.conv_channels + linear.gates * heads) * size,
        write_bytes_per_token=heads * linear.value_dim * size,
        flops_per_token=(7 if linear.kind == "delta" else 5)
        * heads
        * linear.key_dim
        * linear.value_dim,
        state_bytes_per_sequence=state,
    )
    traffic = Elementwise(
        name="linear_state",
        feature="sequences",
        repeat=repeat,
        block="state_space",
        hidden=make.model.hidden_size,
        read_bytes_per_token=state,
        write_bytes_per_token=state,
    )
    return computed, traffic
