"""Says where devices reach what is below them at a rate that only links between devices have."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from llmsim.config import Deployment
from llmsim.core import Note
from llmsim.lowering.offload.placement import port_of

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

PCIE_5_BYTES_PER_S = 64_000_000_000
"""One direction of PCIe 5.0 x16: 32 GT/s on each of 16 lanes."""
BEHIND_THE_PORT = {"CPU", "CXL", "SSD"}
"""Media of KV that a device reaches over dimension 1 of `link_bw`."""


def host_link_notes(
    deployment: Deployment, lowered: "Iterable[LoweredGroup]", media: Collection[str]
) -> tuple[str, ...]:
    """One sentence where KV on `media`, or weights, cross a link that is faster than PCIe 5.0; a
    topology file has links of its own.
    """
    rate = port_of(deployment).bandwidth_bytes_per_s
    if deployment.topology is not None or rate <= PCIE_5_BYTES_PER_S:
        return ()
    weights = any(one.offload is not None and one.offload.copies.places for one in lowered)
    moved = ["KV"] * bool(BEHIND_THE_PORT & set(media)) + ["weights"] * weights
    if not moved:
        return ()
    sentence = (
        f"links of {rate / 1e9:g} GB/s (link_bw, second number) carry the {' and '.join(moved)} "
        "below the devices; PCIe 5.0 x16 carries at most 64 GB/s"
    )
    return (Note(sentence),)
