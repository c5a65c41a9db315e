"""vLLM's kernels of quantised weights get what they want: doubles in plain math, and vLLM's own
signatures.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from llmsim.model import Dtypes, Layout, load_model, operators

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed (extra llmsim[profiler])"
)

from llmsim.profiler.kernels.choice import relative_error  # noqa: E402
from llmsim.profiler.kernels.quantised import Scheme, dequantised, exact_activations, make_weight  # noqa: E402
from llmsim.profiler.kernels.quantised_kernels import ANYWHERE, KERNELS  # noqa: E402
from llmsim.profiler.moe.expert_kernels import KERNELS as EXPERT_KERNELS  # noqa: E402
from llmsim.profiler.moe.experts import Experts  # noqa: E402
from tests.profiler.test_gpu_kernels import arguments_of, module  # noqa: E402

CPU = torch.device("cpu")
QUANT, MOE = "vllm.model_executor.layers.quantization.utils", "vllm.model_executor.layers.fused_moe"
Called = dict[str, dict[str, Any]]
SCHEMES = {
    "fp8": Scheme("fp8", "fp8"),
    "fp8_block": Scheme("fp8_block", "fp8", (128, 128)),
    "int8": Scheme("int8", "int8"),
    "mxfp4": Scheme("mxfp4", "fp4", (1, 32)),
    "nvfp4": Scheme("nvfp4", "fp4", (1, 16)),
    "int4": Scheme("int4", "int4", (1, 32)),
}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def groups(x: Any, group: int, **how: Any) -> tuple[Any, Any]:
    """Each `group` of a token with its scale, in rows or, for other kernels, in columns."""
    parts = x.float().unflatten(-1, (-1, group))
    scale = parts.abs().amax(-1) / 448
    narrow = (parts / scale[..., None]).flatten(-2).to(torch.float8_e4m3fn)
    return narrow, scale.t().contiguous().t() if how.get("column_major_scales") else scale


def token_scaled(x: Any, most: int, dtype: Any) -> tuple[Any, Any]:
    scale = x.float().abs().amax(-1, keepdim=True) / most
    return (x / scale).to(dtype), scale


def spread(scale: Any, shape: Any) -> Any:
    """vLLM's extended broadcasting: elements are repeated until the shape is full."""
    for dim, size in enumerate(shape):
        if scale.shape[dim] not in (1, size):
            scale = scale.repeat_interleave(-(-size // scale.shape[dim]), dim)
    return scale


def cutlass(a: Any, b: Any, scale_a: Any, scale_b: Any, out_dtype: Any) -> Any:
    assert b.stride(0) == 1, "columns of the weights lie together"
    if scale_a.shape[1] > 1:
        assert scale_a.stride(0) == 1
    return ((a.float() * spread(scale_a, a.shape)) @ (b.float() * spread(scale_b, b.shape))).to(
        out_dtype
    )


def triton(a: Any, b: Any, a_scale: Any, b_scale: Any, block: list[int], output_dtype: Any) -> Any:
    assert block == [128, 128] and a_scale.is_contiguous()
    return cutlass(a, b.t(), a_scale.t().contiguous().t(), b_scale.t(), output_dtype)


def by_flashinfer(input: Any, weight: Any, weight_scale: Any, out_dtype: Any) -> Any:
    assert len(input) < 32, "more tokens are DeepGEMM's"
    narrow, each = groups(input, 128, column_major_scales=True)
    return cutlass(narrow, weight.t(), each, weight_scale.t(), out_dtype)


def deep_gemm(narrow: Any, wide: Any, out: Any, is_deep_gemm_e8m0_used: bool) -> None:
    out.copy_(cutlass(narrow[0], wide[0].t(), narrow[1], wide[1].t(), out.dtype))


def repacked(b_q_weight: Any, perm: Any, size_k: int, size_n: int, num_bits: int) -> Any:
    """GPTQ's order undone: eight inputs in each int32, the first in its lowest bits."""
    assert (
        b_q_weight.shape == (size_k // 8, size_n)
        and b_q_weight.dtype == torch.int32
        and num_bits == 4
    )
    shifts = torch.arange(0, 32, 4)
    return (b_q_weight[:, None] >> shifts[None, :, None] & 15).reshape(size_k, size_n)


def prepared(layer: Any) -> None:
    mx = not hasattr(layer, "weight_global_scale")
    perm = torch.empty(0, dtype=torch.int32)
    columns, rows = layer.input_size_per_partition, layer.output_size_per_partition
    data = repacked(layer.weight.view(torch.int32).T.contiguous(), perm, columns, rows, 4)
    scale = layer.weight_scale.T.contiguous()
    scale = scale.view(torch.float8_e8m0fnu) if mx else scale
    layer.weight = torch.nn.Parameter(data, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scale.float(), requires_grad=False)
    layer.workspace = "space"
    if not mx:
        layer.weight_global_scale = torch.nn.Parameter(
            layer.weight_global_scale * 1.0, requires_grad=False
        )


def unpacked(data: Any, scale: Any, four_bit_float: bool) -> Any:
    values = E2M1[data.int()] if four_bit_float else data.float() - 8
    return values * scale.float().repeat_interleave(len(values) // len(scale), 0)


def marlin_fp4(
    input: Any,
    weight: Any,
    weight_scale: Any,
    workspace: Any,
    weight_global_scale: Any,
    size_n: int,
    size_k: int,
) -> Any:
    assert weight.shape == (size_k, size_n) and workspace == "space"
    return (input.float() @ unpacked(weight, weight_scale, True)).to(input.dtype)


def marlin_int4(
    input: Any,
    weight: Any,
    weight_scale: Any,
    weight_zp: Any,
    g_idx: Any,
    g_idx_sort_indices: Any,
    workspace: Any,
    wtype: Any,
    output_size_per_partition: int,
    input_size_per_partition: int,
    is_k_full: bool,
) -> Any:
    assert (
        wtype.id == 4
        and is_k_full
        and weight.shape == (input_size_per_partition, output_size_per_partition)
    )
    assert weight_zp.numel() == g_idx.numel() == g_idx_sort_indices.numel() == 0
    return (input.float() @ unpacked(weight, weight_scale, False)).to(input.dtype)


def permuted(s: Any, size_k: int, size_n: int, group_size: int) -> Any:
    assert s.shape == (size_k // group_size, size_n)
    return s


def fp4_quant(x: Any, scale: Any, is_sf_swizzled_layout: bool, backend: str) -> Any:
    assert is_sf_swizzled_layout and float(scale) == 1 and backend == "cutlass"
    parts = x.float().unflatten(-1, (-1, 16))
    each = parts.abs().amax(-1) / 6
    return parts / each[..., None], ("swizzled", each)


def fp4_mm(a: Any, b: Any, a_scale: Any, b_scale: Any, alpha: Any, out_dtype: Any) -> Any:
    assert float(alpha) == 1 and a_scale[0] == b_scale[0] == "swizzled"
    wide = torch.stack((b & 15, b >> 4), -1).flatten(-2)
    values = E2M1[wide.int()] * b_scale[1].float().repeat_interleave(16, -1)
    return ((a * a_scale[1][..., None]).flatten(-2) @ values.t()).to(out_dtype)


def mixture(x: Any, up: Any, down: Any, shares: Any, ids: Any, activation: str) -> Any:
    out = torch.zeros_like(x)
    for token, (chosen, weights) in enumerate(zip(ids.tolist(), shares.tolist(), strict=True)):
        for expert, share in zip(chosen, weights, strict=True):
            y = up[expert] @ x[token]
            if activation == "silu":
                gate, value = y.chunk(2)
                y = torch.nn.functional.silu(gate) * value
            elif activation == "relu2_no_mul":
                y = torch.relu(y) ** 2
            else:
                gate, value = y[::2].clamp(max=7), y[1::2].clamp(-7, 7)
                y = gate * torch.sigmoid(1.702 * gate) * (value + 1)
            out[token] += share * (down[expert] @ y)
    return out


def fused(
    hidden_states: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    activation: Any = None,
    quant_config: Any = None,
) -> Any:
    kind = activation.value if activation is not None else "silu"
    assert topk_ids.dtype == torch.int32 and topk_weights.dtype == torch.float32
    if quant_config is not None:
        w1, w2 = (
            data.float() * spread(quant_config[name], data.shape)
            for data, name in ((w1, "w1_scale"), (w2, "w2_scale"))
        )
    return mixture(hidden_states, w1, w2, topk_weights, topk_ids, kind)


def fused_marlin(
    hidden_states: Any,
    w1: Any,
    w2: Any,
    bias1: Any,
    bias2: Any,
    w1_scale: Any,
    w2_scale: Any,
    topk_weights: Any,
    topk_ids: Any,
    quant_type_id: int,
    activation: Any = None,
    global_scale1: Any = None,
    global_scale2: Any = None,
) -> Any:
    four_bit_float = quant_type_id == 2
    up, down = (
        torch.stack(
            [
                unpacked(one, scale, four_bit_float).t()
                for one, scale in zip(data, scales, strict=True)
            ]
        )
        for data, scales in ((w1, w1_scale), (w2, w2_scale))
    )
    if global_scale1 is not None:
        assert global_scale1.shape == global_scale2.shape == (len(w1),)
    kind = activation.value if activation is not None else "silu"
    return mixture(hidden_states, up, down, topk_weights, topk_ids, kind)


def swizzled(weight: Any, scale: Any) -> tuple[Any, Any, Any]:
    """(experts, inputs, outputs) in plain numbers, which stand for the order of the kernel."""
    values = E2M1[torch.stack((weight & 15, weight >> 4), -1).flatten(-2).int()]
    return (
        (values * torch.exp2(scale.float() - 127).repeat_interleave(32, -1)).transpose(1, 2),
        "flex",
        "scale",
    )


def of_gpt_oss(
    output_tensor: Any,
    hidden_states: Any,
    w1: Any,
    w2: Any,
    routing_data: Any,
    gather_indx: Any,
    scatter_indx: Any,
    topk: int,
    quant_config: Any,
) -> Any:
    assert quant_config["w1_scale"].weight_scale == quant_config["w2_scale"].weight_scale == "scale"
    assert quant_config["w1_bias"].shape == (len(w1), w1.shape[2]) and topk == gather_indx.shape[1]
    up, down = w1.transpose(1, 2), w2.transpose(1, 2)
    return output_tensor.copy_(
        mixture(hidden_states, up, down, scatter_indx, gather_indx, "swigluoai")
    )


def kept_config(**how: Any) -> dict[str, Any]:
    return how


MOE_ACTIVATION = SimpleNamespace(
    SWIGLUOAI=SimpleNamespace(value="swigluoai"), RELU2_NO_MUL=SimpleNamespace(value="relu2_no_mul")
)
DOUBLES: dict[str, dict[str, Any]] = {
    "vllm._custom_ops": {
        "cutlass_scaled_mm": cutlass,
        "gptq_marlin_repack": repacked,
        "scaled_fp8_quant": lambda x, use_per_token_if_dynamic: token_scaled(
            x, 448, torch.float8_e4m3fn
        ),
        "scaled_int8_quant": lambda x: (*token_scaled(x, 127, torch.int8), None),
        "scaled_fp4_quant": fp4_quant,
        "cutlass_scaled_fp4_mm": fp4_mm,
    },
    "vllm.scalar_type": {
        "scalar_types": SimpleNamespace(
            float4_e2m1f=SimpleNamespace(id=2), uint4b8=SimpleNamespace(id=4)
        ),
    },
    f"{QUANT}.fp8_utils": {
        "per_token_group_quant_fp8": groups,
        "w8a8_triton_block_scaled_mm": triton,
        "deepgemm_post_process_fp8_weight_block": lambda wq, ws, quant_block_shape, use_e8m0: (
            wq,
            ws,
        ),
    },
    f"{QUANT}.marlin_utils_fp4": {
        "prepare_fp4_layer_for_marlin": prepared,
        "apply_fp4_marlin_linear": marlin_fp4,
    },
    f"{QUANT}.marlin_utils": {
        "marlin_permute_scales": permuted,
        "apply_gptq_marlin_linear": marlin_int4,
        "marlin_make_workspace_new": lambda device: "space",
    },
    f"{QUANT}.nvfp4_utils": {"swizzle_blockscale": lambda scale: ("swizzled", scale)},
    "vllm.utils.deep_gemm": {
        "fp8_gemm_nt": deep_gemm,
        "is_deep_gemm_e8m0_used": lambda: False,
        "should_use_deepgemm_for_fp8_linear": lambda dtype, shape: (
            shape[0] % 64 == shape[1] % 128 == 0
        ),
        "DeepGemmQuantScaleFMT": None,
    },
    "vllm.utils.flashinfer": {
        "is_flashinfer_fp8_blockscale_gemm_supported": lambda: True,
        "should_use_flashinfer_for_blockscale_fp8_gemm": lambda have, out, x, kind, shape: (
            have and shape[1] % 128 == 0
        ),
        "flashinfer_fp8_blockscale_gemm": by_flashinfer,
    },
    MOE: {"fused_experts": fused},
    f"{MOE}.config": {
        "fp8_w8a8_moe_quant_config": kept_config,
        "int8_w8a8_moe_quant_config": kept_config,
        "mxfp4_w4a16_moe_quant_config": kept_config,
    },
    f"{MOE}.experts.gpt_oss_triton_kernels_moe": {
        "make_routing_data": lambda ids, shares, experts: (experts, ids, shares),
        "triton_kernel_fused_experts": of_gpt_oss,
    },
    f"{QUANT}.mxfp4_utils": {"_swizzle_mxfp4": swizzled},
    "vllm.utils.import_utils": {"has_triton_kernels": lambda: True},
    "triton_kernels.matmul_ogs": {"FlexCtx": SimpleNamespace, "PrecisionConfig": SimpleNamespace},
    f"{MOE}.activation": {"MoEActivation": MOE_ACTIVATION},
    f"{MOE}.experts.marlin_moe": {"fused_marlin_moe": fused_marlin},
}
FILES = {
    "cutlass_scaled_mm": ("_custom_ops.py", 2),
    "scaled_fp8_quant": ("_custom_ops.py", 1),
    "scaled_int8_quant": ("_custom_ops.py", 1),
    "scaled_fp4_quant": ("_custom_ops.py", 2),
    "cutlass_scaled_fp4_mm": ("_custom_ops.py", 6),
    "gptq_marlin_repack": ("_custom_ops.py", 0),
    "per_token_group_quant_fp8": (f"{QUANT}.fp8_utils", 2),
    "w8a8_triton_block_scaled_mm": (f"{QUANT}.fp8_utils", 5),
    "deepgemm_post_process_fp8_weight_block": (f"{QUANT}.fp8_utils", 0),
    "prepare_fp4_layer_for_marlin": (f"{QUANT}.marlin_utils_fp4", 1),
    "apply_fp4_marlin_linear": (f"{QUANT}.marlin_utils_fp4", 0),
    "marlin_permute_scales": (f"{QUANT}.marlin_utils", 0),
    "apply_gptq_marlin_linear": (f"{QUANT}.marlin_utils", 0),
    "marlin_make_workspace_new": (f"{QUANT}.marlin_utils", 1),
    "swizzle_blockscale": (f"{QUANT}.nvfp4_utils", 1),
    "should_use_deepgemm_for_fp8_linear": ("vllm.utils.deep_gemm", 2),
    "should_use_flashinfer_for_blockscale_fp8_gemm": ("vllm.utils.flashinfer", 5),
    "fused_experts": (f"{MOE}.fused_moe", 0),
    "fp8_w8a8_moe_quant_config": (f"{MOE}.config", 0),
    "int8_w8a8_moe_quant_config": (f"{MOE}.config", 0),
    "mxfp4_w4a16_moe_quant_config": (f"{MOE}.config", 0),
    "make_routing_data": (f"{MOE}.experts.gpt_oss_triton_kernels_moe", 3),
    "triton_kernel_fused_experts": (f"{MOE}.experts.gpt_oss_triton_kernels_moe", 4 + 3),
    "_swizzle_mxfp4": (f"{QUANT}.mxfp4_utils", 2),
    "fused_marlin_moe": (f"{MOE}.experts.marlin_moe", 0),
}
"""Where each function is, and how many of its arguments are given by their place."""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    """vLLM with these functions in plain math; what each was called with, by its name."""
    torch.set_grad_enabled(False)
    calls: Called = {}

    def kept(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*places: Any, **named: Any) -> Any:
            calls.setdefault(name, {}).update(named)
            assert name not in FILES or len(places) == FILES[name][1], name
            return function(*places, **named)

        return call

    parents = {
        ".".join(name.split(".")[:depth])
        for name in DOUBLES
        for depth in range(1, name.count(".") + 1)
    }
    for name in sorted(parents - DOUBLES.keys()):
        module(monkeypatch, name)
    for name, content in DOUBLES.items():
        made = {each: kept(each, it) if callable(it) else it for each, it in content.items()}
        module(monkeypatch, name, **made)
    for name in DOUBLES:  # `from package import module` looks for an attribute
        package, _, last = name.rpartition(".")
        monkeypatch.setattr(sys.modules[package], last, sys.modules[name], raising=False)
    return calls


def products(dtype: Any = None) -> None:
    """Every kernel of vLLM multiplies a matrix of each scheme."""
    for kind, scheme in SCHEMES.items():
        for name in KERNELS[kind].keys() - {*ANYWHERE, "scaled_mm_block"}:
            torch.manual_seed(2)
            for outputs, inputs in ((128, 256), (192, 128)):
                weight = make_weight(torch, CPU, scheme, outputs, inputs)
                run = KERNELS[kind][name](torch, torch.float32, weight)
                for tokens in (5, 33):
                    x = exact_activations(torch, CPU, torch.float32, scheme, tokens, inputs)
                    wanted = x @ dequantised(torch, weight, torch.float32).t()
                    assert relative_error(run(x), wanted) < 1e-5, (kind, name)


def mixtures() -> None:
    """Every kernel of vLLM for experts, with each activation."""
    model = load_model("mistralai/Mixtral-8x7B-v0.1")
    op = next(
        op
        for op in operators(model, Layout(1, 1), Dtypes("fp32", "fp32", "fp32"))
        if op.name == "moe"
    )
    small = replace(op, experts_local=4, moe_inter=64, hidden=128, topk=2)
    for kind, makers in EXPERT_KERNELS.items():
        for name in makers.keys() - {"grouped"}:
            for activation in ("silu", "relu2", "swigluoai")[2 * (name == "triton_kernels") :]:
                form: dict[str, Any] = {"scheme": SCHEMES.get(kind), "activation": activation}
                experts = Experts(torch, CPU, torch.float32, small, name, **form)
                assert experts.error() < 1e-5, (kind, name, activation)


def test_vllms_products_get_what_they_want(called: Called) -> None:
    products()


def test_vllms_experts_get_what_they_want(called: Called) -> None:
    mixtures()


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_takes_these_arguments(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    products()
    mixtures()
    monkeypatch.delitem(sys.modules, "vllm")
    for name, (place, given) in FILES.items():
        file = (
            place
            if place.endswith(".py")
            else f"{place.removeprefix('vllm.').replace('.', '/')}.py"
        )
        known, needed = arguments_of(str(Path(file)), name)
        assert called[name].keys() <= known, name
        assert len(needed - called[name].keys()) <= given, name
