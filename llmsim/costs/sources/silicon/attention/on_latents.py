"""Prompts of latent attention that run on the cached latents, from the silicon database: SGLang's
rows of that kernel, which vLLM's prompts of few tokens take as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from llmsim.costs.source import LatentGrid
from llmsim.costs.sources.roofline import RooflineSource
from llmsim.costs.sources.silicon.attention.grid import DecodeGrid, PrefillGrid, prefill_grid
from llmsim.costs.sources.silicon.attention.mla import find_kernels_on_latents

if TYPE_CHECKING:
    from llmsim.costs.hardware_limits import PeakRates
    from llmsim.costs.source import CostRequest
    from llmsim.costs.sources.silicon.database import TablePath
    from llmsim.model import Attention


class Others(Struct, frozen=True):
    """The grids of the other prompts and of decodes."""

    prefill: PrefillGrid
    decode: DecodeGrid
    in_module: bool
    """Whether the times of prompts are those of a whole module."""


def latent_grid(
    tables: list[TablePath],
    op: Attention,
    request: CostRequest,
    peak_rates: PeakRates,
    others: Others,
) -> tuple[LatentGrid | None, str]:
    """Prompts on the latents and whose times these are, to be put behind the source; None where the
    engine runs none so. From the data sheet where nobody measured the kernel.
    """
    rule = request.latent_prompts
    if op.expansion is None or not rule.ever:
        return None, ""
    rows = find_kernels_on_latents(tables, op, request)
    if rows is None:
        sheet = RooflineSource(request).attention(op)
        return sheet.grid.on_latents, f"; prompts on the latents: {sheet.source}"
    kernel = prefill_grid(rows, others.decode, request, op.on_latents, peak_rates)
    found = _in_module(kernel, others.prefill) if others.in_module else kernel
    grid = LatentGrid(rule, found.ps, found.provenance, found.shared_ppm)
    return grid, f"; prompts on the latents: {rows.label}"


def _in_module(kernel: PrefillGrid, module: PrefillGrid) -> PrefillGrid:
    """The module's time without cached tokens, and what the kernel takes longer for them."""
    longer = kernel.ps - kernel.ps[:, :1]
    ps = module.ps[:, :1] + longer
    marks = np.maximum(module.provenance[:, :1], kernel.provenance)
    marks[:, 0] = module.provenance[:, 0]
    share = module.shared_ppm
    if share is not None:
        alone = np.maximum(ps, 1)
        share = (module.ps[:, :1] * share[:, :1].astype(np.float64) / alone).astype(np.int64)
    return PrefillGrid(kernel.q_axis, kernel.k_axis, ps, marks.astype(np.uint8), share)
