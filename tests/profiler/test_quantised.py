"""Quantised weights: what they mean, kernels against plain math, and models measured on the CPU,
then simulated.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from llmsim.model import Dtypes, Layout, load_model, operators, resolve_dtypes
from llmsim.profiler.bundle.plan import Limits
from llmsim.profiler.cli.measure import MeasureOptions, measure
from tests.profiler.tiny_models import TINY, column, simulated, written
from tests.profiler.tiny_models import measured as measured_within

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed (extra llmsim[profiler])"
)

from llmsim.profiler.kernels import quantised_kernels  # noqa: E402
from llmsim.profiler.kernels.choice import relative_error  # noqa: E402
from llmsim.profiler.kernels.quantised import (  # noqa: E402
    Scheme,
    dequantised,
    exact_activations,
    make_weight,
    scheme_of,
)
from llmsim.profiler.moe.expert_kernels import activated  # noqa: E402
from llmsim.profiler.moe.experts import Experts, usable_kernel  # noqa: E402
from llmsim.profiler.rank.rank import expert_form  # noqa: E402

CPU, FP32 = torch.device("cpu"), Dtypes("fp32", "fp32", "fp32")
BLOCKS = Scheme("fp8_block", "fp8", (128, 128))
SCHEMES = (
    Scheme("fp8", "fp8"),
    BLOCKS,
    Scheme("fp8_block", "fp8", (16, 32)),
    Scheme("grouped", "fp8", (1, 32)),
    Scheme("int8", "int8"),
    Scheme("grouped", "int8", (1, 64)),
    Scheme("mxfp4", "fp4", (1, 32)),
    Scheme("nvfp4", "fp4", (1, 16)),
    Scheme("int4", "int4", (1, 32)),
    Scheme("int4", "int4"),
)
SMALL = Limits(max_tokens=2, max_seqs=2, max_kv=16, chunk_factor=4.0, kv_factor=4.0)


@pytest.fixture(autouse=True)
def no_gradients() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


def plain(weight: Any, row: int, column: int) -> float:
    """One weight, by the definition of its format."""
    scheme = weight.scheme
    rows, columns = scheme.block or (1, weight.inputs)
    scale = weight.scale[row // rows, column // columns].item()
    if scheme.kind == "mxfp4":
        scale = 2.0 ** (scale - 127)
    if not scheme.packed:
        return float(weight.data[row, column].float()) * scale
    nibble = int(weight.data[row, column // 2]) >> 4 * (column % 2) & 15
    if scheme.dtype == "int4":
        return (nibble - 8) * scale
    exponent, mantissa = nibble >> 1 & 3, nibble & 1
    value = (1 + mantissa / 2) * 2 ** (exponent - 1) if exponent else mantissa / 2
    return (-value if nibble & 8 else value) * scale


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_weights_mean_what_their_format_says(scheme: Scheme) -> None:
    torch.manual_seed(0)
    weight = make_weight(torch, CPU, scheme, 40, 96)
    found = dequantised(torch, weight, torch.float32)
    assert found.shape == (40, 96)
    for row in (0, 1, 17, 39):
        for at in (0, 1, 31, 32, 63, 95):
            assert float(found[row, at]) == plain(weight, row, at)
    assert 0.01 < float(found.std()) < 1 and len(found.unique()) > 10
    several = make_weight(torch, CPU, scheme, 40, 96, 3)
    assert torch.equal(
        dequantised(torch, several, torch.float32)[2],
        dequantised(torch, several.expert(2), torch.float32),
    )


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_of_the_cpu_agree_with_plain_math(scheme: Scheme, dtype: str) -> None:
    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    for outputs, inputs in ((64, 128), (48, 96), (192, 256)):
        x = exact_activations(torch, CPU, kind, scheme, 5, inputs)
        weight = make_weight(torch, CPU, scheme, outputs, inputs)
        wanted = x.float() @ dequantised(torch, weight, torch.float32).t()
        runs = [
            name
            for name in quantised_kernels.KERNELS[scheme.kind]
            if name in quantised_kernels.ANYWHERE
        ]
        for name in runs:
            found = quantised_kernels.KERNELS[scheme.kind][name](torch, kind, weight)(x)
            assert found.dtype == kind and relative_error(found, wanted) < 1e-2, name
        assert runs[-1] == "dequantised"


def test_a_wrong_product_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_scales(torch: Any, dtype: Any, weight: Any) -> Any:
        return lambda x: torch.nn.functional.linear(x, weight.data.to(dtype))

    kernels = quantised_kernels.KERNELS
    monkeypatch.setattr(
        quantised_kernels,
        "KERNELS",
        {**kernels, "fp8": {**kernels["fp8"], "scaled_mm": without_scales}},
    )
    name, reasons = quantised_kernels.usable_kernel(
        torch, CPU, torch.float32, Scheme("fp8", "fp8"), 600, 1000
    )
    assert (
        name == "dequantised"
        and "wrong by" in reasons["scaled_mm"]
        and "CUDA" in reasons["cutlass"]
    )


COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
}
INT8 = {**COMPRESSED, "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}}
FP8 = {**COMPRESSED, "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}
BLOCK_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
}
QWEN = {**TINY, "model_type": "qwen3", "hidden_size": 160, "head_dim": 32, "intermediate_size": 128}
MOE = {
    **QWEN,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
GPT_OSS = {
    **TINY,
    "model_type": "gpt_oss",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
CHECKPOINTS = {
    "fp8": (QWEN, FP8, "fp8"),
    "fp8_block": (QWEN, BLOCK_FP8, "fp8_block"),
    "int8": (QWEN, INT8, "int8"),
    "awq": (QWEN, AWQ, "int4"),
    "nvfp4": (QWEN, NVFP4, "nvfp4"),
    "experts-fp8": (MOE, FP8, "fp8"),
    "experts-fp8_block": (MOE, BLOCK_FP8, "fp8_block"),
    "gpt-oss": (GPT_OSS, MXFP4, "mxfp4"),
    "experts-int8": (MOE, INT8, "int8"),
    "experts-awq": (MOE, AWQ, "int4"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_quantised_model_is_measured_and_simulated(name: str, tmp_path: Path) -> None:
    fields, quantisation, kind = CHECKPOINTS[name]
    path = written(tmp_path, {**fields, "quantization_config": quantisation})
    model = load_model(str(path))
    dtypes = resolve_dtypes(model, "fp32")
    ops = [op for op in operators(model, Layout(1, 1), dtypes) if op.kind != "collective"]
    narrow = {op.name for op in ops if op.kind == "gemm" and op.weight_dtype != "fp32"}
    assert all(
        scheme_of(model, op.weight_dtype).kind == kind
        for op in ops
        if op.weight_dtype not in ("", "fp32")
    )
    folder = measured_within(path, limits=SMALL)
    assert folder.name == dtypes.weight
    meta = yaml.safe_load((folder / "meta.yaml").read_text())
    assert "weights are quantised" in meta["kernels"]["not_used"].get(
        "style engine", "weights are quantised"
    )
    assert meta["kernels"]["style"] != "engine", "whose model has wide weights"
    kernels = yaml.safe_load((folder / "meta.yaml").read_text())["kernels"]
    best = {"fp8": "scaled_mm", "int8": "int_mm"}.get(kind, "dequantised")
    assert {layer: kernels[layer] for layer in narrow} == dict.fromkeys(narrow, best)
    assert kernels["experts"] == (f"loop {best}" if model.num_moe_layers else "")
    assert narrow == set() if fields is GPT_OSS else {"qkv_proj", "o_proj"} <= narrow
    assert "moe_gate" not in narrow and "lm_head" not in narrow
    assert {op.name for op in ops if op.feature == "tokens" and op.kind != "moe"} == set(
        column(folder / "tp1" / "dense.csv", "layer")
    )
    found = simulated(path, [(6, 4), (12, 3)])
    assert [(int(row["input"]), int(row["output"])) for row in found] == [(6, 4), (12, 3)]


def test_weights_quantised_by_the_engine(tmp_path: Path) -> None:
    """--dtype fp8 of a model that is not quantised."""
    path = written(tmp_path, {**QWEN, "torch_dtype": "bfloat16"})
    folder = measured_within(path, limits=SMALL, dtype="fp8")
    assert folder.name == "fp8"
    assert yaml.safe_load((folder / "meta.yaml").read_text())["kernels"]["o_proj"] == "scaled_mm"
    measured_within(path, limits=SMALL, dtype="bf16", budget_minutes=1e-6)
    assert (folder.parent / "bf16" / "tp1").is_dir()


def test_weights_are_rotated_by_their_quantised_bytes(tmp_path: Path) -> None:
    from llmsim.profiler.rank.dense import Kernels

    blocks = {**BLOCK_FP8, "weight_block_size": [16, 16]}
    model = load_model(str(written(tmp_path, {**QWEN, "quantization_config": blocks})))
    ops = operators(model, Layout(2, 1), Dtypes("fp8", "fp32", "fp32"))
    op = next(op for op in ops if op.name == "gate_up_proj")
    turns = []
    for each, dtype in ((ops, "fp8"), ((), "fp32")):
        kernels = Kernels(
            torch,
            CPU,
            torch.float32,
            model,
            Layout(2, 1),
            style="eager",
            cache_bytes=1 << 14,
            model_bytes=1 << 30,
            ops=each,
        )
        work = kernels.work(op, 3)
        assert [part.shape for part in work()] == [(3, 64), (3, 64)], dtype  # type: ignore[attr-defined]
        turns.append(work.turns)  # type: ignore[attr-defined]
    bytes_of = op.gemm_n * op.gemm_k
    assert turns == [-(-(4 << 14) // (bytes_of + 2 * 4 * 10 * 4)), -(-(4 << 14) // (4 * bytes_of))]


@pytest.mark.parametrize("model_type", ["gpt_oss", "nemotron_h"])
def test_experts_have_the_activation_of_their_model(model_type: str, tmp_path: Path) -> None:
    from tests.profiler.test_linear_attention import NEMOTRON

    gpt = {**GPT_OSS, "quantization_config": MXFP4}
    model = load_model(str(written(tmp_path, gpt if model_type == "gpt_oss" else NEMOTRON)))
    op = next(
        op
        for op in operators(model, Layout(1, 1), resolve_dtypes(model, "fp32"))
        if op.name == "moe"
    )
    form = expert_form(model, op)
    assert form["activation"] == ("swigluoai" if model_type == "gpt_oss" else "relu2")
    kernel, _ = usable_kernel(torch, CPU, torch.float32, op, **form)
    experts = Experts(torch, CPU, torch.float32, op, kernel, **form)
    assert experts.error() < 1e-5 and experts.work(6, 3)().shape == (6, op.hidden)
    rows = experts._up.outputs if form["scheme"] else experts._up.shape[1]
    assert rows == op.moe_inter * (2 if model_type == "gpt_oss" else 1)


def test_activations_of_experts() -> None:
    y = torch.tensor([[1.0, -2.0, 9.0, 0.5]])
    assert torch.equal(activated(torch, "relu2", y), torch.tensor([[1.0, 0.0, 81.0, 0.25]]))
    gate, up = torch.tensor([[1.0, 7.0]]), torch.tensor([[-2.0, 0.5]])
    assert torch.allclose(
        activated(torch, "swigluoai", y), gate * torch.sigmoid(1.702 * gate) * (up + 1)
    )
    assert torch.allclose(
        activated(torch, "silu", y), torch.nn.functional.silu(y[:, :2]) * y[:, 2:]
    )


def test_a_cache_in_8_bits_is_refused(tmp_path: Path) -> None:
    from llmsim.config.errors import InputError

    scheme = {**FP8, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    path = written(tmp_path, {**QWEN, "quantization_config": scheme})
    assert load_model(str(path)).kv_cache_dtype == "fp8"
    with pytest.raises(InputError, match="keeps the KV cache in fp8"):
        measured_within(path, limits=SMALL)


def test_every_quantised_preset_has_its_scheme() -> None:
    kinds = {
        "MiniMaxAI/MiniMax-M2.5": "fp8_block",
        "Qwen/Qwen3-235B-A22B-FP8": "fp8_block",
        "openai/gpt-oss-20b": "mxfp4",
        "Qwen/Qwen3-32B-FP8": "fp8_block",
        "openai/gpt-oss-120b": "mxfp4",
        "deepseek-ai/DeepSeek-V3": "fp8_block",
    }
    for name, kind in kinds.items():
        model = load_model(name)
        assert scheme_of(model, model.weight_dtype).kind == kind


def test_latent_attention_over_quantised_projections(tmp_path: Path) -> None:
    from tests.profiler.test_measure_latent import LATENT

    blocks = {**BLOCK_FP8, "weight_block_size": [8, 8]}
    path = written(tmp_path, {**LATENT, "quantization_config": blocks})
    folder = measured_within(path, limits=SMALL)
    assert folder.name == "fp8" and len(simulated(path, [(6, 4)])) == 1
    kernels = yaml.safe_load((folder / "meta.yaml").read_text())["kernels"]
    assert kernels["o_proj"] == "dequantised" and kernels["attention"] == {"tp1": "sdpa"}


def test_experts_that_cannot_be_cut_are_spread(tmp_path: Path) -> None:
    """Blocks of 128 in experts of 128: four ranks hold whole experts, and the rest of the rank is
    what it was.
    """
    from llmsim.profiler.rank.rank import measured_operators, sharded

    blocked = load_model("Qwen/Qwen3-30B-A3B-FP8")
    assert (
        sharded(blocked, 2).ep,
        sharded(blocked, 4).ep,
        sharded(load_model("Qwen/Qwen3-30B-A3B"), 4).ep,
    ) == (
        1,
        4,
        1,
    )
    wide = load_model("Qwen/Qwen3-30B-A3B")
    ranks = [measured_operators(wide, Layout(4, ep), Dtypes()) for ep in (1, 4)]
    assert [op for op in ranks[0] if op.name != "moe"] == [
        op for op in ranks[1] if op.name != "moe"
    ]
    path = written(
        tmp_path,
        {
            **MOE,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "quantization_config": BLOCK_FP8,
        },
    )
    assert sharded(load_model(str(path)), 2).ep == 2
    folder = measure(
        MeasureOptions(
            str(path),
            "cpu",
            tmp_path / "perf",
            (1, 2),
            SMALL,
            dtype="fp32",
            device="cpu",
            threads=1,
            clock="cpu",
            skew=False,
        )
    )
    assert (
        len(column(folder / "tp1" / "moe.csv", "tokens")) > 0
        and (folder / "tp2" / "dense.csv").is_file()
    )
