"""The vision tower of a group: whether its time is modelled, and what it adds to the operators."""

from llmsim.config import EngineArgs, Group
from llmsim.config.engine.profile import load_profile
from llmsim.config.engine.scheduler_kinds import INSTALLED, VLLM
from llmsim.core import ENCODER_TOKENS
from llmsim.lowering.parallel_layout import untimed_layout
from llmsim.model import Dtypes, Hardware, Layout, Operator
from llmsim.model.operators.encoder import EncoderOperators
from llmsim.model.types import ModelConfig


def untimed_encoder(
    group: Group, model: ModelConfig, layout: Layout, hardware: Hardware | None
) -> str:
    """With what the time of a group's encoder is not modelled; "": it is."""
    if not has_budgets(group.engine):
        return "an engine whose budgets of an encoder are not modelled"
    if group.engine.scheduler == INSTALLED:
        return "the scheduler of the installed vLLM"
    if model.vision is None:
        return "a model file that describes no vision tower"
    if model.vision.shapes is None:
        return "a vision_config that leaves open how many patches a token has"
    reason = untimed_layout(group, layout)
    if not reason and (hardware is None or not dict(hardware.flops)):
        reason = "devices whose peak rate is not known"
    return reason


def has_budgets(engine: EngineArgs) -> bool:
    """Whether steps end in front of what the encoder has no budget for (vLLM from 0.24 on)."""
    knows = load_profile(engine.engine_profile).schedules_by("encodes_inputs")
    return knows and engine.scheduler in (VLLM, INSTALLED)


def step_tokens(engine: EngineArgs) -> int:
    """Tokens of encoder inputs of a step, before anybody knows its largest input."""
    return engine.max_num_encoder_input_tokens or engine.max_num_batched_tokens


def timed_tokens(engine: EngineArgs) -> int:
    """Tokens of encoder inputs of a step that have times, and of one input at most."""
    return max(step_tokens(engine), ENCODER_TOKENS)


def encoder_operators(
    model: ModelConfig, layout: Layout, dtypes: Dtypes, engine: EngineArgs
) -> tuple[Operator, ...]:
    """Of one rank of the first stage, in front of the text part."""
    tower = model.vision
    assert tower is not None and tower.shapes is not None, "untimed_encoder looked"
    return EncoderOperators(tower, tower.shapes, layout, dtypes).of_step(timed_tokens(engine))
