"""SGLang's scheduler process, which also writes down each batch: when its launch began and ended,
when its tokens came back, and which tokens of which sequences it held.

SGLang runs its scheduler in a process of its own, by a function that its `Engine` names as an
attribute; `run_recording_scheduler` stands there, and the path of the record comes with the
environment.
"""

from __future__ import annotations

import inspect
import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from llmsim.profiler.serve.serve_log import Step

RECORD_VARIABLE = "LLMSIM_STEP_RECORD"
"""The environment variable with the path of the record."""
IDLE_LINES_S = 0.1
"""An idle scheduler says so about this often."""
LONGEST_WAIT_S = 30.0
"""How long the scheduler may take to say that nothing is left."""


def run_recording_scheduler(*arguments: Any) -> None:
    """SGLang's `run_scheduler_process`, with a record of the first rank of the first stage.

    The record holds one JSON object per step: `scheduled`, `launched` and `end` (seconds of
    `time.monotonic`), `batch` (new and cached tokens of each sequence), `running` and `waiting`
    (requests) and `kv_cache_usage` (0 to 1). It is written when no request is left, followed by
    `{"idle": seconds}` now and then, so that nothing is written while requests run.
    """
    from sglang.srt.managers import scheduler

    names = inspect.signature(scheduler.run_scheduler_process).bind(*arguments).arguments
    if names["tp_rank"] == 0 and names["pp_rank"] == 0:
        record_batches(scheduler.Scheduler, Path(os.environ[RECORD_VARIABLE]))
    scheduler.run_scheduler_process(*arguments)


def record_batches(scheduler_class: Any, path: Path) -> None:
    """Makes this class of schedulers write its batches to the file."""
    run_batch = scheduler_class.run_batch
    process_batch_result = scheduler_class.process_batch_result
    on_idle = scheduler_class.on_idle
    launched: deque[dict[str, Any]] = deque()
    ended: list[dict[str, Any]] = []
    last_idle = 0.0

    def recorded_launch(self: Any, batch: Any, *positions: Any, **names: Any) -> Any:
        row = {"scheduled": time.monotonic(), "batch": batch_of(batch)}
        result = run_batch(self, batch, *positions, **names)
        launched.append(row | {"launched": time.monotonic()} | _counters(self))
        return result

    def recorded_result(self: Any, batch: Any, result: Any, *positions: Any, **names: Any) -> Any:
        copied = getattr(result, "copy_done", None)
        if copied is not None:
            # What processing the result would wait for first, so that its own time is left out.
            copied.synchronize()
        ended.append(launched.popleft() | {"end": time.monotonic()})
        return process_batch_result(self, batch, result, *positions, **names)

    def recorded_idleness(self: Any, *positions: Any, **names: Any) -> Any:
        nonlocal last_idle
        now = time.monotonic()
        if ended or now - last_idle >= IDLE_LINES_S:
            with path.open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(step) + "\n" for step in ended)
                stream.write(json.dumps({"idle": now}) + "\n")
            ended.clear()
            last_idle = now
        return on_idle(self, *positions, **names)

    scheduler_class.run_batch = recorded_launch
    scheduler_class.process_batch_result = recorded_result
    scheduler_class.on_idle = recorded_idleness


def batch_of(batch: Any) -> list[tuple[int, int]]:
    """New and cached tokens of each sequence of SGLang's batch."""
    if batch.forward_mode.is_decode():
        # By now a sequence's length counts the token whose successor the step finds.
        return [(1, int(length) - 1) for length in batch.seq_lens_cpu.tolist()]
    return list(zip(batch.extend_lens, batch.prefix_lens, strict=True))


def _counters(scheduler: Any) -> dict[str, Any]:
    available = scheduler.token_to_kv_pool_allocator.available_size()
    return {
        "running": len(scheduler.running_batch.reqs),
        "waiting": len(scheduler.waiting_queue),
        "kv_cache_usage": 1 - available / scheduler.max_total_num_tokens,
    }


def take_steps(record: Path, last_token: float) -> list[Step]:
    """The steps of the record, which is emptied, once the scheduler was idle behind `last_token`.

    A step starts when its launch began or when the step before ended, whichever came later: with
    overlapped scheduling it is launched while the step before runs. Raises TimeoutError for a
    scheduler that does not become idle.
    """
    rows = _rows(record)
    deadline = time.monotonic() + LONGEST_WAIT_S
    while not any(row.get("idle", 0.0) >= last_token for row in rows):
        if time.monotonic() > deadline:
            raise TimeoutError(f"SGLang's scheduler was not idle within {LONGEST_WAIT_S:g} s")
        time.sleep(0.01)
        rows = _rows(record)
    steps: list[Step] = []
    for row in rows:
        if "idle" not in row:
            steps.append(_step(row, steps))
    record.write_text("", encoding="utf-8")
    return steps


def _rows(record: Path) -> list[dict[str, Any]]:
    if not record.exists():
        return []
    lines = record.read_text("utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _step(row: dict[str, Any], before: list[Step]) -> Step:
    start = row["scheduled"]
    if before:
        start = max(start, before[-1].end)
    counters = ("scheduled", "launched", "running", "waiting", "kv_cache_usage")
    batch = tuple((new, cached) for new, cached in row["batch"])
    return Step(start, row["end"], batch, extra={name: float(row[name]) for name in counters})
