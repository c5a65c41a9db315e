"""The kernels of latent attention: FlashAttention's, FlashMLA, Triton's for decodes, and PyTorch's
own for all.

As in vLLM 0.24 (`MLACommonImpl`): sequences with few new tokens attend on the compressed cache, as
many query heads on one key, the others with whole keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from llmsim.profiler.attention.kernels import LARGEST_GRAPH
from llmsim.profiler.attention.mla import LatentBuffers
from llmsim.profiler.attention.mla_prompts import flash_prompts, plain_prompts
from llmsim.profiler.attention.paged import Kernel, Part
from llmsim.profiler.kernels.work import Work, needs_cuda

Calls = Callable[[Any, LatentBuffers, Part], Work]
FLASH_NEW, FLASHMLA_NEW = 512, 128
"""New tokens up to which vLLM's backends take a prompt for a decode (`reorder_batch_threshold`)."""
FLASHMLA_PAGE = 64
TRITON_SPLIT = 512
"""Tokens that one thread block of Triton's kernel should have at least
(`TritonMLAImpl.forward_mqa`).
"""


def both(
    decodes: Calls, prompts: Calls, *, most_new: int = 1, uniform: bool = False
) -> Callable[[Any, Any], Work]:
    """One layer's call: the new latents stored, prompts by one kernel, decodes by another; returns
    both results.
    """

    def call(torch: Any, buffers: LatentBuffers) -> Work:
        count, last = buffers.decodes(most_new, uniform=uniform), len(buffers.batch)
        latents = decodes(torch, buffers, Part(buffers, slice(0, count))) if count else None
        whole = prompts(torch, buffers, Part(buffers, slice(count, last))) if count < last else None

        def run() -> tuple[Any, Any]:
            buffers.write()
            made = whole() if whole is not None else None
            return latents() if latents is not None else None, made

        return run

    return call


def joined_queries(torch: Any, buffers: LatentBuffers, part: Part) -> Work:
    """Absorbed and rotated parts of the queries next to each other: (tokens, heads, width)."""
    absorbed, rotated = buffers.absorbed[part.tokens], buffers.rotated_query[part.tokens]
    return lambda: torch.cat((absorbed, rotated), dim=-1)


def _flash_schedule(buffers: LatentBuffers, part: Part) -> dict[str, Any]:
    """What vLLM computes once a step, in steps of its largest graph with a limit to the parts of a
    sequence.
    """
    from vllm.config.attention import AttentionConfig
    from vllm.vllm_flash_attn import get_scheduler_metadata

    tokens = part.tokens.stop - part.tokens.start
    splits = (
        AttentionConfig().flash_attn_max_num_splits_for_cuda_graph if tokens <= LARGEST_GRAPH else 0
    )
    schedule = get_scheduler_metadata(
        batch_size=len(part),
        max_seqlen_q=part.most_new,
        max_seqlen_k=part.longest,
        num_heads_q=buffers.shape.heads,
        num_heads_kv=1,
        headdim=buffers.shape.rope_dim,
        cache_seqlens=part.used_k,
        qkv_dtype=buffers.query.dtype,
        headdim_v=buffers.shape.kv_rank,
        page_size=buffers.page,
        cu_seqlens_q=part.cu_q,
        causal=True,
        num_splits=splits,
    )
    return {"scheduler_metadata": schedule, "num_splits": splits}


def _flash_decodes(torch: Any, buffers: LatentBuffers, part: Part) -> Work:
    """FlashAttention 3 with the latents as values, whose product with the absorbed queries adds to
    the scores.
    """
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    rank = buffers.shape.kv_rank
    common: dict[str, Any] = {
        "q": buffers.rotated_query[part.tokens],
        "k": buffers.cache[..., rank:].unsqueeze(-2),
        "v": buffers.cache[..., :rank].unsqueeze(-2),
        "q_v": buffers.absorbed[part.tokens],
        "max_seqlen_q": part.most_new,
        "cu_seqlens_q": part.cu_q,
        "max_seqlen_k": part.longest,
        "seqused_k": part.used_k,
        "block_table": part.table,
        "softmax_scale": buffers.scale,
        "causal": True,
        "fa_version": 3,
    }
    with suppress(
        ImportError, AttributeError, TypeError
    ):  # a version of vLLM that schedules otherwise
        common |= _flash_schedule(buffers, part)
    return lambda: flash_attn_varlen_func(**common)


def _flash_missing(torch: Any, device: Any, dtype: Any) -> str:
    problem = needs_cuda(torch, device, dtype, "vllm")
    if problem:
        return problem
    from vllm.v1.attention.backends.fa_utils import flash_attn_supports_mla

    return (
        ""
        if flash_attn_supports_mla()
        else "vLLM's FlashAttention has no latent attention on this device"
    )


