"""Says where devices reach what is below them at a rate that only links between devices have, and
where a node's `host_link` carries nothing.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from llmsim.config import Deployment
from llmsim.core import Note
from llmsim.model import AdapterCopy

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

PCIE_5_BYTES_PER_S = 64_000_000_000
"""One direction of PCIe 5.0 x16: 32 GT/s on each of 16 lanes."""
BEHIND_THE_PORT = {"CPU", "CXL", "SSD"}
"""Media of KV that a device reaches over its link to the host."""


def host_link_notes(
    deployment: Deployment, lowered: "Iterable[LoweredGroup]", media: Collection[str]
) -> tuple[str, ...]:
    """One sentence where KV on `media`, or weights, cross a link between devices that is faster
    than PCIe 5.0, and no `host_link` says what the host's is; a topology file has links of its own.
    """
    links = deployment.host_links
    rate = links.nominal.bandwidth_bytes_per_s
    if deployment.topology is not None or rate <= PCIE_5_BYTES_PER_S:
        return ()
    alike = [
        one
        for group, one in zip(deployment.groups, lowered, strict=True)
        if not links.apart(group.nodes)
    ]
    moved = ["KV"] * any(_moves_kv(one, media) for one in alike)
    moved += ["weights"] * any(_copies_weights(one) for one in alike)
    if not moved:
        return ()
    sentence = (
        f"links of {rate / 1e9:g} GB/s (link_bw, second number) carry the {' and '.join(moved)} "
        "below the devices; PCIe 5.0 x16 carries at most 64 GB/s, which a host_link of the node "
        "would state"
    )
    return (Note(sentence),)


def moves_below(lowered: "LoweredGroup", media: Collection[str]) -> bool:
    """Whether anything of a group goes to what is below its devices, or comes from there."""
    return (
        lowered.offload is not None
        or _moves_kv(lowered, media)
        or any(isinstance(op, AdapterCopy) for op in lowered.operators)
    )


def _moves_kv(lowered: "LoweredGroup", media: Collection[str]) -> bool:
    return bool(BEHIND_THE_PORT & set(media)) or bool(lowered.engine.enable_hierarchical_cache)


def _copies_weights(lowered: "LoweredGroup") -> bool:
    return lowered.offload is not None and bool(lowered.offload.copies.places)
