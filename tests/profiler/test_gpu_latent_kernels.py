"""The kernels for latent attention on a GPU get what their packages want: checked with doubles in
plain math that read caches by block tables, and with the installed vLLM's own signatures.
"""

import ast
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed (extra llmsim[profiler])"
)

from llmsim.profiler.attention import mla_prompts as latent_prompts  # noqa: E402
from llmsim.profiler.attention.attention import family_of  # noqa: E402
from llmsim.profiler.attention.indexer import IndexerBuffers, IndexerShape  # noqa: E402
from llmsim.profiler.attention.mla import LatentBuffers, LatentShape  # noqa: E402
from llmsim.profiler.attention.sparse_kernels import SparseBuffers, SparseShape  # noqa: E402

CPU = torch.device("cpu")
SHAPE, SPARSE, INDEXER = (
    LatentShape(4, 32, 16, 8, 12),
    SparseShape(4, 32, 16, 8, 12, 64),
    IndexerShape(4, 16, 512),
)
BATCH = [(700, 300), (5, 90), (1, 17), (1, 40)]
CALLS: dict[str, list[dict[str, Any]]] = {}
"""Function -> the arguments of each of its calls."""


def recorded(name: str, function: Any) -> Any:
    def call(*places: Any, **given: Any) -> Any:
        CALLS.setdefault(name, []).append({**dict(enumerate(places)), **given})
        return function(*places, **given)

    return call


def attended(q: Any, k: Any, v: Any, scale: float, shift: int | None) -> tuple[Any, Any]:
    """(results, logarithms of sums of exponentials) of (new, heads, dim) queries, causal behind
    `shift` cached ones.
    """
    scores = torch.einsum("qhd,khd->hqk", q, k.expand(-1, q.shape[1], -1)) * scale
    if shift is not None:
        scores = scores.masked_fill(
            ~torch.ones(scores.shape[1:], dtype=torch.bool).tril(shift), float("-inf")
        )
    weights = scores.softmax(-1).nan_to_num()
    return torch.einsum("hqk,khd->qhd", weights, v.expand(-1, q.shape[1], -1)), scores.logsumexp(-1)


def flash_attn_varlen_func(**given: Any) -> Any:
    ends_q = given["cu_seqlens_q"].tolist()
    outs, sums = [], []
    for index in range(len(ends_q) - 1):
        q = given["q"][ends_q[index] : ends_q[index + 1]]
        assert len(q) <= given["max_seqlen_q"]
        if "block_table" in given:
            length = int(given["seqused_k"][index])
            pages = given["block_table"][index].long()
            k, v = (given[name][pages].flatten(0, 1)[:length] for name in ("k", "v"))
            k, q = (
                torch.cat((k, v), dim=-1),
                torch.cat((q, given["q_v"][ends_q[index] : ends_q[index + 1]]), dim=-1),
            )
        else:
            ends_k = given["cu_seqlens_k"].tolist()
            k, v = (given[name][ends_k[index] : ends_k[index + 1]] for name in ("k", "v"))
            assert v.shape[-1] == k.shape[-1] or given.get("fa_version") == 4
        assert len(k) <= given["max_seqlen_k"]
        shift = len(k) - len(q) if given["causal"] else None
        out, lse = attended(q, k, v, given["softmax_scale"], shift)
        outs.append(out)
        sums.append(lse)
    if given.get("return_softmax_lse"):
        return torch.cat(outs), torch.cat(sums, dim=1)
    return torch.cat(outs)


def flash_mla_with_kvcache(**given: Any) -> Any:
    rank, rows = given["head_dim_v"], []
    assert given["tile_scheduler_metadata"] == "plan" and not given["is_fp8_kvcache"]
    for index, q in enumerate(given["q"]):
        length = int(given["cache_seqlens"][index])
        latents = given["k_cache"][given["block_table"][index].long()].flatten(0, 1)[:length]
        rows.append(
            attended(q, latents, latents[..., :rank], given["softmax_scale"], length - len(q))[0]
        )
    return torch.stack(rows), None


