"""The operators around latent attention that are no plain GEMM: norms, rotation, the two products
of decodes, and what an indexer does to its queries and key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmsim.model import Gemm, LatentAttention, Operator
from llmsim.profiler.kernels.fused_layers import FusedLayers

Work = Callable[[], object]
EPSILON = 1e-6
SCALED = 128
"""Elements in fp8 that share a scale."""
LARGEST_FP8 = 448.0
LATENT_LAYERS = ("latent_norm", "rotary_emb", "indexer_norm", "kv_b_proj")
"""Operators that `LatentLayers` makes."""


@dataclass(frozen=True)
class LatentLayers:
    """Makes the work of these operators at a token count."""

    torch: Any
    latent: LatentAttention
    heads: int
    """Query heads of the rank."""
    eager: bool
    """As transformers runs them; else as vLLM does."""
    max_decodes: int
    """Steps of up to so many tokens are taken for decodes, whose queries and results are multiplied
    head by head.
    """
    random: Callable[..., Any]
    """Of a shape, on the device, in the model's type."""
    rms: Callable[[Any], Any]
    """RMSNorm without weights, from elementary operations."""
    copies: Callable[[int], int]
    """Of weights of so many bytes: how many are rotated, so that each is read from memory."""
    fused: FusedLayers | None = None
    """An engine's kernels for norms and rotation, if any."""

    def work(self, op: Operator, count: int) -> Work | None:
        """One execution; None where the operator is a GEMM like any other."""
        makers = {
            "latent_norm": self._norm,
            "rotary_emb": self._rotary,
            "indexer_norm": self._indexer,
        }
        if isinstance(op, Gemm):
            return None if self.eager or count > self.max_decodes else self._absorbed(op, count)
        return makers[op.name](op, count)

    def widths(self, op: Operator) -> list[int] | None:
        """Output widths of the GEMMs that transformers runs in place of a fused one; None: it is
        the same.
        """
        return [self.latent.q_rank, self.latent.cached_width] if op.name == "qkv_a_proj" else None

    def _norm(self, op: Operator, count: int) -> Work:
        """Of both latents, as views of what one GEMM wrote."""
        latent, functional = self.latent, self.torch.nn.functional
        whole = self.random(count, latent.q_rank + latent.cached_width)
        spans = [(0, latent.q_rank), (latent.q_rank, latent.q_rank + latent.kv_rank)]
        parts = [
            (whole[:, first:last], self.random(last - first))
            for first, last in spans
            if last > first
        ]
        if self.fused is not None and self.fused.has("norm"):
            return self.fused.norm(parts)
        if not self.eager and hasattr(functional, "rms_norm"):
            return lambda: [
                functional.rms_norm(x, weight.shape, weight, EPSILON) for x, weight in parts
            ]
        return lambda: [weight * self.rms(x) for x, weight in parts]

    def _rotary(self, op: Operator, count: int) -> Work:
        """Of the rotated part of all query heads and of the one key; neighbouring elements are
        pairs.
        """
        torch, latent = self.torch, self.latent
        query = self.random(count, self.heads, latent.nope_dim + latent.rope_dim)
        key = self.random(count, 1, latent.rope_dim)
        if self.fused is not None and self.fused.has("rotary of pairs"):
            return self.fused.rotary(query[..., latent.nope_dim :], key, pairs=True)
        cos, sin = self.random(count, 1, latent.rope_dim), self.random(count, 1, latent.rope_dim)
        plain, turning = query[..., : latent.nope_dim], query[..., latent.nope_dim :]

        def paired(x: Any) -> Any:
            return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

        def fused() -> list[Any]:
            turning.copy_(turning * cos + paired(turning) * sin)
            return [query, key * cos + paired(key) * sin]

        def eager() -> list[Any]:
            made = []
            for x in (turning, key):
                x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
                half = x.shape[-1] // 2
                made.append(x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin)
            return [torch.cat((plain, made[0]), dim=-1), made[1]]

        return eager if self.eager else fused

    def _absorbed(self, op: Gemm, count: int) -> Work:
        """Queries times W_UK, head by head, and what attention made of the latents times W_UV; in
        the model's type, as vLLM keeps copies of both, whatever the type of the checkpoint.
        """
        from llmsim.profiler.kernels.work import rotating

        torch, latent, heads = self.torch, self.latent, self.heads
        made = [
            self.random(heads, latent.nope_dim + latent.v_dim, latent.kv_rank)
            for _ in range(self._copies(op))
        ]
        weights = [
            (whole[:, : latent.nope_dim], whole[:, latent.nope_dim :].transpose(1, 2))
            for whole in made
        ]
        query = self.random(count, heads, latent.nope_dim + latent.rope_dim)[
            ..., : latent.nope_dim
        ].transpose(0, 1)
        attended = self.random(count, heads, latent.kv_rank).transpose(0, 1)
        absorbed = self.random(heads, count, latent.kv_rank)
        result = self.random(count, heads, latent.v_dim)

        def run(pair: tuple[Any, Any]) -> list[Any]:
            torch.bmm(query, pair[0], out=absorbed)
            torch.bmm(attended, pair[1], out=result.transpose(0, 1))
            return [absorbed.transpose(0, 1), result]

        return rotating(run, weights)

    def _copies(self, op: Gemm) -> int:
        return self.copies(op.gemm_n * op.gemm_k * int(self.random(0).element_size()))

    def _indexer(self, op: Operator, count: int) -> Work:
        """LayerNorm of the key, rotation of key and queries, queries in fp8 with their scales in
        the heads' weights.
        """
        torch, rope = self.torch, self.latent.rope_dim
        dim = op.weight_bytes // (2 * int(self.random(0).element_size()))
        heads = (op.read_bytes_per_token // int(self.random(0).element_size()) - dim) // dim
        query, beside = self.random(count, heads, dim), self.random(count, dim + heads)
        cos, sin = self.random(count, 1, rope), self.random(count, 1, rope)
        weight, bias = self.random(dim), self.random(dim)
        group, functional = SCALED if dim % SCALED == 0 else dim, torch.nn.functional

        def turned(x: Any) -> Any:
            first, rest = x[..., :rope], x[..., rope:]
            half = rope // 2
            other = torch.cat((-first[..., half:], first[..., :half]), dim=-1)
            return torch.cat((first * cos + other * sin, rest), dim=-1)

        def run() -> list[Any]:
            key = turned(
                functional.layer_norm(beside[:, :dim], (dim,), weight, bias, EPSILON).unsqueeze(1)
            )
            grouped = turned(query).unflatten(-1, (-1, group))
            scale = (
                grouped.abs().amax(dim=-1, keepdim=True).float().clamp(min=EPSILON) / LARGEST_FP8
            )
            narrow = (grouped / scale).to(torch.float8_e4m3fn).flatten(-2)
            return [narrow, key, beside[:, dim:].float() * scale.flatten(1)[:, :: dim // group]]

        return run
