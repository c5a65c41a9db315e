"""SGLang's entry point: the virtual clock, simulated devices, and counts of messages.

SGLang calls it in its server and in its scheduler's process (group `sglang.srt.plugins`).
"""

import importlib
import os
import sys
import time as real

from llmsim.emulation.in_engine.clock import ClockPage, TimeModule
from llmsim.emulation.in_engine.parent import die_with
from llmsim.emulation.in_engine.plugin import SETTINGS, settings

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
    die_with(given["pid"])
    _stamp_virtual_times(ClockPage(given["clock"]))
    from llmsim.emulation.in_engine.sglang.scheduler import hook_scheduler

    hook_scheduler(given["socket"], given["first_engine"])


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
