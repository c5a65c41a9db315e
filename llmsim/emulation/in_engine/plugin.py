"""vLLM's entry points: a device that is not there, and the virtual clock.

vLLM calls them in each of its processes (groups `vllm.platform_plugins`, `vllm.general_plugins`).
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from llmsim.emulation.in_engine.channel import current
from llmsim.emulation.in_engine.clock import ClockPage, TimeModule
from llmsim.emulation.in_engine.parent import die_with

SETTINGS = "LLMSIM_EMULATION"
"""The environment variable with what the processes have to know, as JSON."""
EXECUTOR = "llmsim.emulation.in_engine.executor"
STAMPED = (
    "vllm.renderers.base",
    "vllm.v1.request",
    "vllm.v1.engine",
    "vllm.v1.engine.input_processor",
    "vllm.v1.engine.output_processor",
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.core.kv_cache_metrics",
    "vllm.v1.metrics.stats",
    "vllm.v1.metrics.loggers",
)
"""Modules whose times are of requests and steps. All others keep the real clock: they wait for
processes and sockets.
"""


def settings() -> dict[str, Any]:
    """What `llmsim emulate` has set for this server."""
    found: dict[str, Any] = json.loads(os.environ[SETTINGS])
    return found


def platform() -> str | None:
    """The class of the device; None where no `llmsim emulate` has started this process."""
    if SETTINGS not in os.environ:
        return None
    return "llmsim.emulation.in_engine.device.VirtualDevice"


def general() -> None:
    """Puts the clock into the modules that stamp times, and the executor into the engine."""
    if SETTINGS not in os.environ:
        return
    given = settings()
    die_with(given["pid"])
    _stamp_virtual_times(ClockPage(given["clock"]))
    if given["connector"] is not None:
        rests = _goes_on if given["lockstep"] else _rest
        _sleep_in_virtual_time(ClockPage(given["clock"]), rests)
    if given["v2_runner"]:
        import vllm.config.vllm as config

        config.HAS_TRITON = True  # its kernels are never run
    if given["encoder"] is not None:
        from llmsim.emulation.in_engine.encoder import give_budgets

        give_budgets(given["encoder"])
    _give_executor()
    from llmsim.emulation.in_engine.coordinator import hook_balancer, hook_coordinator
    from llmsim.emulation.in_engine.hooks import hook_engine_core, hook_ranks

    hook_engine_core()
    if given["lockstep"]:
        hook_ranks()
    server = given["engines"][0]
    hook_coordinator(given["socket"], ClockPage(given["clock"]), server)
    hook_balancer(given["socket"], server)


def _stamp_virtual_times(clock: ClockPage) -> None:
    """Modules that call `time.time()` through their own name of the module get ours under it."""
    import time as real

    virtual = TimeModule(clock)
    for name in STAMPED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            continue  # this release has no such module
        module = sys.modules[name]
        if getattr(module, "time", None) is real:
            module.time = virtual  # type: ignore[attr-defined]


def _sleep_in_virtual_time(clock: ClockPage, sleeps: Callable[[float], None]) -> None:
    """The engine core sleeps where all of its requests wait for KV, so that other threads move it.
    No work of threads takes virtual time.
    """
    from vllm.v1.engine import core

    core.time = TimeModule(clock, sleeps)


def _rest(_: float) -> None:
    """An engine core that is alone goes on as soon as there is something for it."""
    channel = current()
    if channel is not None:
        channel.rest()


def _goes_on(_: float) -> None:
    """A rank in lock-step runs a dummy; between two waves, it rests (`hook_ranks`)."""


def _give_executor() -> None:
    """As a class: vLLM takes a name for one that cannot run pipeline stages."""
    from vllm.engine.arg_utils import EngineArgs

    resolve = EngineArgs.create_engine_config
    if getattr(resolve, "_llmsim", False):
        return

    def with_executor(self: Any, *args: Any, **options: Any) -> Any:
        executor = importlib.import_module(EXECUTOR).VirtualExecutor
        self.distributed_executor_backend = executor
        return resolve(self, *args, **options)

    with_executor._llmsim = True  # type: ignore[attr-defined]
    EngineArgs.create_engine_config = with_executor
