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
    linear = model.linear.on_rank(make.layout.tp)
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
    if linear.kind == "short_conv":
        return [*program, *_short_convolution(make, linear, repeat)]
    if linear.kind == "mamba1":
        selected = _selection(make, linear, repeat)
        return [
            *program,
            *selected,
            *_recurrence(make, linear, repeat),
            _output(make, linear, repeat),
        ]
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
    return [*program, _output(make, linear, repeat)]


def _output(make: OperatorFactory, linear: LinearAttention, repeat: int) -> Operator:
    """Back to the hidden state. Row-parallel: the bias is on every rank."""
    hidden = make.model.hidden_size
    return make.gemm(
        "linear_out_proj",
        hidden,
        linear.value_heads * linear.value_dim,
        part="linear",
        block="state_space",
        repeat=repeat,
        bias=hidden * linear.bias,
    )


def _selection(make: OperatorFactory, linear: LinearAttention, repeat: int) -> list[Operator]:
    """What Mamba-1 chooses for each token: the step's latent, B and C from the inputs of all ranks,
    whose partial sums they add up, and the step of each channel (vLLM's MambaMixer).
    """
    gemm = partial(make.gemm, part="linear", block="state_space", repeat=repeat)
    width, channels = linear.step_width, linear.value_heads
    program: list[Operator] = [gemm("linear_x_proj", width, channels)]
    if make.layout.tp > 1:
        size = width * make.wide_size
        program.append(
            collective("selection_sum", "all_reduce", "tp", size, part="layer", repeat=repeat)
        )
    if linear.step_norm:
        norm = partial(make.inner_norm, block="state_space", kernels=3)
        program.append(norm("linear_step_norm", repeat, width, weights=width))
    return [*program, gemm("linear_step_proj", channels, linear.gate_rank)]


def _short_convolution(
    make: OperatorFactory, linear: LinearAttention, repeat: int
) -> list[Operator]:
    """What a short convolution has instead of a recurrence: gates in front of it and behind it,
    elementwise, and the last inputs of each sequence, which every step reads and writes (vLLM's
    ShortConv).
    """
    values = linear.value_heads * linear.value_dim
    gates = make.elementwise(
        "linear_gates",
        repeat,
        reads=4 * values,
        writes=2 * values,
        flops=2 * values,
        block="state_space",
        kernels=2,
    )
    return [gates, _state_traffic(make, linear, repeat), _output(make, linear, repeat)]


def _projections(make: OperatorFactory, linear: LinearAttention, repeat: int) -> list[Operator]:
    gemm = partial(make.gemm, block="state_space", repeat=repeat)
    hidden, heads = make.model.hidden_size, linear.value_heads
    width = linear.conv_channels + heads * linear.value_dim  # and the output's gate
    if linear.kind == "kda":
        return _kda_projections(make, linear, repeat)
    if linear.kind in ("mamba1", "state_space", "short_conv"):
        width += linear.gates * heads
        width += heads * linear.value_dim * (linear.kind == "short_conv")
        bias = width * linear.bias
        return [gemm("linear_in_proj", width, hidden, part="linear", bias=bias)]
    program: list[Operator] = [gemm("linear_qkvz_proj", width, hidden, part="linear")]
    if linear.gates:
        program.append(gemm("linear_ba_proj", linear.gates * heads, hidden, part="wide"))
    return program


def _kda_projections(make: OperatorFactory, linear: LinearAttention, repeat: int) -> list[Operator]:
    """Queries, keys and values in one GEMM; the step's size of each head; decays and the output's
    gate, through a latent that is whole on every rank where they have a rank (vLLM's
    KimiDeltaAttention; the gate of KimiK3DeltaAttention has none).
    """
    gemm = partial(make.gemm, block="state_space", repeat=repeat)
    hidden, heads, rank = make.model.hidden_size, linear.value_heads, linear.gate_rank
    decays, gates = heads * linear.key_dim, heads * linear.value_dim
    program: list[Operator] = [
        gemm("linear_qkv_proj", linear.conv_channels, hidden, part="linear"),
        gemm("linear_beta_proj", heads, hidden, part="wide"),
    ]
    if not rank:
        return [*program, gemm("linear_gates_proj", decays + gates, hidden, part="linear")]
    if linear.full_gate:
        return [
            *program,
            gemm("linear_gate_proj", gates, hidden, part="linear"),
            gemm("linear_gates_a_proj", rank, hidden, part="linear"),
            gemm("linear_decay_b_proj", decays, rank, part="linear"),
        ]
    return [
        *program,
        gemm("linear_gates_a_proj", 2 * rank, hidden, part="linear"),
        gemm("linear_decay_b_proj", decays, rank, part="linear"),
        gemm("linear_gate_b_proj", gates, rank, part="linear"),
    ]


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
    """The recurrence of `linear`, a rank's share, and its traffic with the states."""
    heads, size = linear.value_heads, make.wide_size
    state = linear.state_bytes(make.dtypes.activation)
    numbers = linear.head_weights * heads
    numbers_read = linear.gates * heads + heads * linear.key_dim * (linear.kind == "kda")
    if linear.kind == "mamba1":  # the step, the output's gate, B and C
        numbers_read = 2 * heads + 2 * linear.key_dim
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
        read_bytes_per_token=(linear.conv_channels + numbers_read) * size,
        write_bytes_per_token=heads * linear.value_dim * size,
        flops_per_token=linear.flops_per_token,
        state_bytes_per_sequence=state,
    )
    return computed, _state_traffic(make, linear, repeat)


def _state_traffic(make: OperatorFactory, linear: LinearAttention, repeat: int) -> Elementwise:
    """Every step reads and writes the state of each sequence once."""
    state = linear.state_bytes(make.dtypes.activation)
    return Elementwise(
        name="linear_state",
        feature="sequences",
        repeat=repeat,
        block="state_space",
        hidden=make.model.hidden_size,
        read_bytes_per_token=state,
        write_bytes_per_token=state,
    )
