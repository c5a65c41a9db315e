"""What the links between devices and their hosts carried, where the cluster file states them."""

from collections.abc import Iterable
from typing import Any, Protocol

from llmsim.core import Results
from llmsim.results.requests.metrics import makespan_ps


class PlacedLink(Protocol):
    """Where a link is: its node, the numbers of its devices there, and of its two directions."""

    @property
    def node(self) -> int: ...
    @property
    def devices(self) -> tuple[int, ...]: ...
    @property
    def ends(self) -> tuple[int, int]: ...


def host_link_rows(results: Results, placed: Iterable[PlacedLink]) -> list[dict[str, Any]]:
    """One row per link: bytes and share of the makespan in use of each direction; none where
    nothing is on the network.
    """
    if not len(results.links.get("bytes", ())):
        return []
    span_ps = makespan_ps(results) or 0
    rows = []
    for one in placed:
        row: dict[str, Any] = {"node": one.node, "devices": list(one.devices)}
        row["bytes_per_s"] = int(results.links["bytes_per_s"][one.ends[0]])
        for name, link in zip(("to_host", "from_host"), one.ends, strict=True):
            busy_ps = int(results.links["busy_ps"][link])
            row[f"{name}_link"] = link
            row[f"{name}_bytes"] = int(results.links["bytes"][link])
            row[f"{name}_busy"] = round(busy_ps / span_ps, 6) if span_ps else None
        rows.append(row)
    return rows
