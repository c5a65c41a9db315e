"""What two runs were given differently: fields of the resolved clusters, options, and the load."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsim.config.cluster_file.loading import parse_text
from llmsim.config.errors import InputError
from llmsim.config.files import input_files

SHOWN = 6
"""Differences that a sentence names; the others are counted."""
LONGEST = 40
"""Characters of a value that a sentence shows."""
LEAD = 12
"""Of them, those in front of the first one that differs."""
MOST_GROUPS = 6
"""Groups that a difference names by number; the others are counted."""
_GROUP = re.compile(r"^groups\[(\d+)\]\.")
_ENTRY = re.compile(r"^(\w+)\[(\d+)\]")
"""The list and the number of the entry that a field belongs to."""
_NOT_GIVEN = ("index", "field_path", "origin")
"""Fields of a resolved group that say where a value is from."""


_SHOWN_RESOLVED = (
    "description", "engine", "topology", "link_bw", "link_latency",
    "link_bandwidth_gbps", "link_latency_ns",
)  # fmt: skip
"""Keys of a cluster file that resolved groups and links show as well, and one that changes nothing.
"""


def given_differently(a: Path, b: Path) -> str | None:
    """A sentence about what differs between what the runs of two folders were given; None where one
    of them is no run folder.
    """
    first, second = _given(a), _given(b)
    if first is None or second is None:
        return None
    options, resolved, file = (_pairs(*both) for both in zip(first, second, strict=True))
    roles = _roles(first[1], second[1])
    resolved = _role_counts(first[1], second[1]) | resolved
    changes = _said(options) + _said(_beside(resolved, options), roles) + _said(file)
    if not changes:
        return "Both runs were given the same."
    named = changes[:SHOWN]
    more = len(changes) - len(named)
    return f"Given differently: {'; '.join(named)}{f'; and {more} more' if more else ''}."


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The values that differ, as text; of an entry that one run alone has, only the number of
    entries.
    """
    before, after = _counted(before, after), _counted(after, before)
    return {
        name: _shown_apart(_text(before, name), _text(after, name))
        for name in {**before, **after}
        if before.get(name) != after.get(name) and _entry_of_both(name, before, after)
    }


def _counted(given: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the number of an empty list, where the other run has entries in it."""
    empty = [name for name in given if given[name] == [] and f"number of {name}" in other]
    numbers = {f"number of {name}": 0 for name in empty}
    return {name: given[name] for name in given if name not in empty} | numbers


def _entry_of_both(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    entry = _ENTRY.match(name)
    if entry is None:
        return True
    most = min(int(given.get(f"number of {entry[1]}", 0)) for given in (before, after))
    return int(entry[2]) < most


def _beside(
    resolved: Mapping[str, tuple[str, str]], options: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """What the resolved clusters differ in besides what the options say already."""

    def option(name: str) -> str:
        return "request_routing_policy" if name == "router" else name.rpartition(".")[2]

    return {name: pair for name, pair in resolved.items() if options.get(option(name)) != pair}


def _said(pairs: Mapping[str, tuple[str, str]], roles: Sequence[str | None] = ()) -> list[str]:
    """Every difference, once where it is one of several groups, with these where others do not have
    it; `roles` are those of all groups.
    """
    groups: dict[str, list[int]] = {}
    for name, (old, new) in pairs.items():
        found = _GROUP.match(name)
        said = groups.setdefault(f"{_GROUP.sub('', name)} {old} -> {new}", [])
        said += [] if found is None else [int(found[1])]
    return [f"{said}{_of_groups(where, roles)}" for said, where in groups.items()]


def _role_counts(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The roles of which the runs have different numbers of groups, and these."""
    was, now = (
        Counter(_role(given, i) for i in range(int(given.get("number of groups", 0))))
        for given in (before, after)
    )
    return {
        f"number of {role} groups": (str(was[role]), str(now[role]))
        for role in {**was, **now}
        if role is not None and was[role] != now[role]
    }


def _of_groups(where: Sequence[int], roles: Sequence[str | None]) -> str:
    """` (decode)` or ` (groups 1 and 2)`; empty for all groups."""
    if len(where) in (0, len(roles)):
        return ""
    named = dict.fromkeys(roles[i] for i in where)
    if None not in named and len(where) == sum(role in named for role in roles):
        return f" ({' and '.join(map(str, named))})"
    numbers = [str(i) for i in where[:MOST_GROUPS]]
    more = len(where) - len(numbers)
    numbers += [f"{more} more"] if more else []
    *before, last = numbers
    return f" (groups {', '.join(before)} and {last})" if before else f" (group {last})"


def _roles(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str | None]:
    """The role of every group that both runs have; None where it has none, or another."""
    count = min(int(given.get("number of groups", 0)) for given in (before, after))
    both = ([_role(given, i) for i in range(count)] for given in (before, after))
    return [one if one == other else None for one, other in zip(*both, strict=True)]


def _role(given: Mapping[str, Any], group: int) -> str | None:
    role = given.get(f"groups[{group}].afd.domain") or given.get(f"groups[{group}].pd_type")
    return role if isinstance(role, str) else None


def _given(folder: Path) -> tuple[Mapping[str, Any], ...] | None:
    """What the manifest of a run folder says that was asked, what became of it, and what else the
    cluster file holds, by paths.
    """
    try:
        manifest = json.loads(input_files.read_bytes(folder / "manifest.json"))
        asked = manifest["run"]
        load = {"dataset": asked.get("dataset") or manifest.get("inputs")}
        words = {**load, "seed": manifest["seed"], **asked["options"]}
        return tuple(
            dict(_leaves(one, ""))
            for one in (words, manifest["config"], _rest_of_file(asked["cluster"]))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError):
        return None


def _rest_of_file(cluster: Mapping[str, str]) -> dict[str, Any]:
    """The keys of a cluster file that the resolved groups and links do not show: switches of
    layouts, host memory, power, prices.
    """
    fields = dict(parse_text(cluster["text"], cluster["name"]).data)
    nodes = fields.get("nodes")
    if isinstance(nodes, list):
        fields["nodes"] = [
            {
                name: value
                for name, value in node.items()
                if name not in ("instances", "num_instances")
            }
            for node in nodes
        ]
    return {name: value for name, value in fields.items() if name not in _SHOWN_RESOLVED}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            if name not in _NOT_GIVEN:
                yield from _leaves(one, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        yield f"number of {path}", len(value)
        for at, one in enumerate(value):
            yield from _leaves(one, f"{path}[{at}]")
    else:
        yield path, value


def _text(given: Mapping[str, Any], name: str) -> str:
    if name not in given:
        return "(not given)"
    value = given[name]
    return value if isinstance(value, str) else json.dumps(value)


def _shown_apart(before: str, after: str) -> tuple[str, str]:
    """Two values without what long ones have in common at their beginnings, then cut short."""
    pairs = enumerate(zip(before, after, strict=False))
    same = next((at for at, (old, new) in pairs if old != new), min(len(before), len(after)))
    start = max(0, same - LEAD) if max(len(before), len(after)) > LONGEST else 0
    return _cut(before, start), _cut(after, start)


def _cut(text: str, start: int) -> str:
    shown = text[start : start + LONGEST]
    rest = "..." if len(text) > start + LONGEST else ""
    return f"{'...' if start else ''}{shown}{rest}"
