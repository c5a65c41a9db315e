"""What an emulation says and writes: figures of its clients, a run folder, and how it differs from
the simulation of the same options.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.api.preparation.prepare import Prepared
from llmsim.columns import (
    Column,
    RequestColumns,
    RequestDurations,
    RequestNames,
    RequestSizes,
    RequestTokens,
    Table,
)
from llmsim.core import PS_PER_S
from llmsim.emulation.devices import Schedule
from llmsim.emulation.emulate import Asked, Emulated
from llmsim.emulation.load import Answer
from llmsim.export.files import check_writable_folder
from llmsim.export.json import write_json
from llmsim.simulation.run import native_simulation

PS_PER_MS = PS_PER_S // 1000
EVENTS_PER_CALL, WALL_MS_PER_CALL = 100_000, 1_000
_WRITTEN: dict[type[Table], tuple[str, ...]] = {
    RequestNames: ("request_id", "model", "status"),
    RequestColumns: ("arrival_ps", "first_token_ps", "finish_ps", "emitted_tokens"),
    RequestSizes: ("input_tokens", "output_tokens"),
    RequestDurations: ("ttft_ps", "e2el_ps"),
    RequestTokens: ("itl_ps",),
}
"""Columns of requests.parquet that clients can fill."""


def client_figures(emulated: Emulated) -> dict[str, Any]:
    """What clients saw, by the names of `vllm bench serve --save-detailed`; times in seconds."""
    asked = emulated.asked
    done = _finished(emulated)
    answers = [emulated.answers[row] for row in done]
    arrivals = np.array([one.arrival_ps for one in answers], dtype=np.int64)
    first = np.array([one.token_ps[0] for one in answers], dtype=np.int64) - arrivals
    last = np.array([one.token_ps[-1] for one in answers], dtype=np.int64) - arrivals
    tokens = np.array([len(one.token_ps) for one in answers], dtype=np.int64)
    gaps = [np.diff(np.array(one.token_ps, dtype=np.int64)) for one in answers]
    several = tokens > 1
    duration_s = emulated.virtual_ps / PS_PER_S
    inputs = [asked.input_tokens[row] for row in done]
    figures: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(asked.names) - len(done),
        "total_input_tokens": sum(inputs),
        "total_output_tokens": int(tokens.sum()),
        "request_throughput": len(done) / duration_s if duration_s else 0.0,
        "output_throughput": int(tokens.sum()) / duration_s if duration_s else 0.0,
    }
    for name, values in (
        ("ttft", first),
        ("tpot", (last - first)[several] / (tokens[several] - 1)),
        ("itl", np.concatenate(gaps) if gaps else np.empty(0)),
        ("e2el", last),
    ):
        figures |= _statistics(name, values)
    return figures | {
        "input_lens": inputs,
        "output_lens": tokens.tolist(),
        "start_times": (arrivals / PS_PER_S).tolist(),
        "ttfts": (first / PS_PER_S).tolist(),
        "itls": [(one / PS_PER_S).tolist() for one in gaps],
        "generated_texts": [""] * len(done),
        "errors": [""] * len(done),
    }


def write_folder(
    folder: Path,
    emulated: Emulated,
    model: str,
    figures: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> None:
    """Writes requests.parquet, client.json and manifest.json; raises InputError where it cannot."""
    from llmsim.export.parquet import write_rows

    target = check_writable_folder(folder)
    (target / "manifest.json").unlink(missing_ok=True)
    columns, schema = _request_columns(emulated, model)
    write_rows(columns, schema, target / "requests.parquet")
    write_json(figures, target / "client.json")
    write_json(manifest, target / "manifest.json")


def difference(emulated: Emulated, prepared: Prepared) -> str:
    """The first step in which the simulation of the same options decides otherwise; empty: none."""
    pairs = zip(_simulated(prepared, len(emulated.schedules)), emulated.schedules, strict=True)
    found = [
        (*first, number)
        for number, (ours, theirs) in enumerate(pairs)
        if (first := _first_difference(ours, theirs, prepared.workload.request_id)) is not None
    ]
    if not found:
        return ""
    _, said, group = min(found)
    return said if len(emulated.schedules) == 1 else f"engine core {group}, {said}"


def _finished(emulated: Emulated) -> list[int]:
    wanted = emulated.asked.output_tokens
    return [
        row for row, one in sorted(emulated.answers.items()) if len(one.token_ps) == wanted[row]
    ]


def _statistics(name: str, values: Any) -> dict[str, float]:
    if not len(values):
        return {}
    in_ms = np.asarray(values, dtype=np.float64) / PS_PER_MS
    figures = {"mean": in_ms.mean(), "median": np.median(in_ms)}
    figures |= {f"p{share}": np.percentile(in_ms, share) for share in (90, 95, 99)}
    return {f"{statistic}_{name}_ms": float(value) for statistic, value in figures.items()}


def _request_columns(emulated: Emulated, model: str) -> tuple[dict[str, Any], Sequence[Column]]:
    asked: Asked = emulated.asked
    schema = [
        column
        for table, names in _WRITTEN.items()
        for column in table.COLUMNS
        if column.name in names
    ]
    done = set(_finished(emulated))
    values: dict[str, list[Any]] = {column.name: [] for column in schema}
    for row, name in enumerate(asked.names):
        one = {
            "request_id": name,
            "model": model,
            "input_tokens": asked.input_tokens[row],
            "output_tokens": asked.output_tokens[row],
        }
        for key, value in (one | _times(emulated.answers.get(row), done=row in done)).items():
            values[key].append(value)
    return values, schema


def _times(answer: Answer | None, *, done: bool) -> dict[str, Any]:
    """The columns of one request's answer, which it has got in full if `done`."""
    if answer is None:
        arrival, times = None, []
    else:
        arrival, times = answer.arrival_ps, answer.token_ps
    first, finish = times[0] if times else None, times[-1] if done else None
    return {
        "status": "finished" if done else _unfinished(answer),
        "arrival_ps": arrival,
        "first_token_ps": first,
        "finish_ps": finish,
        "emitted_tokens": len(times),
        "ttft_ps": None if first is None or arrival is None else first - arrival,
        "e2el_ps": None if finish is None or arrival is None else finish - arrival,
        "itl_ps": [after - before for before, after in pairwise(times)],
    }


