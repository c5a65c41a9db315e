"""The kernels of a GPU are called as their packages want it: checked with doubles, and with vLLM's
own signatures.
"""

import ast
import dataclasses
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed (extra llmsim[profiler])"
)

from llmsim.profiler.attention.attention import Attention, HeadShape, reference  # noqa: E402
from llmsim.profiler.attention.kernels import KERNELS, LARGE_PAGE, PAGE, Buffers  # noqa: E402
from llmsim.profiler.moe import expert_kernels  # noqa: E402
from llmsim.profiler.moe.experts import Experts  # noqa: E402

CPU, SHAPE = torch.device("cpu"), HeadShape(4, 2, 16)
BATCH = [(5, 300), (1, 17), (1, 40)]


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    made = ModuleType(name)
    made.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, made)


def paged(seen: list[dict[str, Any]]) -> Any:
    """FlashAttention's function, in plain math, reading keys and values by the block table as it
    does.
    """

    def flash_attn_varlen_func(**given: Any) -> Any:
        seen.append(given)
        ends = given["cu_seqlens_q"].tolist()
        lengths = (
            given["seqused_k"].tolist()
            if "seqused_k" in given
            else given["cu_seqlens_k"].diff().tolist()
        )
        assert max(lengths) == given["max_seqlen_k"] and given["causal"]
        rows = []
        for index, length in enumerate(lengths):
            pages = given["block_table"][index]
            k, v = (
                given[name][pages.long()].flatten(0, 1)[:length].transpose(0, 1)
                for name in ("k", "v")
            )
            q = given["q"][ends[index] : ends[index + 1]].transpose(0, 1)
            assert q.shape[1] <= given["max_seqlen_q"]
            allowed = torch.ones(q.shape[1], length, dtype=torch.bool).tril(length - q.shape[1])
            k, v = (part.repeat_interleave(len(q) // len(k), 0) for part in (k, v))
            weights = (
                (q @ k.transpose(1, 2) * given["softmax_scale"])
                .masked_fill(~allowed, float("-inf"))
                .softmax(-1)
            )
            rows.append((weights @ v).transpose(0, 1))
        return torch.cat(rows)

    return flash_attn_varlen_func


@pytest.mark.parametrize("package", ["vllm", "flash_attn"])
def test_flash_attention_gets_its_pages(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    if package == "vllm":
        module(monkeypatch, "vllm.vllm_flash_attn", flash_attn_varlen_func=paged(seen))
        module(
            monkeypatch,
            "vllm.v1.attention.backends.fa_utils",
            get_flash_attn_version=lambda head_size: 3,
        )
        for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
            module(monkeypatch, name)
    else:
        monkeypatch.setitem(sys.modules, "vllm", None)
        module(monkeypatch, "flash_attn", flash_attn_varlen_func=paged(seen))
    kernel = KERNELS["flash"]
    buffers = Buffers(torch, CPU, torch.float32, SHAPE, BATCH, kernel.page())
    found_rows = kernel.call(torch, buffers)()
    assert torch.allclose(found_rows, reference(torch, buffers), atol=1e-4)
    (given,) = seen
    assert given["k"].shape[1] == (PAGE if package == "vllm" else LARGE_PAGE)
    assert given.get("fa_version") == (3 if package == "vllm" else None)


def test_steps_of_one_graph_may_split_sequences_and_larger_ones_choose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, Any]] = []
    plans: list[dict[str, Any]] = []
    for name in (
        "vllm",
        "vllm.v1",
        "vllm.v1.attention",
        "vllm.v1.attention.backends",
        "vllm.config",
    ):
        module(monkeypatch, name)
    module(
        monkeypatch,
        "vllm.v1.attention.backends.fa_utils",
        get_flash_attn_version=lambda head_size: 3,
    )
    settings = SimpleNamespace(flash_attn_max_num_splits_for_cuda_graph=32)
    module(monkeypatch, "vllm.config.attention", AttentionConfig=lambda: settings)
    module(
        monkeypatch, "vllm.vllm_flash_attn", flash_attn_varlen_func=paged(seen),
        get_scheduler_metadata=lambda **given: plans.append(given) or "plan",  # type: ignore[func-returns-value]
    )  # fmt: skip
    for batch, splits in ((BATCH, 32), ([(600, 0)], 0)):
        buffers = Buffers(torch, CPU, torch.float32, SHAPE, batch, PAGE)
        KERNELS["flash"].call(torch, buffers)()
        assert (seen[-1]["scheduler_metadata"], seen[-1]["num_splits"]) == ("plan", splits)
        assert plans[-1]["num_splits"] == splits and plans[-1]["page_size"] == PAGE
        assert plans[-1]["cache_seqlens"].tolist() == buffers.lengths


def test_only_what_transformers_does_has_large_pages() -> None:
    assert {name: kernel.page() for name, kernel in KERNELS.items() if name != "flash"} == {
        "triton": PAGE, "sdpa": PAGE, "packed": LARGE_PAGE,
    }  # fmt: skip
    attention = Attention(
        torch, CPU, torch.float32, SHAPE, "packed", layers=2, cache_bytes=1, layer_share=2
    )
    assert attention.work([(1, 8)])[0]().shape == (1, 4, 16)  # type: ignore[attr-defined]


def test_grouped_experts_agree_with_the_loop_and_never_ask_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from llmsim.model import Dtypes, Layout, load_model, operators

    model = load_model("mistralai/Mixtral-8x7B-v0.1")
    op = next(
        op
        for op in operators(model, Layout(1, 1), Dtypes("fp32", "fp32", "fp32"))
        if op.name == "moe"
    )
    small = replace(op, experts_local=4, moe_inter=16, hidden=8, topk=2)

    def grouped_mm(x: Any, weights: Any, offs: Any) -> Any:
        bounds = [0, *offs.tolist()]
        assert offs.dtype == torch.int32 and bounds[-1] == len(x)
        return torch.cat([x[a:b] @ weights[i] for i, (a, b) in enumerate(pairwise(bounds))])

    monkeypatch.setattr(torch, "_grouped_mm", grouped_mm, raising=False)
    monkeypatch.setattr(torch, "bincount", None)
    made = []
    for kernel in ("grouped", "loop"):
        torch.manual_seed(0)
        made.append(Experts(torch, CPU, torch.float32, small, kernel).work(6, 3)())
    assert torch.allclose(*made, atol=1e-6)


def arguments_of(file: str, name: str) -> tuple[set[str], set[str]]:
    """All arguments of a function of the installed vLLM, and those that must be given; its modules
    need a GPU.
    """
    root = find_spec("vllm")
    assert root is not None and root.submodule_search_locations
    source = (Path(root.submodule_search_locations[0]) / file).read_text(encoding="utf-8")
    made = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    names = [each.arg for each in made.args.args]
    return {*names, *(each.arg for each in made.args.kwonlyargs)}, set(
        names[: len(names) - len(made.args.defaults)]
    )


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_takes_these_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, set[str]] = {}

    def keep(name: str) -> Any:
        return lambda **arguments: given.update({name: set(arguments)})

    ops = "vllm.v1.attention.ops"
    module(
        monkeypatch, "vllm.vllm_flash_attn", flash_attn_varlen_func=keep("flash_attn_varlen_func"),
        get_scheduler_metadata=keep("get_scheduler_metadata"),
    )  # fmt: skip
    module(
        monkeypatch,
        "vllm.v1.attention.backends.fa_utils",
        get_flash_attn_version=lambda head_size: 3,
    )
    module(
        monkeypatch, f"{ops}.triton_unified_attention", unified_attention=keep("unified_attention")
    )
    module(monkeypatch, "vllm.model_executor.layers.fused_moe", fused_experts=keep("fused_experts"))
    buffers = Buffers(torch, CPU, torch.float32, dataclasses.replace(SHAPE, sinks=True), BATCH)
    for name in ("flash", "triton"):
        KERNELS[name].call(torch, buffers)()
    expert_kernels.KERNELS["wide"]["vllm"](torch, torch.float32, None, None, "silu")(
        None, None, None
    )
    for file, name in (
        ("vllm_flash_attn/flash_attn_interface.py", "flash_attn_varlen_func"),
        ("vllm_flash_attn/flash_attn_interface.py", "get_scheduler_metadata"),
        ("v1/attention/ops/triton_unified_attention.py", "unified_attention"),
        ("model_executor/layers/fused_moe/fused_moe.py", "fused_experts"),
    ):
        known, needed = arguments_of(file, name)
        assert name in given, f"{name} was not called"
        assert needed <= given[name] <= known
    assert {"scheduler_metadata", "num_splits", "s_aux"} <= given["flash_attn_varlen_func"]
    assert {"softmax_segm_output", "seq_threshold_3D", "sinks"} <= given["unified_attention"]
    assert (
        "head_size"
        in arguments_of("v1/attention/backends/fa_utils.py", "get_flash_attn_version")[0]
    )
