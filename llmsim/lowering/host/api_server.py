"""The API server of a group: what its processes work on requests, prompts and answers."""

from typing import TYPE_CHECKING

from llmsim.config import EngineArgs
from llmsim.config.engine.profile import FrontendCosts, load_profile
from llmsim.config.errors import NotYetError
from llmsim.config.units import ns_to_ps
from llmsim.model import ModelConfig

if TYPE_CHECKING:
    from llmsim import _native

HARMONY = ("gpt_oss",)
"""Types of models whose chats vLLM renders with openai-harmony, without a chat template."""
NOTHING = FrontendCosts(request_ns=0, prompt_token_ns=0, chunk_ns=0, latency_ns=0)


def frontend_costs(engine: EngineArgs, model: ModelConfig) -> FrontendCosts:
    """What the engine's profile says of the endpoint; nothing where clients ask the engine."""
    if engine.endpoint is None:
        return NOTHING
    known = load_profile(engine.engine_profile).frontend
    harmony = f"{engine.endpoint}_harmony"
    name = harmony if model.model_type in HARMONY and harmony in known else engine.endpoint
    return known.get(name, NOTHING)


def api_server(
    engine: EngineArgs, model: ModelConfig, role: str | None
) -> "_native.ApiServerConfig":
    """The core's view; raises NotYetError where prompts and answers are of different groups."""
    from llmsim import _native

    native = _native.ApiServerConfig()
    if engine.endpoint is None:
        return native
    if role is not None:
        raise NotYetError(
            f"endpoint {engine.endpoint} of an instance whose pd_type is {role}: the work of an "
            "API server does not run in this version where prefill and decode are apart; remove "
            "endpoint"
        )
    costs = frontend_costs(engine, model)
    native.processes = engine.api_server_count or 1
    native.request_ps = _given(engine.api_request_ps, costs.request_ns)
    native.prompt_token_ps = _given(engine.api_prompt_token_ps, costs.prompt_token_ns)
    native.chunk_ps = _given(engine.api_chunk_ps, costs.chunk_ns)
    return native


def _given(given_ps: int | None, profile_ns: int) -> int:
    return ns_to_ps(profile_ns) if given_ps is None else given_ps
