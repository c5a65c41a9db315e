"""Every operator of a step except attention and experts, as PyTorch work on weights of the right
shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from llmsim.model import Gemm, Layout, ModelConfig, Moe, Operator
from llmsim.model.parallel.sharding import rank_shape
from llmsim.profiler.attention.mla_layers import LATENT_LAYERS, LatentLayers
from llmsim.profiler.kernels.fused_layers import FusedLayers
from llmsim.profiler.kernels.quantised_linears import QuantisedLinears
from llmsim.profiler.kernels.work import Work, rotating
from llmsim.profiler.state_space.linear_attention import NAMES as LINEAR
from llmsim.profiler.state_space.linear_attention import LinearLayer

Style = Literal["fused", "eager"]
"""fused: the shapes that vLLM runs (one qkv GEMM, one gate_up GEMM, norm with residual as one
kernel where torch has it); eager: as transformers runs them (projections apart, norms and rotary
embedding from elementary operations).
"""
MAX_COPIES = 64
EPSILON = 1e-6


NAMES = (
    "embedding",
    "layernorm",
    "post_norm",
    "final_layernorm",
    "qk_norm",
    "query_norm",
    "rotary_emb",
    "act_fn",
    "sampler",
    "attention_gate",
    "branch_add",
    *LINEAR,
    *LATENT_LAYERS,
)
ATTENTION = ("attention", "attention_sliding", "attention_chunked", "attention_sparse", "indexer")
"""Softmax attention of layers that see everything, a window, a chunk or what an indexer chose, and
the indexer.

