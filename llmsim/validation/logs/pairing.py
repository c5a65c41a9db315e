"""Finds, for each request of a log, the same request in a simulated run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmsim.config.errors import InputError
from llmsim.validation.logs.recording import Finding, Recording

_NUMBER = re.compile(r"([0-9]+)[^0-9]*$")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of the log and of the simulation that are one request, in the log's order of arrival."""

    real: Recording
    simulated: Recording
    findings: tuple[Finding, ...]
    runs: tuple[Recording, Recording]
    """Both runs with all of their requests."""


def pair(real: Recording, simulated: Recording) -> Pairs:
    """Pairs by request id where both runs use the same ids, else by the last number of each id
    ("bench-17": 17).

    Raises InputError when no request is in both, or an id occurs twice.
    """
    for recording in (real, simulated):
        refuse_twice(recording)
        if not len(recording):
            raise InputError(
                f"{recording.source}: no request finished; there is nothing to compare"
            )
    matches = matching_rows(real.request_id, simulated.request_id)
    both = [(row, match) for row, match in enumerate(matches) if match >= 0]
    if not both:
        raise InputError(
            f"{real.source} and {simulated.source} have no request in common (ids such as "
            f'"{real.request_id[0]}" and '
            f'"{simulated.request_id[0]}"); simulate the trace that was recorded'
        )
    rows = np.array(both, dtype=np.int64)
    if real.has_arrivals:
        rows = rows[np.argsort(real.arrival_s[rows[:, 0]], kind="stable")]
    findings = []
    failed = real.failed.request_id
    failed_rows = matching_rows(failed, simulated.request_id) if failed else []
    known = {match for match in (*matches, *failed_rows) if match >= 0}
    if len(both) < len(real) or len(known) < len(simulated):
        sentence = (
            f"different requests: {len(real)} in {real.source}, {len(simulated)} in "
            f"{simulated.source}, "
            f"{len(both)} in both; the others loaded only one of the two"
        )
        findings.append(Finding("counts", True, sentence))
    both_runs = (real, simulated)
    return Pairs(real.rows(rows[:, 0]), simulated.rows(rows[:, 1]), tuple(findings), both_runs)


def refuse_twice(recording: Recording) -> None:
    """Raises InputError where two requests have one id."""
    twice = _twice(recording.request_id)
    if twice is not None:
        raise InputError(
            f'{recording.source}: the request id "{twice}" occurs twice; name each request '
            "differently, or leave request_id out of the trace"
        )


def _twice(ids: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            return name
        seen.add(name)
    return None


def matching_rows(wanted: Sequence[str], available: Sequence[str]) -> list[int]:
    """For each id of `wanted`, the row of the same request in `available`, or -1."""
    first, second = _keys(wanted, available)
    row_of = {key: row for row, key in enumerate(second)}
    return [row_of.get(key, -1) for key in first]


def _keys(a: Sequence[str], b: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The ids, or their numbers where the runs name their requests differently."""
    if set(a) == set(b):
        return a, b
    first, second = _numbers(a), _numbers(b)
    return (a, b) if first is None or second is None else (first, second)


def _numbers(ids: Sequence[str]) -> list[str] | None:
    """The last number of each id; None: some id has none, or two have the same."""
    matches = [_NUMBER.search(name) for name in ids]
    numbers = [match.group(1) for match in matches if match is not None]
    tell_apart = len(set(numbers)) == len(ids)
    return [number.lstrip("0") for number in numbers] if tell_apart else None
