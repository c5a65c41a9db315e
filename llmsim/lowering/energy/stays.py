"""When devices belong to which group where layouts take turns, and what switches move."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from llmsim.lowering.energy.accounting import Accounting, handed_over

if TYPE_CHECKING:
    from llmsim.lowering.switches.layouts import LayoutPlans

FOR_EVER_PS = (1 << 63) - 1


class Stay(Struct, frozen=True):
    """The time of a group, ps: its devices are its own from the switch that brought it to the one
    that ends it, and work while they are loaded.
    """

    here_ps: tuple[int, int]
    loaded_ps: tuple[int, int]
    """From the end of the drain until the layout opens; empty for the layout that serves first."""
    moved: Counter[str] = field(default_factory=Counter)
    """Bytes that switches moved to and from the group, by fields of `llmsim.core.Traffic`."""


def stays_of(
    layouts: "LayoutPlans",
    switches: Sequence[Mapping[str, Any]],
    visits: Sequence[tuple[int, int]],
    accounting: Accounting,
) -> tuple[Stay, ...]:
    """Of every group of the layouts that came, in order; `switches` are the core's rows.

    From the end of a drain on, devices are those of the next layout's groups.
    """
    rows = [row for row in switches if row["first_group"] > 0]
    starts = [0, *(row["drained_ps"] for row in rows)]
    ends = [*starts[1:], FOR_EVER_PS]
    stays: list[Stay] = []
    for number, (layout, _) in enumerate(visits):
        took_ps = 0
        if number:
            row = rows[number - 1]
            took_ps = row["weights_ps"] + row["kv_ps"] + row["process_ps"]
        start = starts[number]
        for _ in layouts.plans[layout].lowered.groups:
            stays.append(Stay((start, ends[number]), (start, start + took_ps)))
    for row in rows:
        loaded = layouts.weights[row["from"]][row["to"]].by_group
        for group, counts in enumerate(loaded, row["first_group"]):
            stays[group].moved.update(counts)
        for source, target, size in row["kv_moves"]:
            same_node = accounting.nodes[source] == accounting.nodes[target]
            for end, sends in ((source, True), (target, False)):
                counts = handed_over(accounting, end, size, same_node=same_node, sends=sends)
                stays[end].moved.update(counts)
    return tuple(stays)
