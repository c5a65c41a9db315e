"""What prompts of latent attention do before they attend to cached tokens: the cache has latents,
of which they make keys and values. Every step with a prompt behind cached tokens does it again,
for all of them: chunks of a long prompt, and prompts behind a cached prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Int64
from llmsim.costs.source import SplitGrid

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest, Curve
    from llmsim.model import Attention, ContextExpansion, Operator

Floats = NDArray[np.float64]
Price = Callable[["Operator", int], "Curve"]

WORKSPACE_TOKENS = 64 * 1024
"""Cached tokens that are expanded at once at most (vLLM's chunked_prefill_workspace_size, which is
smaller for models of less than 8,192 tokens).
"""


def with_expansion(grid: SplitGrid, op: Attention, request: CostRequest, price: Price) -> SplitGrid:
    """The grid of attention alone -> that of attention with what its prompts run before; `price`
    gives the times of a kernel for 0..last tokens.
    """
    if op.expansion is None or not request.context_expansion:
        return grid
    alone_ps, further_ps = _expansion_ps(op.expansion, grid.q_axis, grid.k_axis, price)
    return grid.with_longer_prompts(alone_ps, alone_ps - further_ps)


def _expansion_ps(
    expansion: ContextExpansion, q_axis: Int64, k_axis: Int64, price: Price
) -> tuple[Int64, Int64]:
    """Of q new tokens before k cached ones, [q, k]: a prompt alone, and one more beside others,
    whose kernels run over the tokens of all.
    """
    expand = sum(
        (price(kernel, WORKSPACE_TOKENS).ps for kernel in expansion.each_cached),
        np.zeros(WORKSPACE_TOKENS + 1, dtype=np.int64),
    )
    merge = price(expansion.each_new, int(q_axis[-1])).ps
    turns, rest = np.divmod(k_axis, WORKSPACE_TOKENS)
    merges = turns + (rest > 0)
    alone = turns * expand[-1] + expand[rest] + merges * merge[q_axis][:, None]
    each_cached = k_axis * int(expand[-1]) // WORKSPACE_TOKENS
    each_new = q_axis * int(merge[-1]) // int(q_axis[-1])
    further = each_cached + merges * each_new[:, None]
    return alone, np.minimum(further, alone)
