"""Experts of a MoE layer with a forced number of active ones: vLLM's fused kernel, grouped GEMM, or a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmsim.model import Operator

Work = Callable[[], object]
KERNELS = ("vllm", "grouped", "loop")


def routing(torch: Any, device: Any, tokens: int, topk: int, activated: int) -> Any:
    """Expert ids (tokens, topk): consecutive choices go round the first `activated` experts, all evenly loaded."""
    return (torch.arange(tokens * topk, device=device) % activated).view(tokens, topk)


class Experts:
    """Weights of all local experts of one layer, and their work for a token count."""

    def __init__(self, torch: Any, device: Any, dtype: Any, op: Operator, kernel: str) -> None:
        self._torch = torch
        self._op = op
        self.kernel = kernel
        make = {"device": device, "dtype": dtype}
        count, width, hidden = op.experts_local, op.moe_inter, op.hidden
        self._up = torch.randn(count, 2 * width, hidden, **make) * 0.05
        self._down = torch.randn(count, hidden, width, **make) * 0.05
        self._make = make

    def work(self, tokens: int, activated: int) -> Work:
        """One layer for `tokens`, each choosing top-k among the first `activated` experts."""
        torch, op = self._torch, self._op
        x = torch.randn(tokens, op.hidden, **self._make) * 0.05
        ids = routing(torch, self._make["device"], tokens, op.topk, activated)
        weights = torch.full((tokens, op.topk), 1.0 / op.topk, device=self._make["device"], dtype=torch.float32)
        return {"vllm": self._vllm, "grouped": self._grouped, "loop": self._loop}[self.kernel](x, ids, weights)

    def _vllm(self, x: Any, ids: Any, weights: Any) -> Work:
        from vllm.model_executor.layers.fused_moe import fused_experts

        narrow = ids.to(self._torch.int32)
        return lambda: fused_experts(hidden_states=x, w1=self._up, w2=self._down, topk_weights=weights, topk_ids=narrow)

    def _grouped(self, x: Any, ids: Any, weights: Any) -> Work:
        torch = self._torch
        experts = len(self._up)
        up, down = self._up.transpose(1, 2), self._down.transpose(1, 2)
        silu = torch.nn.functional.silu

        def run() -> Any:
            flat = ids.reshape(-1)
            order = torch.argsort(flat)
            rows = order // ids.shape[1]
            # Counted without bincount, which asks the device how large its result is: no graph can hold that.
            counts = torch.zeros(experts, dtype=torch.int32, device=flat.device)
            ends = counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32)).cumsum(0, dtype=torch.int32)
            gate, wide = torch._grouped_mm(x[rows], up, offs=ends).chunk(2, dim=-1)
            y = torch._grouped_mm(silu(gate) * wide, down, offs=ends)
            y = y * weights.reshape(-1)[order].unsqueeze(1).to(y.dtype)
            return torch.zeros_like(x).index_add_(0, rows, y)

        return run

    def _loop(self, x: Any, ids: Any, weights: Any) -> Work:
        torch = self._torch
        linear, silu = torch.nn.functional.linear, torch.nn.functional.silu
        active = sorted({int(i) for i in ids.reshape(-1).tolist()})

        def run() -> Any:
            out = torch.zeros_like(x)
            for expert in active:
                rows, choice = torch.where(ids == expert)
                gate, wide = linear(x[rows], self._up[expert]).chunk(2, dim=-1)
                y = linear(silu(gate) * wide, self._down[expert])
                out.index_add_(0, rows, y * weights[rows, choice].unsqueeze(1).to(y.dtype))
            return out

        return run


def usable_kernel(torch: Any, device: Any, dtype: Any, op: Operator) -> tuple[str, dict[str, str]]:
    """The first kernel that runs and agrees with the loop, and why the ones before it do not."""
    from dataclasses import replace

    reasons: dict[str, str] = {}
    small = replace(op, experts_local=min(op.experts_local, 8), moe_inter=min(op.moe_inter, 64), hidden=64, topk=2)
    for kernel in KERNELS[:-1]:
        if device.type != "cuda":
            reasons[kernel] = "it needs a CUDA device"
            continue
        try:
            torch.manual_seed(0)
            experts = Experts(torch, device, dtype, small, kernel)
            found = experts.work(16, small.experts_local)
            torch.manual_seed(0)
            wanted = Experts(torch, device, dtype, small, "loop").work(16, small.experts_local)
            ours, theirs = found(), wanted()
            error = float((ours - theirs).float().norm() / theirs.float().norm())  # type: ignore[attr-defined, operator]
        except Exception as problem:  # a kernel of another package may fail in any way: it is then not used
            reasons[kernel] = f"it failed: {type(problem).__name__}: {str(problem).splitlines()[0][:120]}"
            continue
        if error < 3e-2:
            return kernel, reasons
        reasons[kernel] = f"its result differs from the loop's by {error:.2g}"
    return "loop", reasons
