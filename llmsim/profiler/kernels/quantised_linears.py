"""The quantised linear layers of one rank: which kernel each runs in, and fresh copies of their
weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llmsim.config.errors import InputError
from llmsim.model import Gemm, ModelConfig
from llmsim.profiler.kernels.quantised import Scheme, make_weight, scheme_of
from llmsim.profiler.kernels.quantised_kernels import KERNELS, Linear, usable_kernel

NARROW = ("fp8", "int8", "fp4", "int4")


class QuantisedLinears:
    """Chooses kernels by the sizes of the matrices, once for all layers that have the same."""

    def __init__(
        self,
        torch: Any,
        device: Any,
        dtype: Any,
        model: ModelConfig,
        ops: Iterable[tuple[Gemm, list[int]]],
    ) -> None:
        """`ops`: linear layers, each with the output widths of the products that make it up."""
        self._torch, self._device, self._dtype = torch, device, dtype
        self._chosen: dict[tuple[Scheme, int, int], str] = {}
        self._schemes: dict[str, Scheme] = {}
        self.kernels: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        for op, widths in ops:
            if op.weight_dtype in NARROW:
                self._schemes[op.name] = scheme_of(model, op.weight_dtype)
                self.kernels[op.name] = ", ".join(
                    dict.fromkeys(self._choose(op, width) for width in widths)
                )

    def __contains__(self, name: str) -> bool:
        return name in self._schemes

    def layer(self, op: Gemm, width: int) -> tuple[Linear, int]:
        """The product by new random weights, and their bytes."""
        scheme = self._schemes[op.name]
        weight = make_weight(self._torch, self._device, scheme, width, op.gemm_k)
        maker = KERNELS[scheme.kind][self._choose(op, width)]
        return maker(self._torch, self._dtype, weight), weight.bytes_each

    def _choose(self, op: Gemm, width: int) -> str:
        scheme = self._schemes[op.name]
        key = (scheme, width, op.gemm_k)
        if key not in self._chosen:
            name, reasons = usable_kernel(self._torch, self._device, self._dtype, *key)
            if not name:
                raise InputError(
                    f"no kernel multiplies {scheme.dtype} weights of {width} x {op.gemm_k} "
                    f"({op.name}) here: "
                    f"{'; '.join(f'{kernel}: {why}' for kernel, why in reasons.items())}"
                )
            self._chosen[key] = name
            self.reasons |= {f"{op.name} {kernel}": why for kernel, why in reasons.items()}
        return self._chosen[key]
