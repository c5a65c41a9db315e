"""vLLM's kernels of layers that keep a state get what they want: doubles in plain math, and vLLM's
own signatures.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest

from llmsim.model import LinearAttention

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed (extra llmsim[profiler])"
)

from llmsim.profiler.kernels.choice import relative_error  # noqa: E402
from llmsim.profiler.state_space import linear_attention  # noqa: E402
from llmsim.profiler.state_space.linear_attention import LinearLayer  # noqa: E402
from llmsim.profiler.state_space.recurrence import by_token, make_inputs  # noqa: E402
from llmsim.profiler.state_space.recurrence_kernels import KERNELS, SPACE_CHUNK  # noqa: E402
from tests.profiler.test_gpu_kernels import arguments_of, module  # noqa: E402

LAYERS = "vllm.model_executor.layers"
CPU = torch.device("cpu")
Called = dict[str, dict[str, Any]]
functional = torch.nn.functional


def steps(q: Any, k: Any, v: Any, log_decay: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    """Token by token; q and k (tokens, value heads, key dim), v, state (heads, value dim, key dim);
    as vLLM's lie.
    """
    outputs = []
    for token in range(len(q)):
        state = state * log_decay[token].exp()[:, None, None]
        value = v[token]
        if beta is not None:
            value = (value - (state @ k[token][..., None])[..., 0]) * beta[token][:, None]
        state = state + value[..., None] * k[token][:, None]
        outputs.append((state @ q[token][..., None])[..., 0])
    return torch.stack(outputs), state


def unit(x: Any) -> Any:
    return x / (x * x).sum(-1, keepdim=True).sqrt()


def post_conv(
    conv_output: Any,
    a: Any,
    b: Any,
    A_log: Any,
    dt_bias: Any,
    num_k_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    apply_l2norm: bool,
    output_g_exp: bool,
) -> Any:
    keys = num_k_heads * head_k_dim
    q, k, v = conv_output.split([keys, keys, conv_output.shape[1] - 2 * keys], dim=1)
    q, k = (part.unflatten(1, (num_k_heads, head_k_dim)) for part in (q, k))
    assert apply_l2norm and not output_g_exp
    g = -A_log.exp() * functional.softplus(a + dt_bias)
    return unit(q), unit(k), v.unflatten(1, (-1, head_v_dim)), g, b.sigmoid()


def chunked(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    initial_state: Any,
    output_final_state: bool,
    cu_seqlens: Any,
    use_qk_l2norm_in_kernel: bool,
    chunk_indices: Any = None,
    chunk_offsets: Any = None,
) -> Any:
    if chunk_indices is not None:
        last = (q.shape[1] - 1) // 64
        assert chunk_indices.tolist() == [
            [0, at] for at in range(last + 1)
        ] and chunk_offsets.tolist() == [0, last + 1]
    assert q.shape[0] == 1 and cu_seqlens.tolist() == [0, q.shape[1]] and output_final_state
    assert not use_qk_l2norm_in_kernel and len(initial_state) == 1
    share = v.shape[2] // q.shape[2]
    q, k = (part[0].repeat_interleave(share, 1) for part in (q, k))
    out, state = steps(q * q.shape[-1] ** -0.5, k, v[0], g[0], beta[0], initial_state[0])
    return out[None], state[None]


def packed(
    mixed_qkv: Any,
    a: Any,
    b: Any,
    A_log: Any,
    dt_bias: Any,
    scale: float,
    initial_state: Any,
    out: Any,
    ssm_state_indices: Any,
    use_qk_l2norm_in_kernel: bool,
) -> None:
    heads, dim, key = initial_state.shape[1:]
    keys = (mixed_qkv.shape[1] - heads * dim) // 2
    parts = post_conv(
        mixed_qkv, a, b, A_log, dt_bias, keys // key, key, dim, use_qk_l2norm_in_kernel, False
    )
    q, k = (part.repeat_interleave(heads * key // keys, 1) for part in parts[:2])
    for row, slot in enumerate(ssm_state_indices.tolist()):
        at = slice(row, row + 1)
        rest = (part[at] for part in parts[2:])
        found, initial_state[slot] = steps(q[at] * scale, k[at], *rest, initial_state[slot])
        out[row] = found


def space_scan(
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    chunk_size: int,
    cu_seqlens: Any,
    cu_chunk_seqlens: Any,
    last_chunk_indices: Any,
    seq_idx: Any,
    out: Any,
    D: Any,
    dt_bias: Any,
    initial_states: Any,
    dt_softplus: bool,
    state_dtype: Any,
) -> Any:
    cuts = cu_chunk_seqlens.tolist()
    assert cuts[-1] == len(x) == cu_seqlens.tolist()[1] and all(
        0 < b - a <= chunk_size for a, b in pairwise(cuts)
    )
    assert (
        last_chunk_indices.tolist() == [len(cuts) - 2]
        and len(seq_idx) == len(cuts) - 1
        and dt_softplus
    )
    step, share = functional.softplus(dt + dt_bias), x.shape[1] // B.shape[1]
    q, k = (part.repeat_interleave(share, 1) for part in (C, B))
    found, state = steps(q, k, x * step[..., None], step * A, None, initial_states[0])
    out.copy_(found + D[:, None] * x)
    return state[None].to(state_dtype)


def space_update(
    state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, dt_bias: Any, dt_softplus: bool,
    state_batch_indices: Any, out: Any,
) -> None:  # fmt: skip
    _, heads, dim, size = state.shape
    assert (
        dt.shape == x.shape
        and A.shape == (heads, dim, size)
        and D.shape == dt_bias.shape == (heads, dim)
    )
    assert dt_softplus
    share, step = heads // B.shape[1], functional.softplus(dt + dt_bias)
    b, c = (part.repeat_interleave(share, 1) for part in (B, C))
    for row, slot in enumerate(state_batch_indices.tolist()):
        state[slot] = (
            state[slot] * (A * step[row][..., None]).exp()
            + (x * step)[row][..., None] * b[row][:, None]
        )
        out[row] = (state[slot] @ c[row][..., None])[..., 0] + D * x[row]


def lightning(q: Any, k: Any, v: Any, ed: Any, block_size: int, kv_history: Any) -> Any:
    parts = (part[0].transpose(0, 1) for part in (q, k, v))
    decay = -ed[None].expand(q.shape[2], -1)
    out, state = steps(*parts, decay, None, kv_history[0].transpose(-1, -2))
    history = state.transpose(-1, -2)[None, :, None]
    return out.transpose(0, 1)[None], torch.cat((history * 0, history), dim=2)


def lightning_decode(
    q: Any, k: Any, v: Any, caches: Any, slopes: Any, slots: Any, block: int
) -> Any:
    rows = []
    for row, slot in enumerate(slots.tolist()):
        parts = (part[row, :, 0][None] for part in (q, k, v))
        out, state = steps(*parts, -slopes[None], None, caches[slot].transpose(-1, -2))
        caches[slot] = state.transpose(-1, -2)
        rows.append(out[0].flatten())
    return torch.stack(rows)


def conv(
    x: Any,
    weight: Any,
    bias: Any,
    conv_states: Any,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    activation: str,
    metadata: Any,
) -> Any:
    assert (
        x.shape == (len(weight), query_start_loc.tolist()[1])
        and x.stride(0) == 1
        and activation == "silu"
    )
    assert has_initial_state.tolist() == [True] and metadata.nums_dict == {8: len(x[0])}
    seen = torch.cat((conv_states[int(cache_indices[0])], x), dim=1)
    return functional.silu(
        functional.conv1d(seen[None], weight[:, None], bias, groups=len(weight))[0]
    )


def gated_norm(
    x: Any, weight: Any, bias: Any, z: Any, eps: float, group_size: int, norm_before_gate: bool
) -> Any:
    y = x if norm_before_gate else x * functional.silu(z)
    y = (
        functional.rms_norm(y.unflatten(-1, (-1, group_size)), (group_size,), eps=eps).flatten(-2)
        * weight
    )
    return y * functional.silu(z) if norm_before_gate else y


DOUBLES: dict[str, dict[str, Callable[..., Any]]] = {
    f"{LAYERS}.fla.ops": {"chunk_gated_delta_rule": chunked},
    f"{LAYERS}.fla.ops.fused_gdn_prefill_post_conv": {"fused_post_conv_prep": post_conv},
    f"{LAYERS}.fla.ops.fused_recurrent": {"fused_recurrent_gated_delta_rule_packed_decode": packed},
    f"{LAYERS}.mamba.gdn.qwen_gdn_linear_attn": {"fi_chunk_gated_delta_rule": chunked},
    f"{LAYERS}.mamba.ops.ssd_combined": {"mamba_chunk_scan_combined_varlen": space_scan},
    f"{LAYERS}.mamba.ops.mamba_ssm": {"selective_state_update": space_update},
    f"{LAYERS}.lightning_attn": {
        "lightning_attention": lightning, "linear_decode_forward_triton": lightning_decode,
    },
    f"{LAYERS}.mamba.ops.causal_conv1d": {"causal_conv1d_fn": conv},
    f"{LAYERS}.mamba.ops.layernorm_gated": {"rms_norm_gated": gated_norm},
    "vllm.v1.attention.backends.utils": {
        "compute_causal_conv1d_metadata": lambda ends, device: ({8: int(ends[1])}, None, None),
    },
}  # fmt: skip
POSITIONAL = {
    "mamba_chunk_scan_combined_varlen": 5,
    "selective_state_update": 8,
    "causal_conv1d_fn": 3,
    "rms_norm_gated": 3,
    "lightning_attention": 4,
    "linear_decode_forward_triton": 7,
    "compute_causal_conv1d_metadata": 1,
}
"""Arguments that are given by their place."""
FILES = {
    "chunk_gated_delta_rule": "fla/ops/chunk.py",
    "fused_post_conv_prep": "fla/ops/fused_gdn_prefill_post_conv.py",
    "fused_recurrent_gated_delta_rule_packed_decode": "fla/ops/fused_recurrent.py",
    "fi_chunk_gated_delta_rule": "mamba/gdn/qwen_gdn_linear_attn.py",
    "mamba_chunk_scan_combined_varlen": "mamba/ops/ssd_combined.py",
    "selective_state_update": "mamba/ops/mamba_ssm.py",
    "lightning_attention": "lightning_attn.py",
    "linear_decode_forward_triton": "lightning_attn.py",
    "causal_conv1d_fn": "mamba/ops/causal_conv1d.py",
    "rms_norm_gated": "mamba/ops/layernorm_gated.py",
}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    """vLLM with these functions in plain math; what each was called with, by its name."""
    torch.set_grad_enabled(False)
    calls: Called = {}

    def kept(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*places: Any, **named: Any) -> Any:
            calls.setdefault(name, {}).update(named)
            assert len(places) == POSITIONAL.get(name, 0)
            return function(*places, **named)

        return call

    parents = {
        ".".join(name.split(".")[:depth])
        for name in DOUBLES
        for depth in range(1, name.count(".") + 1)
    }
    for name in sorted(parents - DOUBLES.keys()):
        module(monkeypatch, name)
    for name, functions in DOUBLES.items():
        module(
            monkeypatch,
            name,
            **{each: kept(each, function) for each, function in functions.items()},
        )
    return calls


LINEAR = {
    "delta": LinearAttention(2, 16, 4, 8, 4),
    "lightning": LinearAttention(4, 16, 4, 16, 0, kind="lightning"),
    "state_space": LinearAttention(2, 8, 4, 16, 4, kind="state_space"),
}


@pytest.mark.parametrize(("kind", "order"), KERNELS)
def test_vllms_recurrences_get_what_they_want(kind: str, order: str, called: Called) -> None:
    torch.manual_seed(3)
    for name, maker in KERNELS[kind, order].items():  # type: ignore[index]
        tokens, sequences = (SPACE_CHUNK + 20, 1) if order == "scan" else (3, 3)
        inputs = make_inputs(
            torch, CPU, torch.float32, LINEAR[kind], tokens, sequences, torch.float32
        )
        wanted, states = by_token(torch, inputs)
        found = maker(torch, inputs)()
        assert relative_error(found, wanted) < 1e-4, name
        assert relative_error(inputs.states[inputs.slots.long()], states) < 1e-4, name


@pytest.mark.parametrize("kind", ["delta", "state_space"])
def test_vllms_convolution_and_norm_get_what_they_want(kind: str, called: Called) -> None:
    layer = LinearLayer(torch, CPU, torch.float32, LINEAR[kind], torch.float32)
    assert layer._conv_error(linear_attention._vllm_conv) < 1e-5
    assert layer._norm_error("vllm") < 1e-5


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_takes_these_arguments(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    for (kind, order), makers in KERNELS.items():
        for maker in makers.values():
            tokens = 2 if order == "update" else 1
            inputs = make_inputs(
                torch, CPU, torch.float32, LINEAR[kind], tokens, tokens, torch.float32
            )
            maker(torch, inputs)()
    layer = LinearLayer(torch, CPU, torch.float32, LINEAR["delta"], torch.float32)
    layer._conv_error(linear_attention._vllm_conv)
    layer._norm_error("vllm")
    assert FILES.keys() == called.keys() - {"compute_causal_conv1d_metadata"}
    monkeypatch.delitem(sys.modules, "vllm")
    for name, file in FILES.items():
        known, needed = arguments_of(f"model_executor/layers/{file}", name)
        assert called[name].keys() <= known, name
        assert len(needed - called[name].keys()) <= POSITIONAL.get(name, 0), name
