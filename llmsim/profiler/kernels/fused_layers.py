"""vLLM's kernels for norms, rotation and gated activations on a GPU: one launch where PyTorch needs
several.

Each is compared with elementary operations in float32 before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llmsim.profiler.kernels.work import Work, needs_cuda

TOLERANCE = 3e-2
EPSILON = 1e-6
TOKENS, HEADS, DIM = 5, 3, 64
"""Of the small batch that every kernel must get right."""
ALIGNED = 8
"""Elements of two bytes that vLLM's kernels read at once; rows of a model start at such places."""


class FusedLayers:
    """Makes the work of those kernels that are there and right; `reasons` says why the others are
    not used.
    """

    def __init__(self, torch: Any, device: Any, dtype: Any) -> None:
        self._torch = torch
        self._make = {"device": device, "dtype": dtype}
        self.reasons: dict[str, str] = {}
        missing = needs_cuda(torch, device, dtype, "vllm")
        checks: dict[str, Callable[[], float]] = {
            "norm": self._norm_error,
            "add_norm": self._add_norm_error,
            "rotary": lambda: self._rotary_error(False),
            "rotary of pairs": lambda: self._rotary_error(True),
            "gated": self._gated_error,
        }
        for name, check in checks.items():
            problem = missing or _problem(check)
            if problem:
                self.reasons[name] = problem

    def has(self, name: str) -> bool:
        """Whether a kernel is usable."""
        return name not in self.reasons

    def norm(self, parts: Sequence[tuple[Any, Any]]) -> Work:
        """RMSNorm of (values, weights), each into a new tensor."""
        from vllm import _custom_ops as ops

        torch = self._torch

        def run() -> list[Any]:
            made = []
            for x, weight in parts:
                out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
                ops.rms_norm(out, x, weight, EPSILON)
                made.append(out)
            return made

        return run

    def add_norm(self, x: Any, residual: Any, weight: Any) -> Work:
        """The sum of `x` and `residual` into the latter, its RMSNorm into the former."""
        from vllm import _custom_ops as ops

        def run() -> Any:
            ops.fused_add_rms_norm(x, residual, weight, EPSILON)
            return x

        return run

    def rotary(self, query: Any, key: Any, *, pairs: bool) -> Work:
        """Rotation in place, (tokens, heads, dim) each, of halves or of neighbouring elements."""
        from vllm import _custom_ops as ops

        torch, count, dim = self._torch, len(query), query.shape[-1]
        positions = torch.arange(count, device=query.device)
        angles = self._angles(count, dim)
        table = torch.cat((angles.cos(), angles.sin()), dim=-1).to(query.dtype)

        def run() -> list[Any]:
            ops.rotary_embedding(positions, query, key, dim, table, not pairs)
            return [query, key]

        return run

    def gated(self, x: Any) -> Work:
        """SiLU of the first half times the second, into a new tensor."""
        from vllm import _custom_ops  # noqa: F401  (it registers the kernels)

        torch = self._torch
        kernel = torch.ops._C.silu_and_mul

        def run() -> Any:
            out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
            kernel(out, x)
            return out

        return run

    def _angles(self, count: int, dim: int) -> Any:
        """Of every position and pair."""
        torch, device = self._torch, self._make["device"]
        rates = 1e4 ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
        return torch.arange(count, device=device, dtype=torch.float32).unsqueeze(1) * rates

    def _random(self, *shape: int) -> Any:
        return self._torch.randn(*shape, **self._make)

    def _norm_error(self) -> float:
        # A view of wider rows, as latent attention has it; vLLM's kernel reads 16 bytes at a time.
        whole, weight = self._random(TOKENS, 2 * DIM + ALIGNED), self._random(DIM)
        heads = self._random(TOKENS, HEADS, DIM)
        found = self.norm([(whole[:, DIM : 2 * DIM], weight), (heads, weight)])()
        return max(
            _error(found[0], _rms(whole[:, DIM : 2 * DIM], weight)),
            _error(found[1], _rms(heads, weight)),
        )

    def _add_norm_error(self) -> float:
        x, residual, weight = (
            self._random(TOKENS, DIM),
            self._random(TOKENS, DIM),
            self._random(DIM),
        )
        total = x.float() + residual.float()
        found = self.add_norm(x, residual, weight)()
        return max(_error(found, _rms(total, weight)), _error(residual, total))

    def _rotary_error(self, pairs: bool) -> float:
        """Of views, as latent attention has them, where pairs are meant."""
        torch = self._torch
        whole, key = (
            self._random(TOKENS, HEADS, (2 if pairs else 1) * DIM),
            self._random(TOKENS, 1, DIM),
        )
        query = whole[..., -DIM:]
        cos, sin = (
            part.unsqueeze(1)
            for part in (self._angles(TOKENS, DIM).cos(), self._angles(TOKENS, DIM).sin())
        )
        wanted = []
        for x in (query.float(), key.float()):
            one, other = (x[..., ::2], x[..., 1::2]) if pairs else x.chunk(2, dim=-1)
            turned = (one * cos - other * sin, other * cos + one * sin)
            wanted.append(
                torch.stack(turned, dim=-1).flatten(-2) if pairs else torch.cat(turned, dim=-1)
            )
        before = whole.clone()
        self.rotary(query, key, pairs=pairs)()
        untouched = (
            _error(whole[..., : whole.shape[-1] - DIM], before[..., : whole.shape[-1] - DIM])
            if pairs
            else 0.0
        )
        return max(_error(query, wanted[0]), _error(key, wanted[1]), untouched)

    def _gated_error(self) -> float:
        x = self._random(TOKENS, 2 * DIM)
        gate, up = x.float().chunk(2, dim=-1)
        return _error(self.gated(x)(), self._torch.nn.functional.silu(gate) * up)


def _problem(check: Callable[[], float]) -> str:
    try:
        error = check()
    except (
        Exception
    ) as raised:  # a kernel of another package may fail in any way: it is then not used
        return (
            f"it failed on a small batch: {type(raised).__name__}: "
            f"{(str(raised).splitlines() or [''])[0][:120]}"
        )
    return "" if error < TOLERANCE else f"its result is wrong by {error:.2g} on a small batch"


def _rms(x: Any, weight: Any) -> Any:
    wide = x.float()
    return wide * (wide.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.float()


def _error(found: Any, wanted: Any) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())
