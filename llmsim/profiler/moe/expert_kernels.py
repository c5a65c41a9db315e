"""vLLM's kernels for experts: its fused one in 16 and 8 bits, Marlin for 4 bits, and the one of
gpt-oss.

Each maker takes the weights of all experts once and gives a function of (tokens, expert ids, their
shares).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from llmsim.profiler.kernels.quantised import Weight
from llmsim.profiler.kernels.quantised_kernels import marlin_fp4, marlin_int4

Activation = Literal["silu", "swigluoai", "relu2"]
"""Of an expert: gated by SiLU; gpt-oss's, whose gates and values lie in turns; or the square of
what is positive.
"""
Stored = Any
"""Weights in 16 or 32 bits (experts, outputs, inputs), or a `Weight`."""
Layer = Callable[[Any, Any, Any], Any]
Maker = Callable[[Any, Any, Stored, Stored, Activation], Layer]
NAMES = {"silu": "SILU", "swigluoai": "SWIGLUOAI", "relu2": "RELU2_NO_MUL"}


def activated(torch: Any, activation: Activation, y: Any) -> Any:
    """The activation in plain operations; that of gpt-oss as in its model card's reference code."""
    if activation == "relu2":
        return torch.relu(y).square()
    if activation == "silu":
        gate, up = y.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up
    gate, up = y[..., ::2].clamp(max=7.0), y[..., 1::2].clamp(-7.0, 7.0)
    return gate * (1.702 * gate).sigmoid() * (up + 1)


def _named(activation: Activation) -> dict[str, Any]:
    """The argument of vLLM's functions; SiLU is what they take without it."""
    if activation == "silu":
        return {}
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    return {"activation": getattr(MoEActivation, NAMES[activation])}


def _fused(torch: Any, dtype: Any, up: Stored, down: Stored, activation: Activation) -> Layer:
    """Triton; what vLLM runs on Hopper for blocks of 8 bits as well."""
    from vllm.model_executor.layers.fused_moe import fused_experts

    more = _named(activation)
    if isinstance(up, Weight):
        more["quant_config"] = _eight_bits(up, down)
        up, down = up.data, down.data
    return lambda x, ids, shares: fused_experts(
        hidden_states=x, w1=up, w2=down, topk_weights=shares, topk_ids=ids, **more
    )


def _eight_bits(up: Weight, down: Weight) -> Any:
    """How vLLM is told of scales: of blocks, or one for each output and each token."""
    from vllm.model_executor.layers.fused_moe import config

    scales = {"w1_scale": up.scale, "w2_scale": down.scale}
    if up.scheme.kind == "fp8_block":
        assert up.scheme.block is not None
        return config.fp8_w8a8_moe_quant_config(**scales, block_shape=list(up.scheme.block))
    if up.scheme.kind == "fp8":
        return config.fp8_w8a8_moe_quant_config(
            **scales, per_act_token_quant=True, per_out_ch_quant=True
        )
    return config.int8_w8a8_moe_quant_config(
        **scales, a1_scale=None, a2_scale=None, per_act_token_quant=True
    )


def _gpt_oss(torch: Any, dtype: Any, up: Weight, down: Weight, activation: Activation) -> Layer:
    """The kernels of triton_kernels, which vLLM takes for gpt-oss."""
    from vllm.utils.import_utils import has_triton_kernels

    if not has_triton_kernels():  # which also makes vLLM's own copy known by the package's name
        raise ImportError("triton_kernels is not installed")
    from triton_kernels.matmul_ogs import FlexCtx, PrecisionConfig
    from vllm.model_executor.layers.fused_moe import config
    from vllm.model_executor.layers.fused_moe.experts import gpt_oss_triton_kernels_moe as kernels
    from vllm.model_executor.layers.quantization.utils.mxfp4_utils import _swizzle_mxfp4

    if activation != "swigluoai":
        raise ValueError("it has the activation of gpt-oss alone")
    data, precision, bias = [], [], []
    for weight in (up, down):
        values, flex, scale = _swizzle_mxfp4(weight.data, weight.scale)
        data.append(values)
        precision.append(PrecisionConfig(weight_scale=scale, flex_ctx=FlexCtx(rhs_data=flex)))
        bias.append(torch.zeros(len(weight.data), weight.outputs, device=weight.data.device))
    how = config.mxfp4_w4a16_moe_quant_config(
        w1_scale=precision[0], w2_scale=precision[1], w1_bias=bias[0], w2_bias=bias[1]
    )
    experts = len(up.data)

    def run(x: Any, ids: Any, shares: Any) -> Any:
        routing, gather, scatter = kernels.make_routing_data(ids, shares, experts)
        return kernels.triton_kernel_fused_experts(
            torch.empty_like(x),
            x,
            data[0],
            data[1],
            routing,
            gather,
            scatter,
            topk=ids.shape[1],
            quant_config=how,
        )

    return run


