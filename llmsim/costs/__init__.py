"""How long an operator takes on a device, and where that number comes from."""

from llmsim.costs.compile import compile_costs
from llmsim.costs.source import (
    AttentionCost,
    CompiledCosts,
    CostRequest,
    EngineVersions,
    Floor,
    MixedAttention,
    MixedGrid,
    OpCost,
    SplitAttention,
    SplitGrid,
)

__all__ = [
    "AttentionCost",
    "CompiledCosts",
    "CostRequest",
    "EngineVersions",
    "Floor",
    "MixedAttention",
    "MixedGrid",
    "OpCost",
    "SplitAttention",
    "SplitGrid",
    "compile_costs",
]
