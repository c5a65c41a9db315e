"""Figures of a run by their names in its summary, and whether they are what is required."""

import math
from collections.abc import Mapping
from typing import Any

from llmsim.config.errors import InputError, nearest
from llmsim.search.space import Bound, Space

DEVICES = "devices"
"""The figure that is the cluster file's, not the run's."""
GOODPUT = "goodput"
"""The part of a summary that only runs with targets have."""
CAPACITY = ("capacity_rps", "capacity")
"""The highest rate of a search with `load`, under its two names."""
PER_DEVICE, PER_USD = "capacity_rps_per_device", "capacity_rps_per_usd_per_hour"
PRICE = "cost.price_per_hour"


def names(space: Space) -> list[str]:
    """All figures that the search looks at."""
    return list(dict.fromkeys([*(name for name, _ in space.objectives), *space.file.require]))


def asked_at(space: Space, name: str) -> str:
    """The search file, and its field that names a figure."""
    for field in ("minimise", "maximise"):
        listed = getattr(space.file, field)
        if name in listed:
            return f"{space.path}: {field}[{listed.index(name)}]"
    return f"{space.path}: require"


def figure(
    summary: Mapping[str, Any], known: Mapping[str, float], name: str, where: str
) -> float | None:
    """A figure of the summary by its path; None where this run does not have it. InputError where
    no run would; its sentence begins with `where`, the file and the field that names the figure.
    """
    if name in known:
        return known[name]
    value: Any = summary
    for key in name.split("."):
        if isinstance(value, dict) and key not in value:
            figures = [*known, *_leaves(summary)]
            raise InputError(
                f'{where}: "{name}" is no figure of a run{nearest(name, figures)}; '
                "docs/reference/metrics.md lists them"
            )
        value = value[key] if isinstance(value, dict) else None
        if value is None and key == GOODPUT:
            raise InputError(
                f'{where}: "{name}" has no targets to meet; say "--goodput" under options, such as '
                '"ttft:500,tpot:50"'
            )
        if value is None:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(
            f'{where}: "{name}" is no number; figures of it: '
            f"{', '.join(_leaves(summary, name)[:6])}"
        )
    return float(value)


def capacity_figures(
    summary: Mapping[str, Any], rate: float, devices: float, where: str
) -> dict[str, float]:
    """The highest rate, also for each device and for each dollar an hour where there is a price."""
    found = {name: rate for name in CAPACITY} | {PER_DEVICE: rate / devices}
    price = figure(summary, {}, PRICE, where) if summary.get("cost") else None
    return found | ({PER_USD: rate / price} if price else {})


def _leaves(summary: Mapping[str, Any], below: str = "") -> list[str]:
    found = []
    for key, value in summary.items():
        if isinstance(value, dict):
            found += [f"{key}.{leaf}" for leaf in _leaves(value)]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append(key)
    return [name for name in found if name.startswith(below)]


def shortfall(require: Mapping[str, Bound], values: Mapping[str, float]) -> str:
    """Which bound is missed first, in a sentence; empty where all are met."""
    for name, bound in require.items():
        if values[name] < bound.at_least:
            return f"{name} is {values[name]:.6g}, at least {bound.at_least:g} is required"
        if values[name] > bound.at_most:
            return f"{name} is {values[name]:.6g}, at most {bound.at_most:g} is required"
    return ""


def excluded_by_devices(space: Space, devices: int) -> str:
    """Why a point need not be run: its number of devices is known, and misses a requirement."""
    bound = space.file.require.get(DEVICES)
    if bound is None or bound.at_least <= devices <= bound.at_most:
        return ""
    side = "at least" if devices < bound.at_least else "at most"
    end = bound.at_least if devices < bound.at_least else bound.at_most
    return f"devices is {devices}, {side} {end:g} is required; it was not run"


def violations(space: Space, values: Mapping[str, float]) -> dict[str, float]:
    """By how much each requirement is missed, relative to its bound; 0 or less where it is met."""
    return {name: max(_missed(bound, values[name])) for name, bound in space.file.require.items()}


def _missed(bound: Bound, value: float) -> list[float]:
    sides = ((bound.at_least, bound.at_least - value), (bound.at_most, value - bound.at_most))
    return [by / (abs(end) or 1.0) for end, by in sides if math.isfinite(end)]
