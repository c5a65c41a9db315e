"""The kernels of linear layers with quantised weights: vLLM's, PyTorch's scaled products, or
dequantise and multiply.

Each takes the weights once, in the form that it wants, and then activations in 16 or 32 bits:
quantising those is part of the operator, as in the model's list of operators and in the tables of
measured kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from llmsim.profiler.kernels.choice import first_right, relative_error
from llmsim.profiler.kernels.quantised import (
    FP8_MAX,
    INT8_MAX,
    Scheme,
    Weight,
    dequantised,
    exact_activations,
    make_weight,
)

Linear = Callable[[Any], Any]
Maker = Callable[[Any, Any, Weight], Linear]
"""(torch, dtype of activations, weights) -> outputs of activations (tokens, inputs)."""
ANYWHERE = ("scaled_mm", "int_mm", "dequantised")
CHECKED_TOKENS, CHECKED_WIDTH = (24, 40), 512
FLASHINFER_TOKENS = 32
"""From so many tokens on vLLM multiplies by DeepGEMM."""
LEAST_ROWS = 32
"""PyTorch's integer product on CUDA takes no fewer rows than 17."""
TINY = 1e-12
FP8_UTILS = "vllm.model_executor.layers.quantization.utils.fp8_utils"


def _deep_gemm_parts(torch: Any, dtype: Any, weight: Weight) -> tuple[Any, Any, Linear]:
    """Weights and scales as DeepGEMM wants them, and the product; scales are powers of two where
    vLLM has it so.
    """
    from vllm.model_executor.layers.quantization.utils import fp8_utils
    from vllm.utils.deep_gemm import DeepGemmQuantScaleFMT, fp8_gemm_nt, is_deep_gemm_e8m0_used
    from vllm.utils.deep_gemm import should_use_deepgemm_for_fp8_linear as takes

    assert weight.scheme.block is not None
    group, two = weight.scheme.block[1], is_deep_gemm_e8m0_used()
    if not takes(dtype, (weight.outputs, weight.inputs)):
        raise ValueError("DeepGEMM is not supported here, or not for these shapes")
    data, scale = fp8_utils.deepgemm_post_process_fp8_weight_block(
        wq=weight.data, ws=weight.scale, quant_block_shape=weight.scheme.block, use_e8m0=two
    )
    packed = two and DeepGemmQuantScaleFMT.from_oracle() == DeepGemmQuantScaleFMT.UE8M0

    def run(x: Any) -> Any:
        if packed:
            narrow = fp8_utils.per_token_group_quant_fp8_packed_for_deepgemm(
                x, group_size=group, use_ue8m0=True
            )
        else:
            narrow = fp8_utils.per_token_group_quant_fp8(
                x, group, column_major_scales=True, use_ue8m0=two
            )
        out = torch.empty(len(x), weight.outputs, dtype=dtype, device=x.device)
        fp8_gemm_nt(narrow, (data, scale), out, is_deep_gemm_e8m0_used=two)
        return out

    return data, scale, run


def _deep_gemm(torch: Any, dtype: Any, weight: Weight) -> Linear:
    return _deep_gemm_parts(torch, dtype, weight)[2]


def _flashinfer(torch: Any, dtype: Any, weight: Weight) -> Linear:
    """What vLLM runs on Hopper: few tokens by FlashInfer, which quantises them itself, more by
    DeepGEMM.
    """
    from vllm.utils import flashinfer

    have, shape = (
        flashinfer.is_flashinfer_fp8_blockscale_gemm_supported(),
        (weight.outputs, weight.inputs),
    )
    if not flashinfer.should_use_flashinfer_for_blockscale_fp8_gemm(
        have, dtype, dtype, weight.data.dtype, shape
    ):
        raise ValueError("FlashInfer has no such product here, or not for these shapes")
    data, scale, many = _deep_gemm_parts(torch, dtype, weight)

    def run(x: Any) -> Any:
        if len(x) >= FLASHINFER_TOKENS:
            return many(x)
        return flashinfer.flashinfer_fp8_blockscale_gemm(
            input=x, weight=data, weight_scale=scale, out_dtype=dtype
        )

    return run


def _cutlass_block(torch: Any, dtype: Any, weight: Weight) -> Linear:
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8

    assert weight.scheme.block is not None
    group, data, scale = weight.scheme.block[1], weight.data.t(), weight.scale.t()

    def run(x: Any) -> Any:
        narrow, each = per_token_group_quant_fp8(
            x, group, column_major_scales=True, use_ue8m0=False
        )
        return ops.cutlass_scaled_mm(narrow, data, scale_a=each, scale_b=scale, out_dtype=dtype)

    return run


