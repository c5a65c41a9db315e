"""The attention kernels: FlashAttention, Triton, SDPA per sequence, and SDPA over the packed batch.

Each entry of `KERNELS` says why it cannot run here, prepares one call over `Buffers`, and what
happens once a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from llmsim.profiler.attention.paged import PAGE, Batch, Kernel, Paged
from llmsim.profiler.kernels.work import Work, needs_cuda

if TYPE_CHECKING:
    from llmsim.profiler.attention.attention import HeadShape

LARGEST_GRAPH = 512
"""Tokens of the largest step that vLLM replays as one CUDA graph unless it is told otherwise."""
LARGE_PAGE = 256
"""What the flash_attn package can read, and what transformers' continuous batching uses."""


class Buffers(Paged):
    """Queries, new keys and values, and a paged cache of both, for one batch."""

    def __init__(
        self, torch: Any, device: Any, dtype: Any, shape: HeadShape, batch: Batch, page: int = PAGE
    ) -> None:
        super().__init__(torch, device, batch, page)
        self.shape = shape
        make = {"device": device, "dtype": dtype}
        heads = (shape.kv_heads, shape.head_dim)
        self.query = torch.randn(self.tokens, shape.heads, shape.head_dim, **make)
        self.new_kv = [torch.randn(self.tokens, *heads, **make) for _ in range(2)]
        self.sinks = torch.randn(shape.heads, **make) if shape.sinks else None
        self.packed_mask: Any = None
        self.cache = [torch.randn(self.num_pages, page, *heads, **make) for _ in range(2)]
        self.flat = [part.view(-1, *heads) for part in self.cache]
        self.write()

    @property
    def scale(self) -> float:
        """Of the scores."""
        return 1.0 / math.sqrt(self.shape.head_dim)

    def write(self) -> None:
        """Stores the new keys and values, as every layer does."""
        for flat, new in zip(self.flat, self.new_kv, strict=True):
            flat.index_copy_(0, self.write_index, new)

    def query_of(self, index: int) -> Any:
        """Queries of one sequence, (new, heads, head_dim)."""
        return self.query[self.starts[index] : self.starts[index + 1]]

    def keys_values_of(self, index: int) -> list[Any]:
        """All keys and values of one sequence, (tokens, kv_heads, head_dim) each."""
        return [flat[self.slots[index]] for flat in self.flat]


def _flash_missing(torch: Any, device: Any, dtype: Any) -> str:
    reasons = [needs_cuda(torch, device, dtype, package) for package in ("vllm", "flash_attn")]
    return "" if "" in reasons else reasons[0]


def _flash_page() -> int:
    """That of vLLM's build, where there is one."""
    try:
        import vllm.vllm_flash_attn  # noqa: F401
    except ImportError:
        return LARGE_PAGE
    return PAGE


def _flash_version(buffers: Buffers) -> dict[str, int]:
    """The version that vLLM runs on this device (3 on Hopper); its function takes 2 where none is
    named.
    """
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

    version = get_flash_attn_version(head_size=buffers.shape.head_dim)
    return {} if version is None else {"fa_version": int(version)}


def _flash_schedule(buffers: Buffers) -> dict[str, Any]:
    """What vLLM computes once a step for version 3: without it every layer's call computes it
    again.

    In steps that fit its largest CUDA graph vLLM lets the kernel split a sequence into a fixed
    number of parts at most.
    """
    from vllm.config.attention import AttentionConfig
    from vllm.vllm_flash_attn import get_scheduler_metadata

    splits = (
        AttentionConfig().flash_attn_max_num_splits_for_cuda_graph
        if len(buffers.query) <= LARGEST_GRAPH
        else 0
    )
    schedule = get_scheduler_metadata(
        batch_size=len(buffers.batch),
        max_seqlen_q=max(q for q, _ in buffers.batch),
        max_seqlen_k=max(buffers.lengths),
        num_heads_q=buffers.shape.heads,
        num_heads_kv=buffers.shape.kv_heads,
        headdim=buffers.shape.head_dim,
        cache_seqlens=buffers.used_k,
        qkv_dtype=buffers.query.dtype,
        cu_seqlens_q=buffers.cu_q,
        page_size=buffers.page,
        causal=True,
        window_size=(-1, -1),
        num_splits=splits,
    )
    return {"scheduler_metadata": schedule, "num_splits": splits}