Rows are of layers that see everything: the bundle reader looks up in them what a batch sees through
a window.
"""


def unknown_operators(ops: Iterable[Operator]) -> list[str]:
    """Names of those that this profiler cannot run at all."""
    known = {
        op.name: isinstance(op, Gemm | Moe) or op.name in NAMES or op.name.endswith("act_fn")
        for op in ops
    }
    return [name for name, runs in known.items() if not runs and name not in ATTENTION]


class Kernels:
    """Makes the work of an operator at a token or sequence count; weights are random and rotated
    through the cache.
    """

    def __init__(
        self,
        torch: Any,
        device: Any,
        dtype: Any,
        model: ModelConfig,
        layout: Layout,
        *,
        style: Style,
        cache_bytes: int,
        model_bytes: int,
        max_decodes: int = 0,
        linear: LinearLayer | None = None,
        fused: FusedLayers | None = None,
        ops: Iterable[Operator] = (),
    ) -> None:
        """`linear`: the kernels of layers with a state, in a model that has them; `fused`: those of
        an engine, if any; `ops`: what the rank runs, of which the quantised layers get their
        kernels here.

        `model_bytes`: weights of one rank; a real step streams them all, so copies of a weight add
        up to that much.

        (At most four times the last-level cache: beyond it, nothing is left of the first copy when
        it is used again.) `max_decodes`: steps of up to so many tokens are taken for decodes where
        that makes a difference.
        """
        self._torch = torch
        self._model = model
        self._style = style
        self._make = {"device": device, "dtype": dtype}
        self._shape = rank_shape(model, layout)
        self._footprint = min(4 * cache_bytes, model_bytes)
        self._layer = linear
        self._fused = fused
        self._latent: LatentLayers | None = None
        if model.latent is not None:
            self._latent = LatentLayers(
                torch,
                model.latent,
                self._shape.heads,
                style == "eager",
                max_decodes,
                self.random,
                self._rms,
                self._copies,
                fused,
            )
        gemms = [(op, self._widths(op)) for op in ops if isinstance(op, Gemm)]
        self.quantised = QuantisedLinears(torch, device, dtype, model, gemms)

    def work(self, op: Operator, count: int) -> Work:
        """One execution of `op` for `count` tokens or sequences; each call takes the next copy of
        the weights.
        """
        if self._latent is not None and op.name in LATENT_LAYERS:
            made = self._latent.work(op, count)
            if made is not None:
                return made
        if isinstance(op, Gemm):
            return self._linear(op, count)
        if op.name in LINEAR:
            assert self._layer is not None, "the model has such layers"
            return self._layer.work(op, count, self._copies, rotating)
        makers = {
            "embedding": self._embedding, "layernorm": self._norm, "post_norm": self._norm,
            "final_layernorm": self._norm, "query_norm": self._norm, "qk_norm": self._qk_norm,
            "rotary_emb": self._rotary,
            "act_fn": self._activation, "sampler": self._sampler, "attention_gate": self._gate,
            "branch_add": self._add,
        }  # fmt: skip
        return makers["act_fn" if op.name.endswith("act_fn") else op.name](op, count)

    def random(self, *shape: int) -> Any:
        """Random numbers, small enough that half precision stays finite."""
        return self._torch.randn(*shape, **self._make) * 0.05

    def _copies(self, bytes_each: int) -> int:
        return max(1, min(MAX_COPIES, -(-self._footprint // max(bytes_each, 1))))

    def _linear(self, op: Gemm, count: int) -> Work:
        widths = self._widths(op)
        x, linear = self.random(count, op.gemm_k), self._torch.nn.functional.linear
        if op.name in self.quantised:
            return self._quantised_linear(op, widths, x)
        copies = self._copies(op.gemm_n * op.gemm_k * self._size())
        weights = [[self.random(width, op.gemm_k) for width in widths] for _ in range(copies)]

        def run(parts: list[Any]) -> list[Any]:
            return [linear(x, weight) for weight in parts]

        return rotating(run, weights)

    def _quantised_linear(self, op: Gemm, widths: list[int], x: Any) -> Work:
        """Copies add up to as much as other weights', by their quantised bytes."""
        first = [self.quantised.layer(op, width) for width in widths]
        copies = self._copies(sum(size for _, size in first))
        others = ([self.quantised.layer(op, width) for width in widths] for _ in range(copies - 1))
        layers = [[layer for layer, _ in parts] for parts in (first, *others)]
        return rotating(lambda parts: [part(x) for part in parts], layers)

    def _widths(self, op: Gemm) -> list[int]:
        """Output widths of the GEMMs that make up an operator."""
        if self._style == "fused":
            return [op.gemm_n]
        if self._latent is not None and (widths := self._latent.widths(op)):
            return widths
        if op.name == "qkv_proj":
            kv = self._shape.kv_heads * self._model.head_dim
            return [op.gemm_n - 2 * kv, kv, kv]
        return (
            [op.gemm_n // 2, op.gemm_n - op.gemm_n // 2]
            if op.name == "gate_up_proj"
            else [op.gemm_n]
        )

    def _embedding(self, op: Operator, count: int) -> Work:
        torch = self._torch
        table = self.random(max(op.weight_bytes // max(op.hidden, 1) // self._size(), 1), op.hidden)
        ids = torch.randint(table.shape[0], (count,), device=self._make["device"])
        return lambda: torch.nn.functional.embedding(ids, table)

    def _size(self) -> int:
        return int(self._torch.empty(0, **self._make).element_size())

    def _norm(self, op: Operator, count: int) -> Work:
        torch = self._torch
        hidden = self._model.query_rank if op.name == "query_norm" else op.hidden
        x, weight = self.random(count, hidden), self.random(hidden)
        residual = self.random(count, hidden) if op.name == "layernorm" else None
        bias = self.random(hidden) if self._model.norm_bias else None
        functional = torch.nn.functional
        if (
            self._fused is not None
            and bias is None
            and self._fused.has("norm" if residual is None else "add_norm")
        ):
            if residual is None:
                return self._fused.norm([(x, weight)])
            return self._fused.add_norm(x, residual, weight)

        def fused() -> Any:
            y = x if residual is None else x + residual
            if bias is not None:
                return functional.layer_norm(y, (hidden,), weight, bias, EPSILON)
            return functional.rms_norm(y, (hidden,), weight, EPSILON)

        def eager() -> Any:
            y = x if residual is None else x + residual
            if bias is not None:
                return functional.layer_norm(y, (hidden,), weight, bias, EPSILON)
            return weight * self._rms(y)

        return fused if self._style == "fused" and hasattr(functional, "rms_norm") else eager

    def _rms(self, y: Any) -> Any:
        wide = y.to(self._torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return (wide * self._torch.rsqrt(variance + EPSILON)).to(y.dtype)

    def _qk_norm(self, op: Operator, count: int) -> Work:
        dim = self._model.head_dim
        parts = [
            (self.random(count, n, dim), self.random(dim))
            for n in (self._shape.heads, self._shape.kv_heads)
        ]
        functional = self._torch.nn.functional
        if self._fused is not None and self._fused.has("norm"):
            return self._fused.norm(parts)
        if self._style == "fused" and hasattr(functional, "rms_norm"):
            return lambda: [functional.rms_norm(x, (dim,), weight, EPSILON) for x, weight in parts]
        return lambda: [weight * self._rms(x) for x, weight in parts]

    def _rotary(self, op: Operator, count: int) -> Work:
        torch, dim = self._torch, self._model.head_dim
        if self._fused is not None and self._fused.has("rotary"):
            query, key = (
                self.random(count, n, dim) for n in (self._shape.heads, self._shape.kv_heads)
            )
            return self._fused.rotary(query, key, pairs=False)
        heads = [self.random(1, n, count, dim) for n in (self._shape.heads, self._shape.kv_heads)]
        cos, sin = self.random(1, 1, count, dim), self.random(1, 1, count, dim)

        def turned(x: Any) -> Any:
            half = x.shape[-1] // 2
            return torch.cat((-x[..., half:], x[..., :half]), dim=-1)

        return lambda: [x * cos + turned(x) * sin for x in heads]

    def _activation(self, op: Operator, count: int) -> Work:
        width, functional = op.write_bytes_per_token // self._size(), self._torch.nn.functional
        if not self._model.mlp_gated:
            x = self.random(count, width)
            return lambda: functional.gelu(x, approximate="tanh")
        both = self.random(count, 2 * width)
        if self._fused is not None and self._fused.has("gated"):
            return self._fused.gated(both)
        gate, up = both.chunk(2, dim=-1)
        return lambda: functional.silu(gate) * up

    def _gate(self, op: Operator, count: int) -> Work:
        width = op.write_bytes_per_token // self._size()
        x, gate = self.random(count, width), self.random(count, width)
        return lambda: x * gate.sigmoid()

    def _add(self, op: Operator, count: int) -> Work:
        one, other = self.random(count, op.hidden), self.random(count, op.hidden)
        return lambda: one + other

    def _sampler(self, op: Operator, count: int) -> Work:
        logits = self.random(count, self._model.vocab_size)
        return lambda: logits.float().argmax(dim=-1)
