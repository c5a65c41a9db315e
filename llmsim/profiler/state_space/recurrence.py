"""The recurrence of a layer that keeps a state, in PyTorch: token by token, in chunks, and one
token of many sequences.

Per value head and token, with state S (key x value), decay d, key k, value v and query q:

    gated delta net (arXiv 2412.06464, equation 10)   S <- d S + k b (v - k d S),   y = q S,
    log d = -exp(A) step state space (arXiv 2405.21060, equation 16)       S <- d S + k step x,
    y = q S + D x,  log d = -exp(A) step lightning attention (arXiv 2501.08313)            S <- d S
    + k v,               y = q S,        d of each head

with step = softplus(gate + bias). The delta rule is solved for a whole chunk at once, as its
authors do (the WY form): one triangular system of the chunk's length instead of a loop over its
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from llmsim.model import LinearAttention

CHUNK = 64
Order = Literal["scan", "update"]


@dataclass
class Inputs:
    """What the recurrence of one layer reads: `tokens` of one sequence (scan) or one token of each
    of many (update).
    """

    linear: LinearAttention
    mixed: Any
    """(tokens, channels): what the convolution gave; queries, keys, values, of a state space
    values, keys, queries.
    """
    gates: Any
    """(gates, tokens, value heads)."""
    a_log: Any
    """(value heads), fp32; so are `bias` and `skip`."""
    bias: Any
    skip: Any
    state: Any
    """(slots, value heads, value dim, key dim), of lightning attention key dim before value dim;
    slot 0 is not used.
    """
    slots: Any
    """(sequences): the slot of each, int32."""

    @property
    def parts(self) -> tuple[Any, Any, Any]:
        """(queries, keys, values), each (tokens, heads, dim)."""
        shape = self.linear
        keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
        space = shape.kind == "state_space"
        first, second, third = self.mixed.split(
            [values, keys, keys] if space else [keys, keys, values], dim=-1
        )
        q, k, v = (third, second, first) if space else (first, second, third)
        heads = (-1, shape.key_heads, shape.key_dim)
        return q.reshape(heads), k.reshape(heads), v.reshape(-1, shape.value_heads, shape.value_dim)

    @property
    def states(self) -> Any:
        """A view of all slots as (slots, value heads, key dim, value dim)."""
        return self.state if self.linear.kind == "lightning" else self.state.transpose(-1, -2)


def make_inputs(
    torch: Any,
    device: Any,
    dtype: Any,
    linear: LinearAttention,
    tokens: int,
    sequences: int,
    state_dtype: Any,
) -> Inputs:
    """Random inputs whose states stay finite; `linear` is one rank's share."""
    make, heads = {"device": device, "dtype": dtype}, linear.value_heads
    shape = (
        (linear.value_dim, linear.key_dim)
        if linear.kind != "lightning"
        else (linear.key_dim, linear.value_dim)
    )
    wide = {"device": device, "dtype": torch.float32}
    return Inputs(
        linear=linear,
        mixed=torch.randn(tokens, linear.conv_channels, **make) * 0.5,
        gates=torch.randn(linear.gates, tokens, heads, **make),
        a_log=torch.rand(heads, **wide) - 1.5,
        bias=torch.rand(heads, **wide),
        skip=torch.rand(heads, **wide),
        state=(torch.randn(sequences + 1, heads, *shape, **wide) * 0.1).to(state_dtype),
        slots=torch.arange(1, sequences + 1, device=device, dtype=torch.int32),
    )


@dataclass
class Terms:
    """Queries, keys and values (value heads, tokens, dim), log of the decay and strength of the
    correction (value heads, tokens), and what is added to the output; all fp32.
    """

    q: Any
    k: Any
    v: Any
    log_decay: Any
    beta: Any | None
    added: Any | None


def terms(torch: Any, inputs: Inputs) -> Terms:
    """The gates and norms that the kernels compute on their way."""
    linear, functional = inputs.linear, torch.nn.functional
    q, k, v = (part.float().transpose(0, 1) for part in inputs.parts)
    beta = added = None
    if linear.kind == "lightning":
        q, k, v = functional.silu(q), functional.silu(k), functional.silu(v)
        log_decay = -inputs.a_log.exp()[:, None].expand(-1, q.shape[1])
    else:
        step = functional.softplus(inputs.gates[0].float() + inputs.bias).transpose(0, 1)
        log_decay = -inputs.a_log.exp()[:, None] * step
        if linear.kind == "delta":
            q, k = (functional.normalize(part, dim=-1, eps=1e-6) for part in (q, k))
            q, beta = q * linear.key_dim**-0.5, inputs.gates[1].float().sigmoid().transpose(0, 1)
        else:
            added, v = inputs.skip[:, None, None] * v, v * step[..., None]
    share = linear.value_heads // linear.key_heads
    return Terms(
        q.repeat_interleave(share, 0), k.repeat_interleave(share, 0), v, log_decay, beta, added
    )