def decode_attention_fwd(  # vLLM's order of arguments
    q: Any,
    cache: Any,
    values: Any,
    out: Any,
    lse: Any,
    table: Any,
    lengths: Any,
    partial: Any,
    parts: int,
    scale: float,
    page: int,
    k_scale: Any,
    v_scale: Any,
    is_mla: bool,
) -> None:
    assert (
        is_mla
        and partial.shape == (len(q), q.shape[1], parts, values.shape[-1] + 1)
        and cache.shape[1] == page
    )
    for index, length in enumerate(lengths.tolist()):
        pages = table[index].long()
        latents, kept = (whole[pages].flatten(0, 1)[:length] for whole in (cache, values))
        out[index] = attended(q[index : index + 1], latents, kept, scale, None)[0][0]


def gather_and_maybe_dequant_cache(**given: Any) -> None:
    page, cu = given["src_cache"].shape[1], given["cu_seq_lens"].tolist()
    owners = given["token_to_seq"].tolist()
    assert given["num_tokens"] == cu[-1] == len(owners)
    for place, owner in enumerate(owners):
        position = int(given["seq_starts"][owner]) + place - cu[owner]
        block = int(given["block_table"][owner, position // page])
        given["dst"][place] = given["src_cache"][block, position % page]


def merge_attn_states(**given: Any) -> None:
    both = torch.stack((given["prefix_lse"], given["suffix_lse"]))
    weights = (both - both.logsumexp(0)).exp().transpose(1, 2).unsqueeze(-1)
    given["output"].copy_(weights[0] * given["prefix_output"] + weights[1] * given["suffix_output"])
    if "output_lse" in given:
        given["output_lse"].copy_(both.logsumexp(0))


def converted(
    owners: Any, table: Any, places: Any, BLOCK_SIZE: int, NUM_TOPK_TOKENS: int, **given: Any
) -> Any:
    assert (
        places.shape[1] == NUM_TOPK_TOKENS
        and NUM_TOPK_TOKENS % 128 == 0
        and given["return_valid_counts"]
    )
    assert owners.dtype == table.dtype == places.dtype == torch.int32
    slots = (
        table[owners.long()].long().gather(1, (places.clamp(min=0) // BLOCK_SIZE).long())
        * BLOCK_SIZE
    )
    return (slots + places.clamp(min=0) % BLOCK_SIZE).masked_fill(places < 0, -1), (
        places >= 0
    ).sum(1)


def flash_mla_sparse_fwd(q: Any, kv: Any, indices: Any, sm_scale: float, topk_length: Any) -> Any:
    assert q.shape[1] % 64 == 0 and indices.shape[1] == kv.shape[1] == 1
    rows = []
    for row, slots, count in zip(q, indices[:, 0], topk_length.tolist(), strict=True):
        latents = kv[slots[:count].long()]
        rows.append(attended(row.unsqueeze(0), latents, latents[..., :32], sm_scale, None)[0][0])
    return torch.stack(rows), None, None


def concat_mla_q(plain: Any, rotated: Any, out: Any) -> None:
    out.copy_(torch.cat((plain, rotated), dim=-1))


def indexer_k_quant_and_cache(keys: Any, cache: Any, slots: Any, block: int, kind: str) -> None:
    assert (
        (block, kind) == (128, "ue8m0")
        and cache.dtype == torch.uint8
        and slots.dtype == torch.int64
    )
    flat = cache.view(-1, cache.shape[-1])
    flat[slots, : keys.shape[1]] = keys.to(torch.float8_e4m3fn).view(torch.uint8)
    flat[slots, keys.shape[1] :] = torch.ones(len(slots), 1).view(torch.uint8)


def cp_gather_indexer_k_quant_cache(
    cache: Any, keys: Any, scales: Any, table: Any, cu: Any
) -> None:
    for index, (first, last) in enumerate(zip(cu.tolist(), cu.tolist()[1:], strict=False)):
        found = cache[table[index].long()].flatten(0, 1)[: last - first]
        keys[first:last] = found[:, : keys.shape[1]].contiguous().view(torch.float8_e4m3fn)
        scales[first:last] = found[:, keys.shape[1] :]


def mqa_logits(
    query: Any, pair: Any, weights: Any, begin: Any, end: Any, clean_logits: bool
) -> Any:
    keys = pair[0].float() * pair[1].unsqueeze(1)
    products = torch.einsum("qhd,kd->qhk", query[0].float(), keys).relu()
    assert query[1] is None and len(begin) == len(end) == len(weights)
    return torch.einsum("qhk,qh->qk", products, weights)


def paged_mqa_logits(
    query: Any,
    cache: Any,
    weights: Any,
    lengths: Any,
    table: Any,
    plan: Any,
    max_model_len: int,
    clean_logits: bool,
) -> Any:
    assert plan == "plan" and lengths.shape == (len(weights), 1)
    dim, rows = query[0].shape[-1], torch.full((len(weights), max_model_len), float("nan"))
    for index, (length,) in enumerate(lengths.tolist()):
        keys = (
            cache[table[index].long()]
            .flatten(0, 2)[:length, :dim]
            .contiguous()
            .view(torch.float8_e4m3fn)
            .float()
        )
        products = torch.einsum("qhd,kd->qhk", query[0][index].float(), keys).relu()
        rows[index, :length] = torch.einsum("qhk,qh->qk", products, weights[index : index + 1])[0]
    return rows


def top_k_per_row_prefill(
    found: Any, begin: Any, end: Any, picks: Any, rows: int, *rest: int
) -> None:
    for row, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        count = min(rest[2], last - first)
        picks[row, :count] = found[row, first:last].topk(count).indices.to(torch.int32)
    assert rows == len(found) and rest[:2] == found.stride()


def persistent_topk(
    found: Any, lengths: Any, picks: Any, space: Any, topk: int, longest: int
) -> None:
    assert int(lengths.max()) == longest and space.dtype == torch.uint8
    for row, (length,) in enumerate(lengths.tolist()):
        picks[row, : min(topk, length)] = (
            found[row, :length].topk(min(topk, length)).indices.to(torch.int32)
        )


def top_k_per_row_decode(
    found: Any, new: int, lengths: Any, picks: Any, rows: int, *rest: int
) -> None:
    assert (new, rows) == (1, len(found))
    persistent_topk(
        found, lengths, picks, torch.empty(0, dtype=torch.uint8), rest[2], int(lengths.max())
    )


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    CALLS.clear()
    here = globals()

    def module(name: str, *functions: str, **content: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(
            {function: recorded(function, here[function]) for function in functions} | content
        )
        monkeypatch.setitem(sys.modules, name, made)

    attention = "vllm.v1.attention"
    for name in (
        "vllm",
        "vllm.v1",
        attention,
        f"{attention}.backends",
        f"{attention}.ops",
        f"{attention}.backends.mla",
    ):
        module(name)
    for name in ("vllm.config", "vllm.utils"):
        module(name)
    splits = SimpleNamespace(flash_attn_max_num_splits_for_cuda_graph=32)
    module("vllm.config.attention", AttentionConfig=lambda: splits)
    plan = recorded("get_scheduler_metadata", lambda **given: "plan")
    module("vllm.vllm_flash_attn", "flash_attn_varlen_func", get_scheduler_metadata=plan)
    module(f"{attention}.backends.fa_utils", get_flash_attn_version=lambda head_size: 3)
    mla_plan = recorded("get_mla_metadata", lambda *given, **named: ("plan", None))
    module(
        f"{attention}.ops.flashmla",
        "flash_mla_with_kvcache",
        "flash_mla_sparse_fwd",
        get_mla_metadata=mla_plan,
    )
    module(f"{attention}.ops.triton_decode_attention", "decode_attention_fwd")
    module(f"{attention}.ops.merge_attn_states", "merge_attn_states")
    convert = recorded("triton_convert_req_index_to_global_index", converted)
    module(
        f"{attention}.backends.mla.sparse_utils", triton_convert_req_index_to_global_index=convert
    )
    module(
        "vllm._custom_ops",
        "gather_and_maybe_dequant_cache",
        "concat_mla_q",
        "indexer_k_quant_and_cache",
        "cp_gather_indexer_k_quant_cache",
        "top_k_per_row_prefill",
        "top_k_per_row_decode",
    )
    sys.modules["vllm"]._custom_ops = sys.modules["vllm._custom_ops"]  # type: ignore[attr-defined]
    indexer_plan = recorded("get_paged_mqa_logits_metadata", lambda *given: "plan")
    module(
        "vllm.utils.deep_gemm", fp8_fp4_mqa_logits=recorded("fp8_fp4_mqa_logits", mqa_logits),
        fp8_fp4_paged_mqa_logits=recorded("fp8_fp4_paged_mqa_logits", paged_mqa_logits),
        get_paged_mqa_logits_metadata=indexer_plan,
    )  # fmt: skip
    monkeypatch.setattr(
        torch.ops, "_C", SimpleNamespace(persistent_topk=persistent_topk), raising=False
    )


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize(
    ("kernel", "prompts"), [("flash", [700]), ("flashmla", [5, 700]), ("triton", [5, 700])]
)
def test_kernels_read_pages_and_merge_the_context(
    kernel: str, prompts: list[int], version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latent_prompts, "CONTEXT_PART", 256)  # the context of 300 in several parts
    fa_utils: Any = sys.modules["vllm.v1.attention.backends.fa_utils"]
    fa_utils.get_flash_attn_version = lambda head_size: version
    family = family_of(SHAPE)
    chosen = family.kernels[kernel]
    buffers = LatentBuffers(torch, CPU, torch.float32, SHAPE, BATCH, chosen.page())
    assert family.error(torch, buffers, chosen.call(torch, buffers)()) < 1e-5
    whole = [call for call in CALLS["flash_attn_varlen_func"] if "block_table" not in call]
    assert [call["causal"] for call in whole] == [True] + [False] * (len(whole) - 1) and len(
        whole
    ) >= 3
    assert whole[0]["cu_seqlens_q"].diff().tolist() == prompts, (
        "shorter prompts go with the decodes"
    )
    assert all(call["fa_version"] == version for call in whole)
    assert whole[0]["v"].shape[-1] == (SHAPE.v_dim if version == 4 else SHAPE.query_dim)
    given = [key for key in CALLS["merge_attn_states"][0] if isinstance(key, str)]
    assert "output" in given and len(CALLS["merge_attn_states"]) == len(whole) - 1


def test_flash_attention_is_planned_once_a_step() -> None:
    family = family_of(SHAPE)
    for batch, splits in (([(1, 30), (1, 9)], 32), ([(1, 9), (512, 0)], 0)):
        CALLS.clear()
        buffers = LatentBuffers(torch, CPU, torch.float32, SHAPE, batch)
        call = family.kernels["flash"].call(torch, buffers)
        assert family.error(torch, buffers, call()) < 1e-5
        call()
        (plan,) = CALLS["get_scheduler_metadata"]
        assert plan["num_splits"] == splits and (plan["headdim"], plan["headdim_v"]) == (8, 32)
        first, second = CALLS["flash_attn_varlen_func"]
        assert first["scheduler_metadata"] == second["scheduler_metadata"] == "plan"


def test_sparse_attention_pads_heads_and_gets_slots() -> None:
    family = family_of(SPARSE)
    for batch in (BATCH[1:], [(40, 100)], [(1, 200)] * 3):
        buffers = SparseBuffers(
            torch, CPU, torch.float32, SPARSE, batch, family.kernels["flashmla"].page()
        )
        assert (
            family.error(torch, buffers, family.kernels["flashmla"].call(torch, buffers)()) < 1e-5
        )
        assert buffers.page == 64 and buffers.chosen.shape[1] % 128 == 0


@pytest.mark.parametrize("topk", [512, 100])
def test_the_indexers_kernels_choose_the_best(topk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "llmsim.profiler.attention.indexer.LARGEST_SCORES", 4 * 700 * 2
    )  # prompts in slices of two queries
    shape = IndexerShape(4, 16, topk)
    family = family_of(shape)
    for batch in ([(5, 600), (1, 7), (1, 590), (3, 40)], [(1, 600)] * 2, [(4, 700)]):
        buffers = IndexerBuffers(
            torch, CPU, torch.float32, shape, batch, family.kernels["deepgemm"].page()
        )
        call = family.kernels["deepgemm"].call(torch, buffers)
        call()
        assert family.error(torch, buffers, call()) < 0.02, "scores are of keys and queries in fp8"
    assert ("top_k_per_row_decode" in CALLS) == (topk == 100)


def signature(file: str, name: str) -> ast.arguments:
    """Of a function of the installed vLLM, whose modules need a GPU."""
    root = find_spec("vllm")
    assert root is not None and root.submodule_search_locations
    source = (Path(root.submodule_search_locations[0]) / file).read_text(encoding="utf-8")
    return next(
        node.args
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )


OPS, ATTENTION = "_custom_ops.py", "v1/attention"
FUNCTIONS = {
    "flash_attn_varlen_func": "vllm_flash_attn/flash_attn_interface.py",
    "get_scheduler_metadata": "vllm_flash_attn/flash_attn_interface.py",
    "flash_mla_with_kvcache": "third_party/flashmla/flash_mla_interface.py",
    "flash_mla_sparse_fwd": "third_party/flashmla/flash_mla_interface.py",
    "decode_attention_fwd": f"{ATTENTION}/ops/triton_decode_attention.py",
    "merge_attn_states": f"{ATTENTION}/ops/merge_attn_states.py",
    "triton_convert_req_index_to_global_index": f"{ATTENTION}/backends/mla/sparse_utils.py",
    **dict.fromkeys(
        (
            "gather_and_maybe_dequant_cache",
            "concat_mla_q",
            "indexer_k_quant_and_cache",
            "top_k_per_row_decode",
            "cp_gather_indexer_k_quant_cache",
            "top_k_per_row_prefill",
        ),
        OPS,
    ),
    **dict.fromkeys(
        ("fp8_fp4_mqa_logits", "fp8_fp4_paged_mqa_logits", "get_paged_mqa_logits_metadata"),
        "utils/deep_gemm.py",
    ),
}


@pytest.fixture
def calls_of_all() -> dict[str, list[dict[str, Any]]]:
    for shape, make in (
        (SHAPE, LatentBuffers),
        (SPARSE, SparseBuffers),
        (IndexerShape(4, 16, 100), IndexerBuffers),
    ):
        family: Any = family_of(shape)  # type: ignore[arg-type]
        for name in {"flash", "flashmla", "triton", "deepgemm"} & set(family.kernels):
            kernel = family.kernels[name]
            kernel.call(torch, make(torch, CPU, torch.float32, shape, BATCH[1:], kernel.page()))()  # type: ignore[arg-type]
    return dict(CALLS)


def test_the_installed_vllm_takes_these_arguments(
    calls_of_all: dict[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    assert set(calls_of_all) >= set(FUNCTIONS), "every function was called"
    for name, file in FUNCTIONS.items():
        made = signature(file, name)
        places = [each.arg for each in made.args]
        needed = set(places[: len(places) - len(made.defaults)])
        for call in calls_of_all[name]:
            given = {places[key] if isinstance(key, int) else key for key in call}
            assert needed <= given <= {*places, *(each.arg for each in made.kwonlyargs)}, name