def _flash_call(torch: Any, buffers: Buffers) -> Work:
    common: dict[str, Any] = {
        "q": buffers.query,
        "k": buffers.cache[0],
        "v": buffers.cache[1],
        "cu_seqlens_q": buffers.cu_q,
        "max_seqlen_q": max(q for q, _ in buffers.batch),
        "max_seqlen_k": max(buffers.lengths),
        "softmax_scale": buffers.scale,
        "causal": True,
        "block_table": buffers.table,
    }
    if buffers.sinks is not None:
        common["s_aux"] = buffers.sinks
    if _flash_page() == PAGE:
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        common |= {
            "seqused_k": buffers.used_k,
            "out": torch.empty_like(buffers.query),
            **_flash_version(buffers),
        }
        if common.get("fa_version") == 3:
            with suppress(
                ImportError, AttributeError, TypeError
            ):  # a version of vLLM that schedules otherwise
                common |= _flash_schedule(buffers)
    else:
        from flash_attn import flash_attn_varlen_func

        common["cu_seqlens_k"] = buffers.cu_k

    def run() -> Any:
        buffers.write()
        return flash_attn_varlen_func(**common)

    return run


def _triton_segments(torch: Any, buffers: Buffers) -> dict[str, Any]:
    """What the kernel needs to spread a long context over the device where there are few sequences;
    as vLLM's backend makes it. Without it such a decode runs on one block per KV head and sequence.
    """
    from vllm.v1.attention.backends.triton_attn import (
        MIN_LAUNCH_GRID_SIZE_2D,
        NUM_PAR_SOFTMAX_SEGMENTS,
    )

    most = MIN_LAUNCH_GRID_SIZE_2D // buffers.shape.kv_heads
    shape = (most, buffers.shape.heads, NUM_PAR_SOFTMAX_SEGMENTS)
    make = {"dtype": torch.float32, "device": buffers.query.device}
    return {
        "seq_threshold_3D": most,
        "num_par_softmax_segments": NUM_PAR_SOFTMAX_SEGMENTS,
        "softmax_segm_output": torch.empty(
            *shape, 1 << (buffers.shape.head_dim - 1).bit_length(), **make
        ),
        "softmax_segm_max": torch.empty(*shape, **make),
        "softmax_segm_expsum": torch.empty(*shape, **make),
    }


def _triton_call(torch: Any, buffers: Buffers) -> Work:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    out = torch.empty_like(buffers.query)
    common: dict[str, Any] = {
        "q": buffers.query,
        "k": buffers.cache[0],
        "v": buffers.cache[1],
        "out": out,
        "cu_seqlens_q": buffers.cu_q,
        "max_seqlen_q": max(q for q, _ in buffers.batch),
        "seqused_k": buffers.used_k,
        "max_seqlen_k": max(buffers.lengths),
        "softmax_scale": buffers.scale,
        "causal": True,
        "window_size": (-1, -1),
        "block_table": buffers.table,
        "softcap": 0.0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
    }
    if buffers.sinks is not None:
        common["sinks"] = buffers.sinks
    with suppress(ImportError, AttributeError):  # a version of vLLM without segments
        common |= _triton_segments(torch, buffers)

    def run() -> Any:
        buffers.write()
        unified_attention(**common)
        return out

    return run


def _with_sinks(torch: Any, buffers: Buffers, parts: tuple[Any, Any, Any], mask: Any) -> Any:
    """Of (sequences, heads, tokens, head_dim): as transformers attends where each head has a sink,
    which PyTorch's kernel does not take.
    """
    assert buffers.sinks is not None, "the caller looked"
    q, k, v = parts
    share = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(share, 1) for part in (k, v))
    scores = q @ k.transpose(-1, -2) * buffers.scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    sinks = buffers.sinks[None, :, None, None].expand(len(q), -1, q.shape[2], 1)
    return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1] @ v


