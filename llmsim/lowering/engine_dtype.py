"""What an engine makes of checkpoints in float32: the servers of vLLM and SGLang run them in 16
bits unless they are asked for float32.
"""

from types import MappingProxyType

from msgspec.structs import replace

from llmsim.config import EngineArgs
from llmsim.config.engine.profile import load_profile
from llmsim.model import ModelConfig

_NARROWED = "since the engine runs float32 checkpoints in 16 bits unless told otherwise"


def with_narrow_floats(engine: EngineArgs, model: ModelConfig) -> EngineArgs:
    """The engine with the type that it gives a checkpoint in float32, where none was asked for.

    vLLM: `_resolve_auto_dtype` of config/model.py; SGLang: `_get_and_verify_dtype` of
    configs/model_config.py.
    """
    narrow = load_profile(engine.engine_profile).float32_as
    if not narrow or engine.dtype not in (None, "auto") or model.dtype != "fp32":
        return engine
    origin = {**engine.origin, "dtype": f"{narrow}, {_NARROWED}"}
    return replace(engine, dtype=narrow, origin=MappingProxyType(origin))


def narrow_notes(engine: EngineArgs, model: ModelConfig) -> list[str]:
    """A sentence where the engine runs a checkpoint in float32 in 16 bits."""
    if not engine.origin.get("dtype", "").endswith(_NARROWED):
        return []
    return [f"{model.name} runs in {engine.dtype}, {_NARROWED} (--dtype float32)"]
