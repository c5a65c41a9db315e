"""How long an operator takes on a device, and where that number comes from."""

from llmsim.costs.compile import compile_costs
from llmsim.costs.source import (
    AttentionCost,
    CompiledCosts,
    CostRequest,
    EngineVersions,
    Floor,
    MixedGrid,
    OpCost,
    SplitGrid,
)

__all__ = [
    "AttentionCost",
    "CompiledCosts",
    "CostRequest",
    "EngineVersions",
    "Floor",
    "MixedGrid",
    "OpCost",
    "SplitGrid",
    "compile_costs",
]
