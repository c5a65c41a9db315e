"""The operators of a layer of linear attention: projections, convolution, recurrence, gated norm.

Gated delta nets (Qwen3-Next), and lightning attention (MiniMax-01), which has no convolution and no gates of its own.
"""

from dataclasses import replace

from llmsim.model.builder import Builder
from llmsim.model.dtypes import dtype_bytes
from llmsim.model.rank import Operator
from llmsim.model.types import LinearAttention


def rank_linear(linear: LinearAttention, tp: int) -> LinearAttention:
    """Its share on one tensor-parallel rank: whole heads."""
    return replace(linear, key_heads=linear.key_heads // tp, value_heads=linear.value_heads // tp)


def linear_layer(make: Builder) -> list[Operator]:
    """The mixer of all "linear" layers on one rank; nothing where there are none."""
    model = make.model
    repeat = model.layers_of("linear")
    if not repeat or model.linear is None:
        return []
    linear, hidden = rank_linear(model.linear, make.layout.tp), model.hidden_size
    keys, values, heads = (
        linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim, linear.value_heads,
    )  # fmt: skip
    channels, taps = linear.conv_channels, linear.conv_channels * linear.conv_kernel
    program = [make.gemm("linear_qkvz_proj", 2 * keys + 2 * values, hidden, part="attention", repeat=repeat)]
    if linear.delta:
        program.append(make.gemm("linear_ba_proj", 2 * heads, hidden, part="wide", repeat=repeat))
    if taps:
        program.append(
            make.elementwise("linear_conv", repeat, reads=channels, writes=channels, flops=2 * taps, weights=taps)
        )
    weights = values if linear.whole_norm else linear.value_dim
    return [
        *program,
        *_recurrence(make, linear, repeat),
        make.elementwise("linear_norm", repeat, reads=2 * values, writes=values, flops=8 * values, weights=weights),
        make.gemm("linear_out_proj", hidden, values, part="attention", repeat=repeat),
    ]


def _recurrence(make: Builder, linear: LinearAttention, repeat: int) -> tuple[Operator, Operator]:
    """The recurrence of `linear`, a rank's share, and its traffic with the states.

    It decays the state, takes k S, adds an outer product and reads q S: 7 key_dim value_dim flops per head and token
    (arXiv 2412.06464, equation 10); lightning attention does without k S: 5 (arXiv 2501.08313, equation 10). Every step
    reads and writes the state of each sequence once.
    """
    heads, size = linear.value_heads, make.wide_size
    state = linear.state_bytes(int(dtype_bytes(linear.state_dtype)) if linear.state_dtype else size, size)
    computed = Operator(
        name="linear_attention",
        kind="linear_attention",
        feature="tokens",
        part="layer",
        repeat=repeat,
        power_class="compute",
        hidden=make.model.hidden_size,
        heads=heads,
        kv_heads=linear.key_heads,
        head_dim=linear.value_dim,
        weight_dtype=make.wide_dtype,
        weight_bytes=2 * heads * size * linear.delta,
        read_bytes_per_token=(linear.conv_channels + 2 * heads * linear.delta) * size,
        write_bytes_per_token=heads * linear.value_dim * size,
        flops_per_token=(7 if linear.delta else 5) * heads * linear.key_dim * linear.value_dim,
        state_bytes_per_sequence=state,
    )
    traffic = Operator(
        name="linear_state",
        kind="elementwise",
        feature="sequences",
        part="layer",
        repeat=repeat,
        power_class="memory",
        hidden=make.model.hidden_size,
        read_bytes_per_token=state,
        write_bytes_per_token=state,
    )
    return computed, traffic
