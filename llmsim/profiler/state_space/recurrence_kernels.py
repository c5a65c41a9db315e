"""The kernels of layers with a state: vLLM's by the kind of layer, and PyTorch's; each checked
before it is used.

A scan takes one sequence's tokens and leaves its state behind, an update one token of each of many
sequences; both compute the gates and norms of queries and keys on their way, as vLLM's fused
kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from llmsim.model import LinearAttention
from llmsim.profiler.kernels.choice import first_right, relative_error
from llmsim.profiler.state_space import recurrence
from llmsim.profiler.state_space.recurrence import CHUNK, Inputs, Order, by_token, make_inputs

Work = Callable[[], Any]
Maker = Callable[[Any, Inputs], Work]
CHECKED_TOKENS, CHECKED_SEQUENCES = 150, 5
"""More than two chunks of a scan, the last one not full."""
SPACE_CHUNK = 256
"""Tokens of a chunk of a state space, as most config.json files have it."""
LIGHTNING_BLOCK = 256


def _ends(torch: Any, inputs: Inputs) -> Any:
    """Where sequences begin and end: one sequence of all tokens."""
    return torch.tensor([0, len(inputs.mixed)], dtype=torch.int32, device=inputs.mixed.device)


def _delta_scan(torch: Any, inputs: Inputs, chunked: Callable[..., Any]) -> Work:
    """vLLM's prefill of a gated delta net: one kernel that splits, norms and gates, then the
    chunks.
    """
    from vllm.model_executor.layers.fla.ops.fused_gdn_prefill_post_conv import fused_post_conv_prep

    linear, ends, slots = inputs.linear, _ends(torch, inputs), inputs.slots.long()

    def run() -> Any:
        parts = fused_post_conv_prep(
            conv_output=inputs.mixed,
            a=inputs.gates[0],
            b=inputs.gates[1],
            A_log=inputs.a_log,
            dt_bias=inputs.bias,
            num_k_heads=linear.key_heads,
            head_k_dim=linear.key_dim,
            head_v_dim=linear.value_dim,
            apply_l2norm=True,
            output_g_exp=False,
        )
        q, k, v, g, beta = (part.unsqueeze(0) for part in parts)
        out, state = chunked(
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            initial_state=inputs.state[slots],
            output_final_state=True,
            cu_seqlens=ends,
            use_qk_l2norm_in_kernel=False,
        )
        inputs.state[slots] = state.to(inputs.state.dtype)
        return out[0]

    return run


def _fla_scan(torch: Any, inputs: Inputs) -> Work:
    """The chunks of the one sequence are listed ahead, as vLLM does: the kernels would ask the
    device for them.
    """
    from vllm.model_executor.layers.fla.ops import chunk_gated_delta_rule

    whole, chunks = (
        {"dtype": torch.int32, "device": inputs.mixed.device},
        -(-len(inputs.mixed) // CHUNK),
    )
    indices = torch.stack((torch.zeros(chunks, **whole), torch.arange(chunks, **whole)), dim=1)
    offsets = torch.tensor([0, chunks], **whole)
    return _delta_scan(
        torch, inputs, partial(chunk_gated_delta_rule, chunk_indices=indices, chunk_offsets=offsets)
    )


def _flashinfer_scan(torch: Any, inputs: Inputs) -> Work:
    """What vLLM runs on Hopper."""
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import fi_chunk_gated_delta_rule

    return _delta_scan(torch, inputs, fi_chunk_gated_delta_rule)


def _delta_update(torch: Any, inputs: Inputs) -> Work:
    from vllm.model_executor.layers.fla.ops.fused_recurrent import (
        fused_recurrent_gated_delta_rule_packed_decode,
    )

    linear = inputs.linear
    out = torch.empty(
        len(inputs.mixed),
        1,
        linear.value_heads,
        linear.value_dim,
        dtype=inputs.mixed.dtype,
        device=inputs.mixed.device,
    )

    def run() -> Any:
        fused_recurrent_gated_delta_rule_packed_decode(
            mixed_qkv=inputs.mixed,
            a=inputs.gates[0],
            b=inputs.gates[1],
            A_log=inputs.a_log,
            dt_bias=inputs.bias,
            scale=linear.key_dim**-0.5,
            initial_state=inputs.state,
            out=out,
            ssm_state_indices=inputs.slots,
            use_qk_l2norm_in_kernel=True,
        )
        return out[:, 0]

    return run


def _space_scan(torch: Any, inputs: Inputs) -> Work:
    from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen

    tokens, whole = len(inputs.mixed), {"dtype": torch.int32, "device": inputs.mixed.device}
    chunks = -(-tokens // SPACE_CHUNK)
    cuts = torch.tensor([*range(0, tokens, SPACE_CHUNK), tokens], **whole)
    last, zeros = torch.tensor([chunks - 1], **whole), torch.zeros(chunks, **whole)
    a, ends, slots = -inputs.a_log.exp(), _ends(torch, inputs), inputs.slots.long()
    out = torch.empty_like(inputs.parts[2])

    def run() -> Any:
        c, b, x = inputs.parts
        state = mamba_chunk_scan_combined_varlen(
            x,
            inputs.gates[0],
            a,
            b,
            c,
            chunk_size=SPACE_CHUNK,
            cu_seqlens=ends,
            cu_chunk_seqlens=cuts,
            last_chunk_indices=last,
            seq_idx=zeros,
            out=out,
            D=inputs.skip,
            dt_bias=inputs.bias,
            initial_states=inputs.state[slots],
            dt_softplus=True,
            state_dtype=inputs.state.dtype,
        )
        inputs.state[slots] = state
        return out

    return run


def _space_update(torch: Any, inputs: Inputs) -> Work:
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

    dim, size = inputs.linear.value_dim, inputs.linear.key_dim
    a = -inputs.a_log.exp()[:, None, None].expand(-1, dim, size)
    bias, skip = (part[:, None].expand(-1, dim) for part in (inputs.bias, inputs.skip))
    out = torch.empty_like(inputs.parts[2])

    def run() -> Any:
        c, b, x = inputs.parts
        selective_state_update(
            inputs.state,
            x,
            inputs.gates[0][:, :, None].expand(-1, -1, dim),
            a,
            b,
            c,
            skip,
            bias,
            dt_softplus=True,
            state_batch_indices=inputs.slots,
            out=out,
        )
        return out

    return run


def _lightning_parts(torch: Any, inputs: Inputs) -> tuple[Any, ...]:
    mixed = torch.nn.functional.silu(inputs.mixed.float())
    return tuple(
        part.unflatten(-1, (inputs.linear.value_heads, -1)) for part in mixed.chunk(3, dim=-1)
    )


def _lightning_scan(torch: Any, inputs: Inputs) -> Work:
    from vllm.model_executor.layers.lightning_attn import lightning_attention

    slopes, slots = inputs.a_log.exp(), inputs.slots.long()

    def run() -> Any:
        q, k, v = (
            part.transpose(0, 1)[None].contiguous() for part in _lightning_parts(torch, inputs)
        )
        out, history = lightning_attention(
            q, k, v, slopes, block_size=LIGHTNING_BLOCK, kv_history=inputs.state[slots].float()
        )
        inputs.state[slots] = (
            history[:, :, -1].reshape(inputs.state[slots].shape).to(inputs.state.dtype)
        )
        return out[0].transpose(0, 1)

    return run


def _lightning_update(torch: Any, inputs: Inputs) -> Work:
    from vllm.model_executor.layers.lightning_attn import linear_decode_forward_triton

    slopes, heads = inputs.a_log.exp(), inputs.linear.value_heads

    def run() -> Any:
        q, k, v = (part[:, :, None].contiguous() for part in _lightning_parts(torch, inputs))
        out = linear_decode_forward_triton(q, k, v, inputs.state, slopes, inputs.slots, 32)
        return out.unflatten(-1, (heads, -1))

    return run


def _torch_work(order: Order) -> Maker:
    run = recurrence.scan if order == "scan" else recurrence.update
    return lambda torch, inputs: lambda: run(torch, inputs)


KERNELS: Mapping[tuple[str, Order], Mapping[str, Maker]] = MappingProxyType(
    {
        ("delta", "scan"): {
            "flashinfer": _flashinfer_scan,
            "vllm": _fla_scan,
            "torch": _torch_work("scan"),
        },
        ("delta", "update"): {"vllm": _delta_update, "torch": _torch_work("update")},
        ("state_space", "scan"): {"vllm": _space_scan, "torch": _torch_work("scan")},
        ("state_space", "update"): {"vllm": _space_update, "torch": _torch_work("update")},
        ("lightning", "scan"): {"vllm": _lightning_scan, "torch": _torch_work("scan")},
        ("lightning", "update"): {"vllm": _lightning_update, "torch": _torch_work("update")},
    }
)
"""In order of preference, as vLLM chooses among its own."""


def usable_kernel(
    torch: Any, device: Any, dtype: Any, linear: LinearAttention, state_dtype: Any, order: Order
) -> tuple[str, dict[str, str]]:
    """The first kernel that runs here and agrees with the recurrence, and why the ones before it do
    not.
    """

    def error(maker: Maker) -> float:
        sequences = 1 if order == "scan" else CHECKED_SEQUENCES
        tokens = CHECKED_TOKENS if order == "scan" else sequences
        inputs = make_inputs(torch, device, dtype, linear, tokens, sequences, state_dtype)
        work = maker(torch, inputs)
        work()  # the second one finds what the first may have left behind, as every later one does
        wanted, states = by_token(torch, inputs)
        found = work()
        left = relative_error(inputs.states[inputs.slots.long()], states)
        return max(relative_error(found, wanted), left)

    makers = KERNELS[linear.kind, order]
    return first_right(device, {name: partial(error, maker) for name, maker in makers.items()})
