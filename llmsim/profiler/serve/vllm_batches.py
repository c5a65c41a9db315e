"""A scheduler of vLLM that also writes down each batch: when it was formed, when its tokens came
back, and which tokens of which sequences it held.

vLLM's own statistics count a step's tokens and do not tell its batch. The engine core makes its
scheduler from a class that the options name, in its own process; `recording_scheduler` is named
there, and the path of the record comes with the environment.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from llmsim.profiler.serve.serve_log import Step

QUALIFIED_NAME = f"{__name__}.recording_scheduler"
RECORD_VARIABLE = "LLMSIM_STEP_RECORD"
"""The environment variable with the path of the record."""


def recording_scheduler(vllm_config: Any, **arguments: Any) -> Any:
    """The scheduler that vLLM would make of this configuration, with a record.

    The record holds one JSON object per step: `scheduled` and `end` (seconds of
    `time.monotonic`), `batch` (new and cached tokens of each sequence), `running` and `waiting`
    (requests) and `kv_cache_usage` (0 to 1). It is written whenever no request is left, so that
    nothing is written while requests run.
    """
    if vllm_config.scheduler_config.async_scheduling:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Scheduler
    else:
        from vllm.v1.core.sched.scheduler import Scheduler

    class RecordingScheduler(Scheduler):  # type: ignore[misc, valid-type, unused-ignore]
        def __init__(self, *positions: Any, **names: Any) -> None:
            super().__init__(*positions, **names)
            self._record = Path(os.environ[RECORD_VARIABLE])
            self._running_steps: deque[dict[str, Any]] = deque()
            self._ended_steps: list[dict[str, Any]] = []

        def schedule(self, *positions: Any, **names: Any) -> Any:
            output = super().schedule(*positions, **names)
            if output.total_num_scheduled_tokens:
                self._running_steps.append(
                    {
                        "scheduled": time.monotonic(),
                        "batch": [
                            # By now the scheduler counts the step's tokens as computed.
                            (new, self.requests[name].num_computed_tokens - new)
                            for name, new in output.num_scheduled_tokens.items()
                        ],
                        "running": len(self.running),
                        "waiting": len(self.waiting),
                        "kv_cache_usage": self.kv_cache_manager.usage,
                    }
                )
            return output

        def update_from_output(self, scheduler_output: Any, *positions: Any, **names: Any) -> Any:
            if scheduler_output.total_num_scheduled_tokens:
                self._ended_steps.append(self._running_steps.popleft() | {"end": time.monotonic()})
            outputs = super().update_from_output(scheduler_output, *positions, **names)
            if not self.requests:
                self._write()
            return outputs

        def _write(self) -> None:
            with self._record.open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(step) + "\n" for step in self._ended_steps)
            self._ended_steps.clear()

    return RecordingScheduler(vllm_config=vllm_config, **arguments)


def take_steps(record: Path) -> list[Step]:
    """The steps of the record, which is emptied.

    A step starts when it was formed or when the step before ended, whichever came later: with
    asynchronous scheduling it is formed while the step before runs.
    """
    if not record.exists():
        return []
    steps: list[Step] = []
    for line in record.read_text("utf-8").splitlines():
        row = json.loads(line)
        before = steps[-1].end if steps else row["scheduled"]
        extra = {name: float(row[name]) for name in ("running", "waiting", "kv_cache_usage")}
        extra["scheduled"] = row["scheduled"]
        batch = tuple((new, cached) for new, cached in row["batch"])
        steps.append(Step(max(before, row["scheduled"]), row["end"], batch, extra=extra))
    record.write_text("", encoding="utf-8")
    return steps
