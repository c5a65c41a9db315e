"""How an engine schedules pipeline stages, once the model is known: by which of vLLM's model
runners, or not ahead.
"""

from types import MappingProxyType

from msgspec.structs import replace

from llmsim.config import Group
from llmsim.config.deployment import Offloading
from llmsim.config.engine.profile import load_profile
from llmsim.config.errors import InputError, NotYetError
from llmsim.lowering.parallel_layout import members_of
from llmsim.model import ModelConfig

ARCHITECTURES = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""By model_type, for a config.json that names none."""
RUN_AHEAD_DRAFTS = ("drafts by eagle", "drafts by eagle3", "drafts by mtp")
"""Draft features that run with asynchronous pipeline stages; their schedule is that of eagle,
compared with vLLM's.
"""


def architectures_of(model: ModelConfig) -> tuple[str, ...]:
    """The names of the model's classes in vLLM, as far as its config.json or its type tells."""
    return model.architectures or (ARCHITECTURES.get(model.model_type, ""),)


def with_stages(group: Group, model: ModelConfig, *, tiers: bool) -> Group:
    """The group with `async_scheduling` and `use_v2_model_runner` settled.

    vLLM schedules pipeline stages ahead like everything else since 0.24
    (`VllmConfig.__post_init__`): by Model Runner V2 for the architectures of the engine's profile,
    by V1 for others. A layout that does not run in that way keeps one batch for each stage. The
    option's origin says so where asynchronous scheduling is the default; where the user asked for
    it, InputError or NotYetError refuses the layout.
    """
    engine = group.engine
    if group.pp == 1 or not engine.async_scheduling:
        return group
    asked = not engine.is_default("async_scheduling")
    runs_v2 = _runs_v2(group, model)
    reason = _drafts_that_vllm_refuses(group, runs_v2=runs_v2)
    if reason and asked:
        raise InputError(
            f"async_scheduling is true ({engine.origin['async_scheduling']}) with {group.pp} "
            "pipeline stages and "
            f"{reason}, which {engine.engine_profile} does not run; set it false"
        )
    if not reason:
        reason = _not_yet(group, model)
        if reason and asked:
            raise NotYetError(
                f"async_scheduling with pipeline stages and {reason} does not run in this "
                "version; set it false"
            )
    if not reason and not asked and (group.pd_type is not None or tiers):
        reason = "KV on its way"
    origin = dict(engine.origin)
    if reason:
        origin["async_scheduling"] = f"off with {group.pp} pipeline stages and {reason}"
        return replace(
            group, engine=replace(engine, async_scheduling=False, origin=MappingProxyType(origin))
        )
    if engine.use_v2_model_runner is None:
        origin["use_v2_model_runner"] = f"engine profile {engine.engine_profile} (model)"
    engine = replace(engine, use_v2_model_runner=runs_v2, origin=MappingProxyType(origin))
    return replace(group, engine=engine)


def _runs_v2(group: Group, model: ModelConfig) -> bool:
    """Whether the engine takes Model Runner V2 (`VllmConfig.use_v2_model_runner`); InputError
    refuses a given value.
    """
    profile = load_profile(group.engine.engine_profile)
    given, rules = group.engine.use_v2_model_runner, profile.v2_runner
    lacking = [feature for feature in _layout_features(group) if feature in rules.lacks]
    if given and lacking:
        raise InputError(
            f"use_v2_model_runner is true, but vLLM's Model Runner V2 does not run {lacking[0]}; "
            "remove it"
        )
    if given is False and rules.alone:
        raise InputError(
            f"use_v2_model_runner is false, but {profile.name} runs asynchronous pipeline stages "
            "by Model Runner V2 alone; remove it, or set async_scheduling false"
        )
    if given is not None:
        return given
    names = architectures_of(model)
    lacking += [feature for feature in _draft_features(group) if feature in rules.lacks]
    dense = model.num_moe_layers == 0 and model.linear is None
    return rules.takes(names, dense=dense) and not lacking


def _layout_features(group: Group) -> tuple[str, ...]:
    """Features of `V2_FEATURES` that the group's layout uses."""
    context = ("prefill context parallelism",) if group.pcp > 1 else ()
    sequence = (
        ("sequence parallelism",)
        if group.engine.enable_sequence_parallelism and group.tp > 1
        else ()
    )
    return context + sequence


def _draft_features(group: Group) -> tuple[str, ...]:
    """Features of `V2_FEATURES` that the group's drafts use."""
    drafts = group.engine.speculation
    if drafts is None:
        return ()
    found = [f"drafts by {drafts.method}"]
    if drafts.parallel:
        found.append("drafts from one pass")
    if drafts.tokens_by_sequences:
        found.append("drafts by the size of the batch")
    return tuple(found)


def _drafts_that_vllm_refuses(group: Group, *, runs_v2: bool) -> str:
    """The feature of the drafts that this version's runner lacks with asynchronous stages; empty if
    it lacks none.
    """
    if group.engine.speculation is None:
        return ""
    rules = load_profile(group.engine.engine_profile).v2_runner
    if not runs_v2 and not rules.alone:
        return "drafts by Model Runner V1"
    return next((feature for feature in _draft_features(group) if feature in rules.lacks), "")


def _not_yet(group: Group, model: ModelConfig) -> str:
    """The feature that this version does not run together with asynchronous pipeline stages; empty
    if there is none.
    """
    if members_of(group, model) > 1:
        return "data-parallel ranks in lock-step"
    unproven = [feature for feature in _draft_features(group) if feature not in RUN_AHEAD_DRAFTS]
    if unproven:
        return unproven[0]
    return "weights or operators outside of the devices" if group.offloading != Offloading() else ""
