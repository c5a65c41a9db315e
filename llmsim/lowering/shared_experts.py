"""Where the engine runs a model's shared expert: in an operator of its own, or in the kernel of the
experts that tokens choose, as SGLang does.
"""

from pathlib import PurePath

from msgspec.structs import replace

from llmsim.config.engine.profile import EngineProfile
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
    alike = (
        model.shared_expert_intermediate_size == model.moe_intermediate_size
        and not model.shared_expert_gate
        and model.format_of("shared") == model.format_of("experts")
        and dtypes.of(model, "shared") == dtypes.of(model, "experts")
    )
    rule = profile.shared_with_experts.get(PurePath(model.family).stem)
    whole = layout.ep == 1 and not layout.domain
    if rule is None or not (alike and whole) or rule.experts not in (0, model.num_experts):
        return model
    capability = 0.0 if hardware is None else hardware.compute_capability or 0.0
    on_blackwell = BLACKWELL[0] <= capability < BLACKWELL[1]
    apart = on_blackwell and dtypes.of(model, "experts") in rule.apart_on_blackwell
    return replace(model, shared_with_experts=capability >= LEAST_CAPABILITY and not apart)