def _triton_block(torch: Any, dtype: Any, weight: Weight) -> Linear:
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    assert weight.scheme.block is not None
    block = list(weight.scheme.block)

    def run(x: Any) -> Any:
        narrow, each = fp8_utils.per_token_group_quant_fp8(x, block[1], use_ue8m0=False)
        return fp8_utils.w8a8_triton_block_scaled_mm(
            narrow, weight.data, each, weight.scale, block, output_dtype=dtype
        )

    return run


def _cutlass(torch: Any, dtype: Any, weight: Weight) -> Linear:
    """One scale for each output, one for each token."""
    from vllm import _custom_ops as ops

    data, scale = weight.data.t(), weight.scale.reshape(1, -1)

    def run(x: Any) -> Any:
        if weight.scheme.dtype == "int8":
            narrow, each, _ = ops.scaled_int8_quant(x)
        else:
            narrow, each = ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        return ops.cutlass_scaled_mm(narrow, data, scale_a=each, scale_b=scale, out_dtype=dtype)

    return run


def marlin_fp4(torch: Any, dtype: Any, weight: Weight) -> Any:
    """One matrix in the order that Marlin reads, as vLLM's layers hold it."""
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import (
        prepare_fp4_layer_for_marlin,
    )

    layer = SimpleNamespace(
        weight=weight.data, weight_scale=weight.scale, params_dtype=dtype,
        output_size_per_partition=weight.outputs, input_size_per_partition=weight.inputs,
    )  # fmt: skip
    if weight.scheme.kind == "nvfp4":
        layer.weight_global_scale = torch.ones((), device=weight.data.device)
    prepare_fp4_layer_for_marlin(layer)
    return layer


def _marlin_fp4(torch: Any, dtype: Any, weight: Weight) -> Linear:
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import (
        apply_fp4_marlin_linear,
    )

    layer = marlin_fp4(torch, dtype, weight)
    return lambda x: apply_fp4_marlin_linear(
        input=x,
        weight=layer.weight,
        weight_scale=layer.weight_scale,
        workspace=layer.workspace,
        weight_global_scale=getattr(layer, "weight_global_scale", None),
        size_n=weight.outputs,
        size_k=weight.inputs,
    )


def _cutlass_nvfp4(torch: Any, dtype: Any, weight: Weight) -> Linear:
    """Activations in 4 bits too, on devices that have such units."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.utils.nvfp4_utils import swizzle_blockscale

    scale, one = swizzle_blockscale(weight.scale), torch.ones((), device=weight.data.device)

    def run(x: Any) -> Any:
        narrow, each = ops.scaled_fp4_quant(x, one, is_sf_swizzled_layout=True, backend="cutlass")
        return ops.cutlass_scaled_fp4_mm(narrow, weight.data, each, scale, one, dtype)

    return run


def marlin_int4(torch: Any, dtype: Any, weight: Weight) -> tuple[Any, Any]:
    """(weights, scales) of one matrix in the order that Marlin reads."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_permute_scales

    group = weight.scheme.block[1] if weight.scheme.block is not None else weight.inputs
    nobody = torch.empty(0, dtype=torch.int32, device=weight.data.device)
    packed = weight.data.view(torch.int32).t().contiguous()
    size_k, size_n = weight.inputs, weight.outputs
    data = ops.gptq_marlin_repack(
        b_q_weight=packed, perm=nobody, size_k=size_k, size_n=size_n, num_bits=4
    )
    scale = weight.scale.t().contiguous().to(dtype)
    return data, marlin_permute_scales(s=scale, size_k=size_k, size_n=size_n, group_size=group)


def _marlin_int4(torch: Any, dtype: Any, weight: Weight) -> Linear:
    from vllm.model_executor.layers.quantization.utils import marlin_utils
    from vllm.scalar_type import scalar_types

    data, scale = marlin_int4(torch, dtype, weight)
    space = marlin_utils.marlin_make_workspace_new(weight.data.device)
    nobody = torch.empty(0, dtype=torch.int32, device=weight.data.device)
    return lambda x: marlin_utils.apply_gptq_marlin_linear(
        input=x,
        weight=data,
        weight_scale=scale,
        weight_zp=nobody,
        g_idx=nobody,
        g_idx_sort_indices=nobody,
        workspace=space,
        wtype=scalar_types.uint4b8,
        output_size_per_partition=weight.outputs,
        input_size_per_partition=weight.inputs,
        is_k_full=True,
    )


