"""What prompts of latent attention do before they attend to cached tokens: the cache has latents,
of which they make keys and values. Every step with a prompt behind cached tokens does it again,
for all of them: chunks of a long prompt, and prompts behind a cached prefix. Prompts that the
engine runs on the latents (`llmsim.config.engine.latent_prompts`) have times of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.core import Int64
from llmsim.costs.source import Curve, SplitGrid

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest
    from llmsim.model import Attention, Operator

Floats = NDArray[np.float64]
Price = Callable[["Operator", int], "Curve"]

WORKSPACE_TOKENS = 64 * 1024
"""Cached tokens that are expanded at once at most (vLLM's chunked_prefill_workspace_size, which is
smaller for models of less than 8,192 tokens).
"""


def with_expansion(
    grid: SplitGrid, op: Attention, request: CostRequest, price: Price
) -> tuple[SplitGrid, str]:
    """The grid of attention alone -> that of attention with what its prompts run before, and whose
    times these are, to be put behind the source; `price` gives a kernel's times for 0..last tokens.
    """
    if op.expansion is None or not request.context_expansion:
        return grid, ""
    prices = _Prices(
        tuple(price(kernel, WORKSPACE_TOKENS) for kernel in op.expansion.each_cached),
        price(op.expansion.each_new, int(grid.q_axis[-1])),
    )
    alone_ps, further_ps = prices.expansion_ps(grid.q_axis, grid.k_axis)
    longer = grid.with_longer_prompts(alone_ps, alone_ps - further_ps)
    return longer, f"; cached tokens expanded: {prices.source}"


class _Prices(Struct, frozen=True):
    """Times of the kernels of an expansion."""

    each_cached: tuple[Curve, ...]
    each_new: Curve

    @property
    def source(self) -> str:
        """Each place that the times are from, once."""
        return ", ".join(
            dict.fromkeys(curve.source for curve in (*self.each_cached, self.each_new))
        )

    def expansion_ps(self, q_axis: Int64, k_axis: Int64) -> tuple[Int64, Int64]:
        """Of q new tokens before k cached ones, [q, k]: a prompt alone, and one more beside others,
        whose kernels run over the tokens of all.
        """
        expand = sum(
            (curve.ps for curve in self.each_cached),
            np.zeros(WORKSPACE_TOKENS + 1, dtype=np.int64),
        )
        merge = self.each_new.ps
        turns, rest = np.divmod(k_axis, WORKSPACE_TOKENS)
        merges = turns + (rest > 0)
        alone = turns * expand[-1] + expand[rest] + merges * merge[q_axis][:, None]
        each_cached = k_axis * int(expand[-1]) // WORKSPACE_TOKENS
        each_new = q_axis * int(merge[-1]) // int(q_axis[-1])
        further = each_cached + merges * each_new[:, None]
        return alone, np.minimum(further, alone)
