"""Attention-FFN disaggregation in the summary: how the two sides are balanced."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from llmsim.core import Results

DIGITS = 6


class AfdSides(Struct, frozen=True):
    """The groups of one afd_group, by index, and the pipeline stages of each."""

    attention: tuple[int, ...]
    ffn: tuple[int, ...]
    stages: Mapping[int, int]


def afd_rows(results: Results, domains: Sequence[AfdSides]) -> list[dict[str, Any]]:
    """One row for each afd_group. Shares are of the time in which steps run."""
    return [
        {
            "attention_groups": list(sides.attention),
            "ffn_groups": list(sides.ffn),
            "attention_idle": _idle(results, sides.attention),
            "ffn_idle": _idle(results, sides.ffn),
            "m2n": _share(results, "m2n_ps", sides.attention),
            "m2n_bytes": sum(
                int(results.counters["m2n_bytes"][one])
                * (results.groups[one].num_devices // sides.stages[one])
                for one in (*sides.attention, *sides.ffn)
            ),
        }
        for sides in domains
    ]


def _idle(results: Results, groups: Sequence[int]) -> float | None:
    computing = _share(results, "afd_computing_ps", groups)
    return None if computing is None else round(1 - computing, DIGITS)


def _share(results: Results, name: str, groups: Sequence[int]) -> float | None:
    """Of the time of the groups' steps."""
    steps = sum(int(results.counters["afd_ps"][one]) for one in groups)
    part = sum(int(results.counters[name][one]) for one in groups)
    return round(part / steps, DIGITS) if steps else None


def afd_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Labels and sentences for people, one for each afd_group."""
    return [
        (
            "Attention and FFN",
            f"attention idle {row['attention_idle']:.1%}, FFN idle {row['ffn_idle']:.1%} of the "
            f"steps; rows between them lengthen steps by {row['m2n']:.1%}",
        )
        for row in summary.get("afd", ())
        if row["ffn_idle"] is not None
    ]
