"""Experts of a MoE layer with a forced number of active ones, in the first kernel that is right
here, else a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from llmsim.model import Moe
from llmsim.profiler.kernels import quantised_kernels
from llmsim.profiler.kernels.choice import TOLERANCE, first_right, relative_error
from llmsim.profiler.kernels.quantised import Scheme, dequantised, exact_activations, make_weight
from llmsim.profiler.moe.expert_kernels import (
    KERNELS,
    Activation,
    Maker,
    Stored,
    looped,
    wide_linears,
)

Work = Callable[[], Any]
CHECKED = 16
TOLERANCE_FP8 = 6e-2
"""Between the two products activations are rounded to 8-bit floats, which alone moves results by
2.6 %.
"""


def routing(torch: Any, device: Any, tokens: int, topk: int, activated: int) -> Any:
    """Expert ids (tokens, topk): consecutive choices go round the first `activated` experts, all
    evenly loaded.
    """
    return (torch.arange(tokens * topk, device=device) % activated).view(tokens, topk)


class Experts:
    """Weights of all local experts of one layer, and their work for a token count."""

    def __init__(
        self,
        torch: Any,
        device: Any,
        dtype: Any,
        op: Moe,
        kernel: str,
        *,
        activation: Activation = "silu",
        scheme: Scheme | None = None,
    ) -> None:
        """`scheme`: how the weights are quantised; None: they are of `dtype`."""
        self._torch, self._device, self._dtype = torch, device, dtype
        self._op, self._scheme, self._activation = op, scheme, activation
        self.kernel = kernel
        ways = 1 if activation == "relu2" else 2
        self._up = self._stored(ways * op.moe_inter, op.hidden)
        self._down = self._stored(op.hidden, op.moe_inter)
        self._layer = self._maker()(torch, dtype, self._up, self._down, activation)

    def work(self, tokens: int, activated: int) -> Work:
        """One layer for `tokens`, each choosing top-k among the first `activated` experts."""
        torch, op = self._torch, self._op
        x = torch.randn(tokens, op.hidden, device=self._device, dtype=self._dtype) * 0.05
        return self._bound(x, activated)

    def error(self) -> float:
        """Relative distance of the kernel's result from plain float32 math on the (dequantised)
        weights.
        """
        torch, op = self._torch, self._op
        if self._scheme is None:
            x = torch.randn(CHECKED, op.hidden, device=self._device, dtype=self._dtype) * 0.5
            plain = [part.float() for part in (self._up, self._down)]
        else:
            x = exact_activations(
                torch, self._device, self._dtype, self._scheme, CHECKED, op.hidden
            )
            plain = [dequantised(torch, part, torch.float32) for part in (self._up, self._down)]
        ids, shares = self._choices(CHECKED, op.experts_local)
        loop = looped(wide_linears(torch))(
            torch, torch.float32, plain[0], plain[1], self._activation
        )
        wanted = loop(x.float(), ids, shares)
        return relative_error(self._bound(x, op.experts_local)(), wanted)

    def _bound(self, x: Any, activated: int) -> Work:
        ids, shares = self._choices(len(x), activated)
        return lambda: self._layer(x, ids, shares)

    def _choices(self, tokens: int, activated: int) -> tuple[Any, Any]:
        torch, op = self._torch, self._op
        ids = routing(torch, self._device, tokens, op.topk, activated).to(torch.int32)
        return ids, torch.full(
            (tokens, op.topk), 1.0 / op.topk, device=self._device, dtype=torch.float32
        )

    def _stored(self, outputs: int, inputs: int) -> Stored:
        if self._scheme is not None:
            return make_weight(
                self._torch, self._device, self._scheme, outputs, inputs, self._op.experts_local
            )
        make = {"device": self._device, "dtype": self._dtype}
        return self._torch.randn(self._op.experts_local, outputs, inputs, **make) * 0.05

    def _maker(self) -> Maker:
        torch, scheme = self._torch, self._scheme
        makers = KERNELS["wide" if scheme is None else scheme.kind]
        if self.kernel in makers:
            return makers[self.kernel]
        if scheme is None:
            return looped(wide_linears(torch))
        linear = quantised_kernels.KERNELS[scheme.kind][self.kernel.removeprefix("loop ")]
        return looped(
            lambda weights: [
                linear(torch, self._dtype, weights.expert(index))
                for index in range(len(weights.data))
            ]
        )


def usable_kernel(
    torch: Any,
    device: Any,
    dtype: Any,
    op: Moe,
    *,
    activation: Activation = "silu",
    scheme: Scheme | None = None,
) -> tuple[str, dict[str, str]]:
    """The first kernel that runs and is right on a few small experts, and why the ones before it
    are not used.

    Of quantised weights, a loop says in which kernel each expert runs ("loop dequantised").
    """
    narrow = scheme is not None and scheme.block is not None
    small = replace(
        op, experts_local=min(op.experts_local, 8), moe_inter=_smaller(op.moe_inter, narrow),
        hidden=_smaller(op.hidden, narrow), topk=min(op.topk, op.experts_local, 2),
    )  # fmt: skip

    def error(kernel: str) -> float:
        torch.manual_seed(0)
        return Experts(
            torch, device, dtype, small, kernel, activation=activation, scheme=scheme
        ).error()

    loops = (
        ["loop"]
        if scheme is None
        else [f"loop {name}" for name in quantised_kernels.KERNELS[scheme.kind]]
    )
    names = [*KERNELS["wide" if scheme is None else scheme.kind], *loops]
    anywhere = ("loop", *(f"loop {name}" for name in quantised_kernels.ANYWHERE))
    tolerance = TOLERANCE_FP8 if scheme is not None and scheme.dtype == "fp8" else TOLERANCE
    return first_right(device, {name: partial(error, name) for name in names}, anywhere, tolerance)


def _smaller(size: int, narrow: bool) -> int:
    """A width that is quickly multiplied; with scales of blocks one of the same remainder."""
    most = 512 if narrow else 64
    return size if size <= most else most + size % most if narrow else most