def by_token(torch: Any, inputs: Inputs) -> tuple[Any, Any]:
    """(outputs (tokens, heads, dim), states of `slots`): the definition, token by token in fp32;
    changes nothing.
    """
    each, single = terms(torch, inputs), len(inputs.slots) == 1
    states = inputs.states[inputs.slots.long()].float()
    outputs = []
    for token in range(each.q.shape[1]):
        at = 0 if single else token
        state = states[at] * each.log_decay[:, token, None, None].exp()
        value, key = each.v[:, token], each.k[:, token]
        if each.beta is not None:
            value = (value - (key[:, None] @ state)[:, 0]) * each.beta[:, token, None]
        states[at] = state + key[:, :, None] * value[:, None]
        outputs.append((each.q[:, token, None] @ states[at])[:, 0])
    found = torch.stack(outputs)
    return (found if each.added is None else found + each.added.transpose(0, 1)), states


def scan(torch: Any, inputs: Inputs) -> Any:
    """Outputs of one sequence's tokens, chunk by chunk; its state is replaced."""
    each, slot = terms(torch, inputs), inputs.slots[:1].long()
    tokens = each.q.shape[1]
    length = min(CHUNK, tokens)
    q, k, v = (_chunks(torch, part, length) for part in (each.q, each.k, each.v))
    log = _chunks(torch, each.log_decay[..., None], length)[..., 0].cumsum(-1)
    decay = (log[..., :, None] - log[..., None, :]).tril().exp().tril()
    corrected = None
    if each.beta is not None:
        beta = _chunks(torch, each.beta[..., None], length)
        system = ((k * beta) @ k.transpose(-1, -2) * decay).tril(-1)
        right = torch.cat((v * beta, k * beta * log.exp()[..., None]), dim=-1)
        solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        v, corrected = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    scores, reads = q @ k.transpose(-1, -2) * decay, q * log.exp()[..., None]
    writes, kept = (
        (k * (log[..., -1:] - log).exp()[..., None]).transpose(-1, -2),
        log[..., -1].exp(),
    )
    state, outputs = inputs.states[slot][0].float(), []
    for at in range(q.shape[1]):
        value = v[:, at] if corrected is None else v[:, at] - corrected[:, at] @ state
        outputs.append(scores[:, at] @ value + reads[:, at] @ state)
        state = state * kept[:, at, None, None] + writes[:, at] @ value
    inputs.states[slot] = state[None].to(inputs.state.dtype)
    found = torch.cat(outputs, dim=1)[:, :tokens]
    return (
        (found if each.added is None else found + each.added).transpose(0, 1).to(inputs.mixed.dtype)
    )


def _chunks(torch: Any, x: Any, length: int) -> Any:
    """(heads, tokens, dim) -> (heads, chunks, length, dim), filled up with zeros, which leave a
    state as it is.
    """
    missing = -x.shape[1] % length
    return torch.nn.functional.pad(x, (0, 0, 0, missing)).unflatten(1, (-1, length))


def update(torch: Any, inputs: Inputs) -> Any:
    """Outputs of one token of each sequence; their states are replaced."""
    each, slots = terms(torch, inputs), inputs.slots.long()
    q, k, v = (part.transpose(0, 1) for part in (each.q, each.k, each.v))
    state = inputs.states[slots].float() * each.log_decay.t().exp()[..., None, None]
    if each.beta is not None:
        v = (v - (k[..., None, :] @ state)[..., 0, :]) * each.beta.t()[..., None]
    state = state + k[..., None] * v[..., None, :]
    inputs.states[slots] = state.to(inputs.state.dtype)
    found = (q[..., None, :] @ state)[..., 0, :]
    return (found if each.added is None else found + each.added.transpose(0, 1)).to(
        inputs.mixed.dtype
    )
