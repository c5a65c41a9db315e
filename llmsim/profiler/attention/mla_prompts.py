"""Prompts of latent attention: keys and values of the context are expanded, in parts, and attended
to by all heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from llmsim.profiler.attention.mla import LatentBuffers
from llmsim.profiler.attention.paged import Part, alike
from llmsim.profiler.kernels.work import Work

CONTEXT_PART = 64 * 1024
"""Cached tokens of all prompts together that vLLM expands at once
(`MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size`, for contexts beyond 8k)."""
CUDA_HOPPER = 9


def native_widths(torch: Any, device: Any, version: int | None) -> bool:
    """Whether this FlashAttention takes values of another width than keys; others get values with
    zeros behind.
    """
    if version == 4:
        return True
    return (
        version == 3
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] == CUDA_HOPPER
    )


def _flash(torch: Any, buffers: LatentBuffers) -> Callable[..., tuple[Any, Any]]:
    """(queries, keys, values, cu_q, cu_k, most_q, most_k, causal, whether the sums of exponentials
    are wanted).
    """
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    dim, v_dim = buffers.shape.query_dim, buffers.shape.v_dim
    version = get_flash_attn_version(head_size=dim)
    named = {} if version is None else {"fa_version": int(version)}
    pad = not native_widths(torch, buffers.device, version)

    def run(
        q: Any,
        k: Any,
        v: Any,
        cu: tuple[Any, Any],
        most: tuple[int, int],
        *,
        causal: bool,
        sums: bool,
    ) -> Any:
        if pad:
            v = torch.nn.functional.pad(v, [0, dim - v_dim], value=0)
        out = flash_attn_varlen_func(
            q=q,
            k=k,
            v=v,
            cu_seqlens_q=cu[0],
            cu_seqlens_k=cu[1],
            max_seqlen_q=most[0],
            max_seqlen_k=most[1],
            softmax_scale=buffers.scale,
            causal=causal,
            return_softmax_lse=sums,
            **named,
        )
        out, lse = out if sums else (out, None)
        return (out[..., :v_dim] if pad else out), lse

    return run


@dataclass(frozen=True)
class ContextPart:
    """Cached tokens of some prompts that are expanded at once."""

    tokens: int
    longest: int
    cu: Any
    owner: Any
    """Of each token, the prompt."""
    starts: Any
    """Of each prompt, its first token of this part."""


def context_parts(torch: Any, buffers: LatentBuffers, part: Part) -> list[ContextPart]:
    """The prompts' contexts, an equal share of the workspace for each, whole pages."""
    contexts = [cached for _, cached in part.batch]
    share = (
        CONTEXT_PART
        // max(1, sum(cached > 0 for cached in contexts))
        // buffers.page
        * buffers.page
    )
    made = {"dtype": torch.int32, "device": buffers.device}
    found = []
    for start in range(0, max(contexts), max(share, buffers.page)):
        sizes = [max(0, min(cached - start, max(share, buffers.page))) for cached in contexts]
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(**made)
        cu = torch.tensor([0, *accumulate(sizes)], **made)
        found.append(
            ContextPart(sum(sizes), max(sizes), cu, owner, torch.full((len(sizes),), start, **made))
        )
    return found


def flash_prompts(torch: Any, buffers: LatentBuffers, part: Part) -> Work:
    """FlashAttention over the new tokens, then over each part of the context; the results are
    merged.
    """
    flash, shape = _flash(torch, buffers), buffers.shape
    parts = context_parts(torch, buffers, part)
    query, rank = buffers.query[part.tokens], shape.kv_rank
    expanded, rotated = buffers.expanded[part.tokens], buffers.new[part.tokens, rank:]
    context = _context(torch, buffers, part, parts, flash) if parts else None
    cu, most = (part.cu_q, part.cu_q), (part.most_new, part.most_new)

    def run() -> Any:
        key, value = buffers.keys_values(expanded, rotated)
        out, lse = flash(query, key, value, cu, most, causal=True, sums=context is not None)
        return out if context is None else context(out, lse)

    return run