def _sdpa_call(torch: Any, buffers: Buffers) -> Work:
    """Sequences of equal sizes in one call each; keys and values gathered from their pages."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, sizes in enumerate(buffers.batch):
        groups.setdefault(sizes, []).append(index)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    gqa = buffers.shape.heads != buffers.shape.kv_heads
    device = buffers.query.device
    plans = []
    for (new, cached), members in groups.items():
        rows = torch.cat(
            [torch.arange(buffers.starts[i], buffers.starts[i + 1], device=device) for i in members]
        )
        slots = torch.cat([buffers.slots[i] for i in members])
        mask = (
            None
            if new == 1
            else torch.ones(new, new + cached, dtype=torch.bool, device=device).tril(cached)
        )
        plans.append((rows, slots, mask, len(members)))
    out = torch.empty_like(buffers.query)

    def run() -> Any:
        buffers.write()
        for rows, slots, mask, count in plans:
            q = buffers.query[rows].unflatten(0, (count, -1)).transpose(1, 2)
            k, v = (flat[slots].unflatten(0, (count, -1)).transpose(1, 2) for flat in buffers.flat)
            if buffers.sinks is None:
                y = sdpa(q, k, v, attn_mask=mask, scale=buffers.scale, enable_gqa=gqa)
            else:
                y = _with_sinks(torch, buffers, (q, k, v), mask)
            out[rows] = y.transpose(1, 2).flatten(0, 1)
        return out

    return run


def _mask(torch: Any, buffers: Buffers) -> Any:
    if buffers.packed_mask is None:
        shape = (1, 1, len(buffers.query), sum(buffers.lengths))
        buffers.packed_mask = torch.empty(
            shape, dtype=buffers.query.dtype, device=buffers.query.device
        )
        _fill(torch, buffers)()
    return buffers.packed_mask


def _fill(torch: Any, buffers: Buffers) -> Work:
    """transformers' mask of a step: everything forbidden, then one causal block per sequence."""
    mask = buffers.packed_mask
    least = torch.finfo(mask.dtype).min
    keys = [0, *accumulate(buffers.lengths)]

    def run() -> Any:
        mask.fill_(least)
        for index, (_, cached) in enumerate(buffers.batch):
            rows = slice(buffers.starts[index], buffers.starts[index + 1])
            block = mask[..., rows, keys[index] : keys[index + 1]]
            block.fill_(least)
            block.triu_(cached + 1)
        return mask

    return run


def _packed_once(torch: Any, buffers: Buffers) -> Work:
    _mask(torch, buffers)
    return _fill(torch, buffers)


def _packed_call(torch: Any, buffers: Buffers) -> Work:
    """All queries against all keys of the batch under one mask; KV heads are repeated,
    as on a CPU.
    """
    mask = _mask(torch, buffers)
    group = buffers.shape.heads // buffers.shape.kv_heads
    sdpa = torch.nn.functional.scaled_dot_product_attention
    reads = any(cached for _, cached in buffers.batch)

    def run() -> Any:
        buffers.write()
        parts = (
            [flat.index_select(0, buffers.read_index) for flat in buffers.flat]
            if reads
            else buffers.new_kv
        )
        q = buffers.query.transpose(0, 1).unsqueeze(0)
        k, v = (part.transpose(0, 1).unsqueeze(0) for part in parts)
        if group > 1 and q.shape[2] == 1:
            q = q.reshape(1, buffers.shape.kv_heads, group, buffers.shape.head_dim)
        elif group > 1:
            k, v = (x[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (k, v))
        y = sdpa(q, k, v, attn_mask=mask, scale=buffers.scale)
        return (
            y.reshape(1, buffers.shape.heads, -1, buffers.shape.head_dim)
            .transpose(1, 2)[0]
            .contiguous()
        )

    return run


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "flash": Kernel(_flash_missing, _flash_call, page=_flash_page),
        "triton": Kernel(
            lambda torch, device, dtype: needs_cuda(torch, device, dtype, "vllm"), _triton_call
        ),
        "sdpa": Kernel(lambda torch, device, dtype: "", _sdpa_call),
        "packed": Kernel(
            lambda torch, device, dtype: "", _packed_call, _packed_once, lambda: LARGE_PAGE
        ),
    }
)
"""In order of preference; `packed` is only for comparison with transformers' continuous batching.
"""
