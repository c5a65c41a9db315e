"""Runs a case with two programs and compares what both told: when NPUs finished, their statistics,
and when every node was issued and ended.
"""

import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from engine.upstream.case import Case

FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles, exposed communication (-?\d+) cycles")
STATISTIC = re.compile(r"\[statistics\] \[info\] sys\[(\d+)\], ([^:]+): (\S+)")
NODE = re.compile(r"\[debug\] (issue|callback),sys->id=(\d+), tick=(\d+), node->id=(\d+)")


class Outcome(Enum):
    EQUAL = "equal"
    DIFFERENT = "different"
    UPSTREAM_FAILED = "upstream failed"


@dataclass(frozen=True)
class Told:
    """What a program said; `failure` where it broke off."""

    figures: dict[tuple[str, ...], str]
    failure: str = ""


def tell(executable: Path, case: Case, folder: Path, timeout_s: float) -> Told:
    """Figures by (what, NPU, ...)."""
    log = folder / "log"
    shutil.rmtree(log, ignore_errors=True)
    try:
        done = subprocess.run(
            [str(executable), *case.options(), "--logging-folder=log"],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Told({}, f"no end after {timeout_s:g} s")
    figures: dict[tuple[str, ...], str] = {}
    for npu, at, exposed in FINISHED.findall(done.stdout):
        figures["finish", npu] = at
        figures["exposed communication", npu] = exposed
    for npu, name, value in STATISTIC.findall(done.stdout):
        figures[name, npu] = value
    text = (log / "log.log").read_text(errors="replace") if (log / "log.log").exists() else ""
    for what, npu, tick, node in NODE.findall(text):
        figures[what, npu, node] = tick
    return Told(figures, _failure(done))


def _failure(done: "subprocess.CompletedProcess[str]") -> str:
    """Exit code 3 is ours for nodes that never end: upstream exits with 0 there."""
    if done.returncode in (0, 3):
        return ""
    last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
    if done.returncode < 0:
        return f"{signal.Signals(-done.returncode).name}: {last}"
    return f"exit {done.returncode}: {last}"


def compare(
    ours: Path, upstream: Path, case: Case, folder: Path, timeout_s: float
) -> tuple[Outcome, str]:
    """The outcome, and the first differences. Where upstream broke off there is nothing to compare;
    statistics that it does not print (of NPUs with CPU or memory nodes) are no difference.
    """
    case.write(folder)
    theirs = tell(upstream, case, folder, timeout_s)
    if theirs.failure:
        return Outcome.UPSTREAM_FAILED, theirs.failure
    mine = tell(ours, case, folder, timeout_s)
    if mine.failure:
        return Outcome.DIFFERENT, f"strict rules broke off ({mine.failure}), upstream did not"
    told = {"finish", "exposed communication", "issue", "callback"}
    keys = theirs.figures.keys() | {key for key in mine.figures if key[0] in told}
    if not any(key[0] == "issue" for key in theirs.figures):  # a build without debug lines
        keys = {key for key in keys if key[0] not in ("issue", "callback")}
    wrong = sorted(key for key in keys if mine.figures.get(key) != theirs.figures.get(key))
    if not wrong:
        return Outcome.EQUAL, ""
    first = [
        f"{' '.join(key)}: {mine.figures.get(key, 'nothing')} for "
        f"{theirs.figures.get(key, 'nothing')}"
        for key in wrong[:4]
    ]
    return Outcome.DIFFERENT, f"{len(wrong)} figures (ours for upstream's): " + "; ".join(first)