def _context(
    torch: Any,
    buffers: LatentBuffers,
    part: Part,
    parts: list[ContextPart],
    flash: Callable[..., tuple[Any, Any]],
) -> Callable[[Any, Any], Any]:
    from vllm import _custom_ops as ops
    from vllm.v1.attention.ops.merge_attn_states import merge_attn_states

    rank, query = buffers.shape.kv_rank, buffers.query[part.tokens]
    one = torch.ones((), dtype=torch.float32, device=buffers.device)
    most = max(each.tokens for each in parts)
    space = torch.empty(most, buffers.shape.width, dtype=query.dtype, device=buffers.device)

    def attended(each: ContextPart) -> tuple[Any, Any]:
        ops.gather_and_maybe_dequant_cache(
            src_cache=buffers.cache,
            dst=space,
            block_table=part.table,
            cu_seq_lens=each.cu,
            token_to_seq=each.owner,
            num_tokens=each.tokens,
            kv_cache_dtype="auto",
            scale=one,
            seq_starts=each.starts,
        )
        latents = space[: each.tokens]
        key, value = buffers.keys_values(buffers.expand(latents[:, :rank]), latents[:, rank:])
        lengths = (part.most_new, each.longest)
        return flash(query, key, value, (part.cu_q, each.cu), lengths, causal=False, sums=True)

    def run(suffix: Any, suffix_lse: Any) -> Any:
        before, before_lse = attended(parts[0])
        for each in parts[1:]:
            more, more_lse = attended(each)
            merged, merged_lse = torch.empty_like(before), torch.empty_like(before_lse)
            merge_attn_states(
                output=merged, output_lse=merged_lse, prefix_output=before, prefix_lse=before_lse,
                suffix_output=more, suffix_lse=more_lse,
            )  # fmt: skip
            before, before_lse = merged, merged_lse
        out = torch.empty_like(suffix)
        merge_attn_states(
            output=out,
            prefix_output=before,
            prefix_lse=before_lse,
            suffix_output=suffix,
            suffix_lse=suffix_lse,
        )
        return out

    return run


def plain_prompts(torch: Any, buffers: LatentBuffers, part: Part) -> Work:
    """PyTorch's attention, prompts of equal sizes in one call, over keys and values of context and
    new tokens.
    """
    rank, device = buffers.shape.kv_rank, buffers.device
    plans = []
    for (new, cached), members in alike(part.batch).items():
        rows = torch.cat(
            [torch.arange(part.starts[i], part.starts[i + 1], device=device) for i in members]
        )
        context = torch.cat([part.slots[i][:cached] for i in members])
        mask = (
            torch.ones(new, new + cached, dtype=torch.bool, device=device).tril(cached)
            if cached
            else None
        )
        plans.append((rows, context, mask, len(members)))
    query, expanded = buffers.query[part.tokens], buffers.expanded[part.tokens]
    rotated = buffers.new[part.tokens, rank:]
    out = torch.empty(*query.shape[:2], buffers.shape.v_dim, dtype=query.dtype, device=device)
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def joined(old: Any, new: Any, count: int) -> Any:
        return torch.cat((old.unflatten(0, (count, -1)), new.unflatten(0, (count, -1))), dim=1)

    def run() -> Any:
        for rows, context, mask, count in plans:
            latents, made, turned = buffers.flat[context], expanded[rows], rotated[rows]
            if len(latents):
                made = joined(buffers.expand(latents[:, :rank]), made, count).flatten(0, 1)
                turned = joined(latents[:, rank:], turned, count).flatten(0, 1)
            key, value = (
                x.unflatten(0, (count, -1)).transpose(1, 2)
                for x in buffers.keys_values(made, turned)
            )
            q = query[rows].unflatten(0, (count, -1)).transpose(1, 2)
            y = sdpa(q, key, value, attn_mask=mask, is_causal=mask is None, scale=buffers.scale)
            out[rows] = y.transpose(1, 2).flatten(0, 1)
        return out

    return run
