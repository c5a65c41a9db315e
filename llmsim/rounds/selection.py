"""Which steps of a run become graphs, as `--graphs FOLDER[:KEY=VALUE[,...]]` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmsim.config.errors import InputError

if TYPE_CHECKING:
    from llmsim.rounds.recorded import RecordedSteps

FORMATS = ("json", "et", "dot", "graphml")
CHOICES = ("every", "slowest", "request", "step")
EXAMPLE = "graphs:slowest=5,format=et"


@dataclass(frozen=True)
class GraphSelection:
    """The folder of the graphs, their format, and the steps; at most one choice is given."""

    folder: Path
    form: str = "json"
    every: int | None = None
    slowest: int | None = None
    """So many of each group, the longest first."""
    request: str | None = None
    """Steps with tokens of this request."""
    steps: tuple[int, ...] = ()
    """Iterations of every group, from 0."""
    group: int | None = None
    """None: all groups."""
    dummies: bool = False
    """Steps without work, too, with which groups join rounds of their lock-step group."""

    def of(self, recorded: RecordedSteps, requests: Sequence[str] | None) -> list[int]:
        """Places of the chosen steps among all steps of a group, in the order of time; `requests`
        are the names of the trace, if it has any.
        """
        worked = [int(recorded.worked[one]) for one in self._iterations(recorded, requests)]
        dummies = recorded.dummies.tolist() if self.dummies else []
        return sorted([*worked, *(place for place in dummies if recorded.has_at(place))])

    def _iterations(self, recorded: RecordedSteps, requests: Sequence[str] | None) -> list[int]:
        found = recorded.iterations()
        if self.slowest is not None:
            return sorted(sorted(found, key=recorded.slowness)[: self.slowest])
        if self.request is not None:
            number = request_number(self.request, recorded.num_requests, requests)
            return [one for one in found if number in recorded.requests(one)]
        if self.steps:
            return [one for one in found if one in self.steps]
        return found[:: self.every or 1]


def check_selection(
    selection: GraphSelection,
    num_groups: int | None,
    num_requests: int,
    requests: Sequence[str] | None,
) -> None:
    """Raises InputError where a selection names a group or a request that there is not; how many
    groups there will be is unknown (None) where layouts take turns.
    """
    if num_groups is not None and selection.group is not None and selection.group >= num_groups:
        raise InputError(
            f"--graphs: group is {selection.group}; the cluster has the groups 0 to "
            f"{num_groups - 1}"
        )
    if selection.request is not None:
        request_number(selection.request, num_requests, requests)


def request_number(text: str, count: int, names: Sequence[str] | None) -> int:
    """The place of a request in the trace, by its `request_id` or by its number from 0.

    Raises InputError where there is no such request.
    """
    if names is not None and text in names:
        return list(names).index(text)
    if text.isdecimal() and int(text) < count:
        return int(text)
    known = "a request_id of the trace, or " if names is not None else ""
    raise InputError(f'request is "{text}"; it may be {known}a number from 0 to {count - 1}')


def parse_selection(text: str) -> GraphSelection:
    """`--graphs`; raises InputError."""
    folder, colon, tail = text.rpartition(":")
    if not colon or "=" not in tail:
        folder, tail = text, ""
    if not folder:
        raise InputError(f'--graphs is "{text}"; it needs a folder, as in {EXAMPLE}')
    found: dict[str, str] = {}
    for part in filter(None, tail.split(",")):
        key, equals, value = part.partition("=")
        if key not in (*CHOICES, "format", "group", "dummies") or not equals or not value:
            raise InputError(
                f'--graphs: "{part}" is no choice; it may be every=N, slowest=K, request=ID, '
                "step=N, group=N, dummies=yes or format=json, et, dot or graphml"
            )
        found[key] = value
    given = [key for key in CHOICES if key in found]
    if len(given) > 1:
        raise InputError(f"--graphs: {' and '.join(given)} exclude each other; give one of them")
    form = found.get("format", "json")
    if form not in FORMATS:
        raise InputError(f'--graphs: format is "{form}"; it may be {", ".join(FORMATS)}')
    dummies = found.get("dummies", "no")
    if dummies not in ("yes", "no"):
        raise InputError(f'--graphs: dummies is "{dummies}"; it may be yes or no')
    return GraphSelection(
        Path(folder),
        form,
        _number(found, "every", 1),
        _number(found, "slowest", 1),
        found.get("request"),
        _steps(found.get("step", "")),
        _number(found, "group", 0),
        dummies == "yes",
    )


def _number(found: dict[str, str], key: str, least: int) -> int | None:
    if key not in found:
        return None
    text = found[key]
    if not text.isdecimal() or int(text) < least:
        raise InputError(f'--graphs: {key} is "{text}"; it must be a number from {least}')
    return int(text)


def _steps(text: str) -> tuple[int, ...]:
    """`3` or `3-8`."""
    if not text:
        return ()
    first, dash, last = text.partition("-")
    ends = [first, last if dash else first]
    if not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[1]):
        raise InputError(
            f'--graphs: step is "{text}"; it must be a number from 0, or two as in 3-8'
        )
    return tuple(range(int(ends[0]), int(ends[1]) + 1))