def _flashmla_missing(torch: Any, device: Any, dtype: Any) -> str:
    problem = needs_cuda(torch, device, dtype, "vllm")
    if problem:
        return problem
    from vllm.v1.attention.ops.flashmla import is_flashmla_dense_supported

    runs, why = is_flashmla_dense_supported()
    return "" if runs else str(why)


def _flashmla_decodes(torch: Any, buffers: LatentBuffers, part: Part) -> Work:
    """As many new tokens of each sequence; the kernel plans its work at its first call, vLLM's once
    a step.
    """
    from vllm.v1.attention.ops.flashmla import flash_mla_with_kvcache, get_mla_metadata

    heads, width = buffers.shape.heads, buffers.shape.width
    plan, _ = get_mla_metadata(part.used_k, part.most_new * heads, 1, is_fp8_kvcache=False)
    queries = joined_queries(torch, buffers, part)
    cache = buffers.cache.unsqueeze(-2)

    def run() -> Any:
        out, _ = flash_mla_with_kvcache(
            q=queries().view(len(part), part.most_new, heads, width),
            k_cache=cache,
            block_table=part.table,
            cache_seqlens=part.used_k,
            head_dim_v=buffers.shape.kv_rank,
            tile_scheduler_metadata=plan,
            softmax_scale=buffers.scale,
            causal=True,
            is_fp8_kvcache=False,
        )
        return out.flatten(0, 1)

    return run


def _triton_parts(torch: Any, device: Any, longest: int) -> int:
    """Into how many parts Triton's kernel cuts the longest sequence."""
    processors = (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 1
    )
    ideal = max(1, longest // TRITON_SPLIT)
    return int(min(1 << (ideal - 1).bit_length(), 2 * processors))


def _triton_decodes(torch: Any, buffers: LatentBuffers, part: Part) -> Work:
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

    rank, heads, count = buffers.shape.kv_rank, buffers.shape.heads, len(part)
    parts = _triton_parts(torch, buffers.device, part.longest)
    queries, cache = joined_queries(torch, buffers, part), buffers.cache.unsqueeze(2)
    make = {"dtype": buffers.query.dtype, "device": buffers.device}
    one = torch.ones((), dtype=torch.float32, device=buffers.device)

    def run() -> Any:
        out, sums = torch.zeros(count, heads, rank, **make), torch.zeros(count, heads, **make)
        partial = torch.empty(
            count, heads, parts, rank + 1, dtype=torch.float32, device=buffers.device
        )
        decode_attention_fwd(
            queries(),
            cache,
            cache[..., :rank],
            out,
            sums,
            part.table,
            part.used_k,
            partial,
            parts,
            buffers.scale,
            buffers.page,
            k_scale=one,
            v_scale=one,
            is_mla=True,
        )
        return out

    return run


def _plain_decodes(torch: Any, buffers: LatentBuffers, part: Part) -> Work:
    """Sequences of equal lengths in one call: a token's heads are queries that all see the same
    latents.
    """
    groups: dict[int, list[int]] = {}
    for index, length in enumerate(part.lengths):
        groups.setdefault(length, []).append(index)
    rank, sdpa = buffers.shape.kv_rank, torch.nn.functional.scaled_dot_product_attention
    plans = []
    for members in groups.values():
        rows = torch.tensor([part.tokens.start + index for index in members], device=buffers.device)
        plans.append(
            (
                rows - part.tokens.start,
                torch.cat([part.slots[index] for index in members]),
                len(members),
            )
        )
    queries = joined_queries(torch, buffers, part)
    out = torch.empty(
        len(part), buffers.shape.heads, rank, dtype=buffers.query.dtype, device=buffers.device
    )

    def run() -> Any:
        q = queries()
        for rows, slots, count in plans:
            latents = buffers.flat[slots].unflatten(0, (count, -1)).unsqueeze(1)
            out[rows] = sdpa(
                q[rows].unsqueeze(1), latents, latents[..., :rank], scale=buffers.scale
            ).squeeze(1)
        return out

    return run


def _vllm_missing(torch: Any, device: Any, dtype: Any) -> str:
    return needs_cuda(torch, device, dtype, "vllm")


LATENT_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "flash": Kernel(_flash_missing, both(_flash_decodes, flash_prompts, most_new=FLASH_NEW)),
        "flashmla": Kernel(
            _flashmla_missing,
            both(_flashmla_decodes, flash_prompts, most_new=FLASHMLA_NEW, uniform=True),
            page=lambda: FLASHMLA_PAGE,
        ),
        "triton": Kernel(_vllm_missing, both(_triton_decodes, flash_prompts)),
        "sdpa": Kernel(lambda torch, device, dtype: "", both(_plain_decodes, plain_prompts)),
    }
)
"""In vLLM's order of preference (Hopper)."""
