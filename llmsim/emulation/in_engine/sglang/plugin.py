"""SGLang's entry point: the virtual clock, simulated devices, and counts of messages.

SGLang calls it in its server and in its scheduler's process (group `sglang.srt.plugins`).
"""

import importlib
import os
import sys
import tempfile
import time as real
from pathlib import Path
from typing import Any

from llmsim.emulation.in_engine.clock import ClockPage, TimeModule
from llmsim.emulation.in_engine.plugin import SETTINGS, settings

_LOOK_MS = 100
STAMPED = (
    "sglang.srt.observability.req_time_stats",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.scheduler_components.metrics_reporter",
)
"""Modules whose times are of requests and steps. All others keep the real clock: they wait for
processes and sockets.
"""


def general() -> None:
    """Puts the clock into the modules that stamp times, and our devices under the scheduler."""
    if SETTINGS not in os.environ:
        return
    given = settings()
    _stamp_virtual_times(ClockPage(given["clock"]))
    _keep_loads_beside_sockets()
    _abort_at_once()
    if given["ranks"] > 1:
        _let_controller_wait()
    from llmsim.emulation.in_engine.sglang.scheduler import hook_scheduler

    hook_scheduler(given)


def _stamp_virtual_times(clock: ClockPage) -> None:
    """Modules that call `time.time()` through their own name of the module get ours under it."""
    virtual = TimeModule(clock)
    for name in STAMPED:
        importlib.import_module(name)
        module = sys.modules[name]
        if getattr(module, "time", None) is real:
            module.time = virtual  # type: ignore[attr-defined]
    stats = sys.modules[STAMPED[0]]
    stats.real_time = virtual.time  # type: ignore[attr-defined]
    stats.monotonic_time = virtual.perf_counter  # type: ignore[attr-defined]


def _keep_loads_beside_sockets() -> None:
    """SGLang leaves a file with its load in /dev/shm for each server that has ever run; here the
    file lies in the folder of temporary files, which goes with the emulation.
    """
    from sglang.srt.managers import load_snapshot

    path_of = load_snapshot.shm_path_for

    def shm_path_for(instance: str) -> str:
        return str(Path(tempfile.gettempdir()) / Path(path_of(instance)).name)

    load_snapshot.shm_path_for = shm_path_for


def _abort_at_once() -> None:
    """SGLang waits behind the end of a stream before it tells the scheduler that its client has
    left. Here clients wait so long, in virtual time, before they close their connections.
    """
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from starlette.background import BackgroundTask

    def create_abort_task(self: Any, obj: Any) -> Any:
        return BackgroundTask(_aborts, self, obj.rid)

    TokenizerManager.create_abort_task = create_abort_task


async def _aborts(manager: Any, name: str) -> None:
    """Nothing happens where the request has its answer."""
    manager.abort_request(name)


def _let_controller_wait() -> None:
    """The controller of ranks looks for messages without a pause; that would count as progress, and
    take a core.
    """
    from sglang.srt.managers import data_parallel_controller

    receive = data_parallel_controller.sock_recv

    def sock_recv(source: Any, flags: int = 0) -> Any:
        source.poll(_LOOK_MS)
        return receive(source, flags)

    data_parallel_controller.sock_recv = sock_recv
