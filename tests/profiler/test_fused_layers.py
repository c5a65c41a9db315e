"""An engine's kernels for norms, rotation and gates: called as it calls them, in place of
elementary operations.
"""

import ast
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from llmsim.model import Dtypes, Layout, load_model, operators

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed (extra llmsim[profiler])"
)

from llmsim.profiler.kernels import fused_layers  # noqa: E402
from llmsim.profiler.kernels.fused_layers import FusedLayers  # noqa: E402
from llmsim.profiler.rank.dense import Kernels  # noqa: E402

CPU, FP32 = torch.device("cpu"), Dtypes("fp32", "fp32", "fp32")
GIVEN: dict[str, int] = {}
"""Function -> how many arguments it was given."""


def rms_norm(*given: Any) -> None:
    out, x, weight, epsilon = given
    GIVEN["rms_norm"] = len(given)
    out.copy_(x * (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * weight)


def fused_add_rms_norm(*given: Any) -> None:
    x, residual, weight, epsilon = given
    GIVEN["fused_add_rms_norm"] = len(given)
    residual += x
    rms_norm(x, residual.clone(), weight, epsilon)


def rotary_embedding(*given: Any) -> None:
    positions, query, key, dim, table, halves = given
    GIVEN["rotary_embedding"] = len(given)
    cos, sin = (part.unsqueeze(1) for part in table[positions].chunk(2, dim=-1))
    for x in (query, key):
        assert x.shape[-1] == dim
        one, other = (
            part.clone() for part in (x.chunk(2, dim=-1) if halves else (x[..., ::2], x[..., 1::2]))
        )
        places = x.chunk(2, dim=-1) if halves else (x[..., ::2], x[..., 1::2])
        places[0].copy_(one * cos - other * sin)
        places[1].copy_(other * cos + one * sin)


def silu_and_mul(out: Any, x: Any) -> None:
    gate, up = x.chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    GIVEN.clear()
    for name in ("vllm", "vllm._custom_ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    ops: Any = sys.modules["vllm._custom_ops"]
    ops.rms_norm, ops.fused_add_rms_norm, ops.rotary_embedding = (
        rms_norm,
        fused_add_rms_norm,
        rotary_embedding,
    )
    sys.modules["vllm"]._custom_ops = ops  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(silu_and_mul=silu_and_mul), raising=False)
    monkeypatch.setattr(fused_layers, "needs_cuda", lambda *given: "")


def test_a_kernel_is_used_only_where_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FusedLayers(torch, CPU, torch.float32).reasons == {}
    monkeypatch.setattr(
        torch.ops,
        "_C",
        SimpleNamespace(silu_and_mul=lambda out, x: out.copy_(x[..., : out.shape[-1]])),
    )
    sys.modules["vllm._custom_ops"].rotary_embedding = lambda *given: rotary_embedding(
        *given[:5], True
    )  # type: ignore[attr-defined]
    layers = FusedLayers(torch, CPU, torch.float32)
    assert (
        set(layers.reasons) == {"gated", "rotary of pairs"}
        and layers.has("rotary")
        and not layers.has("gated")
    )
    assert all("wrong by" in why for why in layers.reasons.values())
    monkeypatch.delattr(sys.modules["vllm._custom_ops"], "fused_add_rms_norm")
    assert "AttributeError" in FusedLayers(torch, CPU, torch.float32).reasons["add_norm"]


def test_without_a_gpu_operators_are_elementary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layers, "needs_cuda", lambda *given: "it needs a CUDA device")
    assert set(FusedLayers(torch, CPU, torch.float32).reasons.values()) == {
        "it needs a CUDA device"
    }


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B", "deepseek-ai/DeepSeek-V2-Lite"])
def test_operators_run_as_one_kernel_each(name: str) -> None:
    model = load_model(name)
    layers = FusedLayers(torch, CPU, torch.float32)
    made = Kernels(
        torch,
        CPU,
        torch.float32,
        model,
        Layout(4, 1),
        style="fused",
        cache_bytes=1,
        model_bytes=1,
        fused=layers,
    )
    ops = {op.name: op for op in operators(model, Layout(4, 1), FP32)}
    for op_name, kernel in (
        ("layernorm", "fused_add_rms_norm"),
        ("final_layernorm", "rms_norm"),
        ("rotary_emb", "rotary_embedding"),
        ("latent_norm" if model.latent else "qk_norm", "rms_norm"),
    ):
        GIVEN.clear()
        work = made.work(ops[op_name], 3)
        for _ in range(50):
            result = work()
        assert kernel in GIVEN
        assert all(
            torch.isfinite(part).all()
            for part in (result if isinstance(result, list) else [result])
        )
    act = next(op for op in ops.values() if op.name.endswith("act_fn"))
    assert made.work(act, 3)().shape == (3, act.write_bytes_per_token // 4)  # type: ignore[attr-defined]


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_takes_as_many_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    FusedLayers(torch, CPU, torch.float32)
    given = dict(GIVEN)
    for name in ("vllm", "vllm._custom_ops"):
        monkeypatch.delitem(sys.modules, name)
    root = find_spec("vllm")
    assert root is not None and root.submodule_search_locations
    source = (Path(root.submodule_search_locations[0]) / "_custom_ops.py").read_text(
        encoding="utf-8"
    )
    made = {
        node.name: node.args
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }
    assert set(given) == {"rms_norm", "fused_add_rms_norm", "rotary_embedding"}
    for name, count in given.items():
        places = made[name]
        assert len(places.args) - len(places.defaults) <= count <= len(places.args)
