"""Replays schedules recorded from a real vLLM scheduler and finds the first difference, step by step.

A recording is one JSON object per file, plain or gzip: a case (llmsim.scheduling.cases) and its `steps`.
"""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llmsim.config import input_files
from llmsim.config.errors import InputError
from llmsim.scheduling.cases import Case, run_case


@dataclass(frozen=True)
class Verdict:
    """Outcome of one replay: `difference` is empty when every step was identical."""

    path: Path
    steps: int
    difference: str

    @property
    def identical(self) -> bool:
        return not self.difference


def find_recordings(paths: Iterable[Path]) -> list[Path]:
    """All recordings among files and folders, sorted; raises InputError where there is none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in input_files.entries(path) if p.name.endswith((".json", ".json.gz")))
            if not inside:
                raise InputError(f'no recorded schedule (.json or .json.gz) in folder "{path}".')
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f'recorded schedule "{path}" does not exist; give a .json or .json.gz file or a folder.')
    return found


def load_recording(path: Path) -> Case:
    """One recording; raises InputError naming the file when it is not one."""
    try:
        data = input_files.read_bytes(path)
        case = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f'recorded schedule "{path}" cannot be read as JSON ({error}).') from None
    missing = {"config", "resolved", "requests", "steps"} - set(case if isinstance(case, dict) else ())
    if missing:
        raise InputError(f'"{path}" is not a recorded schedule: it has no "{min(missing)}".')
    return case  # type: ignore[no-any-return]


def replay(path: Path) -> Verdict:
    """Runs the recording's requests through the native scheduler and compares every step."""
    case = load_recording(path)
    try:
        ours = list(run_case(case))
    except KeyError as error:
        raise InputError(f'recorded schedule "{path}" has no field {error}.') from None
    theirs = [_normalise(step) for step in case["steps"]]
    for number, (mine, recorded) in enumerate(zip(ours, theirs, strict=False)):
        for field, value in recorded.items():
            if mine[field] != value:
                return Verdict(path, number, f"step {number}: {field} is {mine[field]}, recorded {value}")
    if len(ours) != len(theirs):
        return Verdict(path, min(len(ours), len(theirs)), f"{len(ours)} steps, recorded {len(theirs)}")
    return Verdict(path, len(theirs), "")


def _ps(seconds: float) -> int:
    """Recorded times are seconds rounded to nanoseconds."""
    return round(seconds * 1e9) * 1000


def _normalise(step: Case) -> Case:
    """The fields to compare, with times in ps and unordered lists sorted."""
    fields: Case = {
        "schedule_ps": _ps(step["t"]),
        "scheduled": [tuple(item) for item in step["sched"]],
        "running": step["running"],
        "waiting": step["waiting"],
        "free_blocks": step["free_blocks"],
        "preempted": sorted(step.get("preempted", [])),
        "drafts": step.get("spec", {}),
    }
    if step["sched"]:
        fields |= {
            "end_ps": _ps(step["t_end"]),
            "free_blocks_after": step["free_blocks_after"],
            "finished": sorted(step.get("finished", [])),
        }
    return fields
