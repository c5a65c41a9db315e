"""What the passes of a drafter move and draw, as part of its group's energy account."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsim.exact import exact_sum
from llmsim.power import TrafficTable, traffic_table

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

_NOTHING_ELSEWHERE = dict.fromkeys(
    ("drawn_bytes", "to_memory_bytes", "from_memory_bytes", "host_bytes"), 0
)


def draft_tables(group: "LoweredGroup") -> tuple[TrafficTable, ...]:
    """Cost tables of the drafter's first and later passes; empty without a drafter.

    A drafter with tp = 1 is replicated on every rank.
    """
    draft = group.draft
    if draft is None:
        return ()
    alone = draft.layout.tp == 1
    return tuple(
        traffic_table(operators, group.layout.tp)
        if alone
        else traffic_table(operators, draft.layout.tp)
        for operators in draft.operators
    )


def draft_bytes(tables: Sequence[TrafficTable], activity: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of all passes, as keywords of `Traffic.plus`."""
    moved = {"memory_bytes": 0, "link_bytes": 0}
    for table, one in zip(tables, activity["draft_passes"], strict=True):
        tokens = np.asarray(one["rows"][0])
        counted = {
            **one,
            "scheduled_tokens": exact_sum(np.arange(len(tokens), dtype=np.int64), tokens),
            "offload": _NOTHING_ELSEWHERE,
        }
        traffic = table.traffic(counted)
        moved["memory_bytes"] += traffic.memory_bytes
        moved["link_bytes"] += traffic.link_bytes
    return moved
