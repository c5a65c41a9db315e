"""How an engine schedules pipeline stages, once the model is known: by which of vLLM's model runners, or not ahead."""

from dataclasses import replace
from types import MappingProxyType

from llmsim.config import Group
from llmsim.config.deployment import Offloading
from llmsim.config.engine_profile import load_profile
from llmsim.config.errors import InputError, NotYetError
from llmsim.lowering.layouts import members_of
from llmsim.model import ModelConfig

ARCHITECTURES = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""By model_type, for a config.json that names none."""


def with_stages(group: Group, model: ModelConfig, *, tiers: bool) -> Group:
    """The group with `async_scheduling` and `use_v2_model_runner` settled.

    vLLM 0.24 schedules pipeline stages ahead like everything else (`VllmConfig.__post_init__`), by Model Runner V2 for
    the architectures of the profile, else by V1. What this version does not run in that way has one batch for each
    stage: where it is the default the option's origin says so, and where it was asked for it is refused (InputError,
    NotYetError).
    """
    engine = group.engine
    if group.pp == 1 or not engine.async_scheduling:
        return group
    asked = not engine.is_default("async_scheduling")
    runs_v2 = _runs_v2(group, model)
    reason = _drafts_of(group, runs_v2=runs_v2)
    if reason and asked:
        raise InputError(
            f"async_scheduling is true ({engine.origin['async_scheduling']}) with {group.pp} pipeline stages and "
            f"{reason}, which vLLM does not run: Model Runner V2 runs the methods eagle and mtp, one pass for each "
            "draft, and V1 none; set it false"
        )
    if not reason:
        reason = _not_yet(group, model)
        if reason and asked:
            raise NotYetError(
                f"async_scheduling with pipeline stages and {reason} does not run in this version; set it false"
            )
    if not reason and not asked and (group.pd_type is not None or tiers):
        reason = "KV on its way"
    origin = dict(engine.origin)
    if reason:
        origin["async_scheduling"] = f"off with {group.pp} pipeline stages and {reason}"
        return replace(group, engine=replace(engine, async_scheduling=False, origin=MappingProxyType(origin)))
    if engine.use_v2_model_runner is None:
        origin["use_v2_model_runner"] = f"engine profile {engine.engine_profile} (model)"
    engine = replace(engine, use_v2_model_runner=runs_v2, origin=MappingProxyType(origin))
    return replace(group, engine=engine)


def _runs_v2(group: Group, model: ModelConfig) -> bool:
    """Whether the engine takes Model Runner V2 (`VllmConfig.use_v2_model_runner`); given, it is as given."""
    given = group.engine.use_v2_model_runner
    lacks = "prefill context parallelism" if group.pcp > 1 else ""
    if group.engine.enable_sequence_parallelism and group.tp > 1:
        lacks = "sequence parallelism"
    if given and lacks:
        raise InputError(f"use_v2_model_runner is true, but vLLM's Model Runner V2 does not run {lacks}; remove it")
    if given is not None:
        return given
    known = load_profile(group.engine.engine_profile).v2_architectures
    names = model.architectures or (ARCHITECTURES.get(model.model_type, ""),)
    return any(name in known for name in names) and not lacks and not _drafts_of(group, runs_v2=True)


def _drafts_of(group: Group, *, runs_v2: bool) -> str:
    """What of the drafts the runner of these stages does not run; empty: nothing."""
    drafts = group.engine.speculation
    if drafts is None:
        return ""
    if not runs_v2:
        return "drafts by Model Runner V1"
    if drafts.method not in ("eagle", "mtp"):
        return f"drafts by {drafts.method}"
    if drafts.parallel:
        return "drafts from one pass"
    return "drafts by the size of the batch" if drafts.tokens_by_sequences else ""


def _not_yet(group: Group, model: ModelConfig) -> str:
    """What this version does not run together with stages that are scheduled ahead; empty: nothing."""
    if members_of(group, model) > 1:
        return "data-parallel ranks in lock-step"
    return "weights or operators outside of the devices" if group.offloading != Offloading() else ""
