"""Where the engine runs a model's shared expert: in an operator of its own, or in the kernel of the
experts that tokens choose, as SGLang does.
"""

from pathlib import PurePath

from msgspec.structs import replace

from llmsim.config.engine.profile import EngineProfile, SharedWithExperts
from llmsim.model import Dtypes, Hardware, Layout, ModelConfig

LEAST_CAPABILITY = 8.0
"""Of the cards on which SGLang puts a shared expert into the kernel of the others."""
BLACKWELL = (10.0, 12.0)
"""Compute capabilities of Blackwell in data centres: from the first, below the second."""


def as_engine_runs_it(
    model: ModelConfig,
    layout: Layout,
    dtypes: Dtypes,
    hardware: Hardware | None,
    profile: EngineProfile,
) -> ModelConfig:
    """The model, with its shared expert in the kernel of the others where the engine's rule for the
    family, the card, the layout and the types of weights let it be there.
    """
    rule = profile.shared_with_experts.get(PurePath(model.family).stem)
    if rule is None or not _is_one_more_expert(model, dtypes):
        return model
    every_rank_has_all = layout.ep == 1 and not layout.domain
    as_many = rule.experts in (0, model.num_experts)
    on_card = _kernel_has_it(rule, _capability(hardware), dtypes.of(model, "experts"))
    return replace(model, shared_with_experts=every_rank_has_all and as_many and on_card)


def _is_one_more_expert(model: ModelConfig, dtypes: Dtypes) -> bool:
    """Whether the shared expert is as wide as the others, ungated, and stored as they are."""
    if model.shared_expert_intermediate_size != model.moe_intermediate_size:
        return False
    if model.shared_expert_gate or dtypes.of(model, "shared") != dtypes.of(model, "experts"):
        return False
    return model.format_of("shared") == model.format_of("experts")


def _capability(hardware: Hardware | None) -> float:
    """The card's compute capability; 0 where nothing is known, or of other vendors."""
    if hardware is None or hardware.compute_capability is None:
        return 0.0
    return hardware.compute_capability


def _kernel_has_it(rule: SharedWithExperts, capability: float, dtype: str) -> bool:
    """Whether the kernel that the engine takes on the card for these weights can have it."""
    on_blackwell = BLACKWELL[0] <= capability < BLACKWELL[1]
    if on_blackwell and dtype in rule.apart_on_blackwell:
        return False
    return capability >= LEAST_CAPABILITY
