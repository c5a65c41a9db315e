"""How operators are run: as vLLM does, as transformers does, or inside transformers'
engine itself.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from llmsim.config.errors import InputError
from llmsim.model import Attention, Dtypes, ModelConfig
from llmsim.profiler.rank.dense import Style
from llmsim.profiler.rank.rank import measured_operators, refuse_unknown, sharded
from llmsim.profiler.serve.engine_steps import EngineSteps, open_engine

if TYPE_CHECKING:
    from llmsim.profiler.cli.measure import MeasureOptions

QUANTISED = "its weights are quantised, and those of a model that is made there are not"
AnyStyle = Style | Literal["auto", "engine"]


def chosen(
    torch: Any, device: Any, model: ModelConfig, dtypes: Dtypes, options: MeasureOptions
) -> tuple[EngineSteps | None, MeasureOptions, str]:
    """The engine inside which rows are taken, if it is to be; the options with their style and
    kernel; why it is not.

    "auto" is the engine on a CPU, where it runs the model, and vLLM's shapes elsewhere. Raises
    InputError where "engine" is asked for and cannot be.
    """
    wanted = options.style
    if wanted not in ("auto", "engine") or (
        wanted == "auto" and options.attention not in ("auto", "packed")
    ):
        return None, options if wanted != "auto" else replace(options, style="fused"), ""
    ops = measured_operators(model, sharded(model, options.degrees[0]), dtypes)
    refuse_unknown(model, ops)
    engine, why = None, QUANTISED
    if dtypes.weight == dtypes.activation:
        engine, why = open_engine(
            torch,
            device,
            options.model,
            model,
            dtypes.activation,
            ops,
            options.limits,
            options.clock,
            options.degrees,
        )
    if engine is not None:
        return engine, replace(options, style="engine", attention="packed", skew=False), ""
    if wanted == "engine":
        raise InputError(
            f'--style is "engine", which takes rows inside the engine of transformers: {why}'
        )
    if device.type != "cpu" or find_spec("transformers") is None:
        return None, replace(options, style="fused"), why
    packed = (
        not any(op.window for op in ops if isinstance(op, Attention))
        and not model.attention_sinks
        and model.latent is None
    )
    return (
        None,
        replace(options, style="eager", attention="packed" if packed else options.attention),
        why,
    )


def shapes(style: AnyStyle) -> Style:
    """How single kernels are called: inside its engine, in transformers' shapes."""
    return "fused" if style == "fused" else "eager"
