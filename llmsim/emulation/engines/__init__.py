"""The engines whose servers are emulated; each is an object (`engine.Engine`)."""

from llmsim.emulation.engines.engine import Engine
from llmsim.emulation.engines.sglang import Sglang
from llmsim.emulation.engines.vllm import Vllm

ENGINES: dict[str, Engine] = {one.name: one for one in (Vllm(), Sglang())}
"""By name."""