def _unfinished(answer: Answer | None) -> str:
    if answer is not None and answer.gave_up:
        return "cancelled"
    return "running" if answer is not None and answer.token_ps else "waiting"


Step = tuple[int, int, list[tuple[int, int, int]]]


def _steps(schedule: Schedule) -> list[Step]:
    return list(zip(schedule.formed_ps, schedule.end_ps, schedule.items, strict=True))


def _first_difference(
    ours: Schedule, theirs: Schedule, names: Sequence[str] | None
) -> tuple[int, str] | None:
    """When, and what; None: there is none."""
    for number, (mine, real) in enumerate(zip_longest(_steps(ours), _steps(theirs))):
        if mine is None or real is None:
            who, at = ("the engine", real) if mine is None else ("the simulation", mine)
            return at[0], f"step {number}: only {who} goes on"
        said = _step_difference(mine, real, names)
        if said:
            return real[0], f"step {number} at {real[0] / PS_PER_S:.6f} s: {said}"
    return None


def _simulated(prepared: Prepared, groups: int) -> list[Schedule]:
    """The steps of each group of the simulation."""
    recorded = tuple(range(groups))
    simulation = native_simulation(
        prepared.lowered, prepared.workload, prepared.simulation, recorded
    )
    while not simulation.run(EVENTS_PER_CALL, WALL_MS_PER_CALL):
        pass
    return [_schedule(simulation.schedule(group)) for group in recorded]


def _schedule(recorded: Mapping[str, Any]) -> Schedule:
    columns = {name: np.asarray(values).tolist() for name, values in recorded.items()}
    offsets, schedule = columns["item_offsets"], Schedule()
    names = ("item_request", "item_tokens", "item_computed")
    for number, (first, last) in enumerate(pairwise(offsets)):
        if last > first:
            items = zip(*(columns[name][first:last] for name in names), strict=True)
            schedule.add(columns["time_ps"][number], columns["end_ps"][number], list(items))
    return schedule


def _step_difference(ours: Step, real: Step, names: Sequence[str] | None) -> str:
    for mine, other in zip_longest(ours[2], real[2]):
        if mine != other:
            row = (other or mine)[0]
            name = str(row) if names is None else names[row]
            return f"request {name}: {_of_item(other, 'the engine')}, {_of_item(mine, 'the run')}"
    for what, mine_ps, real_ps in (("is formed", ours[0], real[0]), ("ends", ours[1], real[1])):
        if mine_ps != real_ps:
            return (
                f"the batch {what} at {real_ps / PS_PER_S:.9f} s in the engine and at "
                f"{mine_ps / PS_PER_S:.9f} s in the run"
            )
    return ""


def _of_item(item: tuple[int, int, int] | None, who: str) -> str:
    if item is None:
        return f"{who} leaves it out"
    return f"{who} computes {item[1]} tokens of row {item[0]} after {item[2]}"