def _marlin(torch: Any, dtype: Any, up: Weight, down: Weight, activation: Activation) -> Layer:
    """4 bits, activations wide."""
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.scalar_type import scalar_types

    more = _named(activation)
    packed: list[tuple[Any, Any]] = []
    for number, weight in enumerate((up, down), start=1):
        alone = (weight.expert(index) for index in range(len(weight.data)))
        if weight.scheme.dtype == "int4":
            parts = [marlin_int4(torch, dtype, one) for one in alone]
        else:
            layers = [marlin_fp4(torch, dtype, one) for one in alone]
            parts = [(layer.weight.data, layer.weight_scale.data) for layer in layers]
            if weight.scheme.kind == "nvfp4":
                more[f"global_scale{number}"] = torch.stack(
                    [layer.weight_global_scale.data for layer in layers]
                )
        packed.append(
            (torch.stack([data for data, _ in parts]), torch.stack([scale for _, scale in parts]))
        )
    kind = scalar_types.uint4b8 if up.scheme.dtype == "int4" else scalar_types.float4_e2m1f
    (first, first_scale), (second, second_scale) = packed
    return lambda x, ids, shares: fused_marlin_moe(
        hidden_states=x,
        w1=first,
        w2=second,
        bias1=None,
        bias2=None,
        w1_scale=first_scale,
        w2_scale=second_scale,
        topk_weights=shares,
        topk_ids=ids,
        quant_type_id=kind.id,
        **more,
    )


def _grouped(torch: Any, dtype: Any, up: Any, down: Any, activation: Activation) -> Layer:
    """PyTorch's grouped product over tokens sorted by expert."""
    experts, up, down = len(up), up.transpose(1, 2), down.transpose(1, 2)

    def run(x: Any, ids: Any, shares: Any) -> Any:
        flat = ids.reshape(-1).long()
        order = torch.argsort(flat)
        rows = order // ids.shape[1]
        # Counted without bincount, which asks the device how large its result is: no graph can hold
        # that.
        counts = torch.zeros(experts, dtype=torch.int32, device=flat.device)
        ends = counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32)).cumsum(
            0, dtype=torch.int32
        )
        y = torch._grouped_mm(
            activated(torch, activation, torch._grouped_mm(x[rows], up, offs=ends)), down, offs=ends
        )
        y = y * shares.reshape(-1)[order].unsqueeze(1).to(y.dtype)
        return torch.zeros_like(x).index_add_(0, rows, y)

    return run


def looped(linears: Callable[[Stored], list[Callable[[Any], Any]]]) -> Maker:
    """One expert after the other; `linears` makes the products of each expert's matrix."""

    def make(torch: Any, dtype: Any, up: Stored, down: Stored, activation: Activation) -> Layer:
        first, second = linears(up), linears(down)

        def run(x: Any, ids: Any, shares: Any) -> Any:
            out = torch.zeros_like(x)
            for expert in sorted({int(i) for i in ids.reshape(-1).tolist()}):
                rows, choice = torch.where(ids == expert)
                y = second[expert](activated(torch, activation, first[expert](x[rows])))
                out.index_add_(0, rows, y * shares[rows, choice].unsqueeze(1).to(y.dtype))
            return out

        return run

    return make


def wide_linears(torch: Any) -> Callable[[Stored], list[Callable[[Any], Any]]]:
    """Of weights in 16 or 32 bits."""
    return lambda weights: [
        partial(torch.nn.functional.linear, weight=weight) for weight in weights
    ]


KERNELS: Mapping[str, Mapping[str, Maker]] = MappingProxyType(
    {
        "wide": {"vllm": _fused, "grouped": _grouped},
        "fp8": {"vllm": _fused}, "fp8_block": {"vllm": _fused}, "int8": {"vllm": _fused},
        "mxfp4": {"triton_kernels": _gpt_oss, "marlin": _marlin},
        "nvfp4": {"marlin": _marlin}, "int4": {"marlin": _marlin}, "grouped": {},
    }
)  # fmt: skip
"""By the kind of scheme, in order of preference; the loop over experts is behind all of them."""