def _narrow(torch: Any, x: Any, most: int, dtype: Any) -> tuple[Any, Any]:
    """Activations in 8 bits with one scale for each token, by elementary operations."""
    each = x.float().abs().amax(-1, keepdim=True).clamp(min=TINY) / most
    scaled = x.float() / each
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), each


def _scaled_mm(torch: Any, dtype: Any, weight: Weight) -> Linear:
    data, scale = weight.data.t(), weight.scale.reshape(1, -1)

    def run(x: Any) -> Any:
        narrow, each = _narrow(torch, x, FP8_MAX, torch.float8_e4m3fn)
        return torch._scaled_mm(narrow, data, scale_a=each, scale_b=scale, out_dtype=dtype)

    return run


def _scaled_mm_block(torch: Any, dtype: Any, weight: Weight) -> Linear:
    """PyTorch's product of blocks, on Hopper; blocks of 128."""
    from torch.nn.functional import ScalingType, scaled_mm

    data, scale = weight.data.t(), weight.scale.t()
    groups = weight.inputs // 128

    def run(x: Any) -> Any:
        parts, each = _narrow(torch, x.unflatten(-1, (groups, 128)), FP8_MAX, torch.float8_e4m3fn)
        return scaled_mm(
            parts.flatten(-2),
            data,
            each[..., 0].t().contiguous().t(),
            ScalingType.BlockWise1x128,
            scale,
            ScalingType.BlockWise128x128,
            output_dtype=dtype,
        )

    return run


def _int_mm(torch: Any, dtype: Any, weight: Weight) -> Linear:
    data, scale = weight.data.t(), weight.scale.reshape(1, -1)
    least = LEAST_ROWS if weight.data.is_cuda else 1

    def run(x: Any) -> Any:
        narrow, each = _narrow(torch, x, INT8_MAX, torch.int8)
        if len(x) < least:
            narrow = torch.nn.functional.pad(narrow, (0, 0, 0, least - len(x)))
        return (torch._int_mm(narrow, data)[: len(x)] * each * scale).to(dtype)

    return run


def _dequantised(torch: Any, dtype: Any, weight: Weight) -> Linear:
    return lambda x: torch.nn.functional.linear(x, dequantised(torch, weight, dtype))


LAST: dict[str, Maker] = {"dequantised": _dequantised}
KERNELS: Mapping[str, Mapping[str, Maker]] = MappingProxyType(
    {
        "fp8": {"cutlass": _cutlass, "scaled_mm": _scaled_mm, **LAST},
        "fp8_block": {"flashinfer": _flashinfer, "deep_gemm": _deep_gemm, "cutlass": _cutlass_block,
                      "triton": _triton_block, "scaled_mm_block": _scaled_mm_block, **LAST},
        "int8": {"cutlass": _cutlass, "int_mm": _int_mm, **LAST},
        "mxfp4": {"marlin": _marlin_fp4, **LAST},
        "nvfp4": {"cutlass": _cutlass_nvfp4, "marlin": _marlin_fp4, **LAST},
        "int4": {"marlin": _marlin_int4, **LAST},
        "grouped": LAST,
    }
)  # fmt: skip
"""By the kind of scheme, in order of preference, as vLLM chooses."""


def usable_kernel(
    torch: Any, device: Any, dtype: Any, scheme: Scheme, outputs: int, inputs: int
) -> tuple[str, dict[str, str]]:
    """The first kernel that is right for matrices like this one, and why the ones before it are not
    used.

    A smaller matrix with the same remainders of its sizes is multiplied, and compared with plain
    float32 math on the dequantised weights.
    """
    outputs, inputs = (
        size if size <= CHECKED_WIDTH else CHECKED_WIDTH + size % CHECKED_WIDTH
        for size in (outputs, inputs)
    )

    def error(maker: Maker) -> float:
        weight = make_weight(torch, device, scheme, outputs, inputs)
        plain = dequantised(torch, weight, torch.float32).t()
        run, errors = maker(torch, dtype, weight), []
        for tokens in CHECKED_TOKENS:
            x = exact_activations(torch, device, dtype, scheme, tokens, inputs)
            errors.append(relative_error(run(x), x.float() @ plain))
        return max(errors)

    makers = KERNELS[scheme.kind]
    return first_right(
        device, {name: partial(error, maker) for name, maker in makers.items()}, ANYWHERE
    )
