"""What has to hold for a run of any cluster with any options."""

import contextlib
import copy
import io
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import pyarrow.parquet as parquet

from llmsim.cli import INTERRUPTED, run_main
from mixes.clusters import Json, draw_cluster, instances_of
from mixes.options import draw_options

REFUSED = (2, 3)
"""Exit codes of bad input and of what cannot run."""
TIMES = ("_ps", "_aj", "_j", "_w")
"""Endings of columns that may differ between two runs of one schedule."""
WORK = ("completed", "cancelled", "refused", "rejected", "unfinished", "total_output_tokens")
"""Figures of a summary that say what was done, not when."""
EXACT_REQUESTS = 7
"""Requests of a trace that is also run expanded: every rank's nodes take their time."""


class Broken(AssertionError):
    """A run that does not keep what it must."""


@dataclass(frozen=True)
class Mix:
    """A cluster file and the options of its run."""

    document: Json
    options: tuple[str, ...]

    @staticmethod
    def of_seed(seed: int) -> "Mix":
        draw = random.Random(seed)
        document = draw_cluster(draw)
        return Mix(document, tuple(draw_options(draw, document)))


@dataclass
class Outcome:
    """How a run ended, and its summary where it ran."""

    code: int
    error: str
    summary: Json = field(default_factory=dict)

    @property
    def figures(self) -> Json:
        return {key: value for key, value in self.summary.items() if key != "notes"}


Change = Literal["none", "work", "routing", "batching"]
"""What twice the bandwidth changed first: nothing of the schedule; which requests end within the
horizon or before their clients leave; which group serves a request; or which requests share a step.
"""
CHANGES = get_args(Change)


@dataclass(frozen=True)
class Doubled:
    """One mix before and after its bandwidths were doubled."""

    change: Change
    ratio: float
    """Makespan with twice the bandwidth over the makespan without."""


def run(mix: Mix, folder: Path, *more: str) -> Outcome:
    """Runs the mix in this process, with its run folder under `folder`."""
    path = folder / "cluster.json"
    path.write_text(json.dumps(mix.document), encoding="utf-8")
    out, err = io.StringIO(), io.StringIO()
    command = [
        "--cluster-config",
        str(path),
        *mix.options,
        "--run-dir",
        str(folder / "run"),
        "--json",
        *more,
    ]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_main(command)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    summary = json.loads(out.getvalue()) if out.getvalue() else {}
    return Outcome(code, err.getvalue().strip(), summary)


def check_first(outcome: Outcome) -> bool:
    """Whether it ran; raises Broken where it ended in neither way that a run may end."""
    if outcome.code in REFUSED:
        sentence = outcome.error.splitlines()[-1:] or [""]
        if "error: " not in sentence[0] or len(outcome.error.splitlines()) != 1:
            raise Broken(f"exit {outcome.code} with {outcome.error!r}")
        if "internal error" in outcome.error or "Traceback" in outcome.error:
            raise Broken(outcome.error)
        return False
    if outcome.code != 0:
        raise Broken(f"exit {outcome.code}: {outcome.error}")
    summary = outcome.summary
    violated = {name: said for name, said in summary["invariants"].items() if said != "ok"}
    if violated:
        raise Broken(f"invariants: {violated}")
    ended = sum(
        summary[status]
        for status in ("completed", "cancelled", "rejected", "refused", "unfinished")
    )
    if ended != summary["workload"]["requests"]:
        raise Broken(f"{ended} of {summary['workload']['requests']} requests ended in some way")
    if summary["unfinished"] and summary["horizon_s"] is None:
        raise Broken(f"{summary['unfinished']} requests did not end")
    return True


def check_same_bytes(mix: Mix, first: Outcome, folder: Path) -> None:
    """Raises Broken where a second run says something else."""
    again = run(mix, folder)
    if again.summary != first.summary:
        raise Broken(f"two runs differ in {_differing(first.summary, again.summary)}")


def check_expanded(mix: Mix, first: Outcome, folder: Path) -> None:
    """Raises Broken where the expanded run has other figures than the folded one."""
    expanded = run(mix, folder, "--exact")
    if expanded.code in REFUSED and "exact" in expanded.error:
        return
    if expanded.figures != first.figures:
        differing = _differing(first.figures, expanded.figures)
        raise Broken(f"folded and expanded differ in {differing} {expanded.error}")


def check_doubled(mix: Mix, first: Outcome, folder: Path) -> Doubled | None:
    """How a run with twice the bandwidth of links and memories compares; None where nothing
    finished.

    Raises Broken where the schedule is the same and the run takes longer.
    """
    steps, requests = folder / "run" / "steps.parquet", folder / "run" / "requests.parquet"
    before, served_before = _schedule(steps), _served(requests)
    after = run(Mix(doubled(mix.document), mix.options), folder)
    if after.code != 0 or not first.summary["duration"] or not after.summary["duration"]:
        return None
    ratio = after.summary["duration"] / first.summary["duration"]
    change: Change = "batching"
    if _schedule(steps) == before:
        change = "none"
    elif any(first.summary[key] != after.summary[key] for key in WORK):
        change = "work"
    elif _served(requests) != served_before:
        change = "routing"
    if change == "none" and ratio > 1:
        raise Broken(f"with the same schedule, twice the bandwidth takes {ratio:.9f} times as long")
    return Doubled(change, ratio)


def doubled(document: Json) -> Json:
    """The cluster file with twice the bandwidth of every link and memory that it names."""
    other = copy.deepcopy(document)
    links = other["link_bw"]
    other["link_bw"] = [2 * rate for rate in links] if isinstance(links, list) else 2 * links
    memories = [instance["npu_mem"] for instance in instances_of(other)]
    memories += [node["cpu_mem"] for node in other["nodes"]]
    memories += [other["cxl_mem"]] if "cxl_mem" in other else []
    for memory in memories:
        memory["mem_bw"] *= 2
    stores = [holder["storage"] for holder in (other, *other["nodes"]) if "storage" in holder]
    for store in stores:
        store["read_bw"] *= 2
        store["write_bw"] *= 2
    return other


def check(seed: int, folder: Path) -> Doubled | None:
    """All of the above for one seed; None where the mix was refused or nothing finished. Raises
    Broken.
    """
    mix = Mix.of_seed(seed)
    first = run(mix, folder)
    if not check_first(first):
        return None
    check_same_bytes(mix, first, folder)
    if first.summary["workload"]["requests"] <= EXACT_REQUESTS:
        check_expanded(mix, first, folder)
        run(mix, folder)
    return check_doubled(mix, first, folder)


def _schedule(path: Path) -> dict[str, list[object]]:
    """Every column of the steps that says what ran, without those that say how long or at what
    energy.
    """
    table = parquet.read_table(path)
    return {
        name: table.column(name).to_pylist()
        for name in table.column_names
        if not name.endswith(TIMES)
    }


def _served(path: Path) -> list[object]:
    """The groups that served each request."""
    table = parquet.read_table(path)
    names = [name for name in ("group", "prefill_group") if name in table.column_names]
    return [table.column(name).to_pylist() for name in names]


def _differing(before: Json, after: Json) -> list[str]:
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]
