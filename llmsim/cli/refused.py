"""Options of LLMServingSim that this version accepts, maps, or refuses by name."""

from llmsim.config.errors import InputError, NotYetError

NETWORKS = ("analytical", "congestion-unaware", "congestion-aware", "fair-share")
FP = {16: "auto", 32: "float32", 8: "fp8"}
"""LLMServingSim 1.0's --fp, bits per element; 16 keeps whichever 16-bit type the model has."""


def network(name: str) -> str:
    """The network backend; what `analytical` means depends on the cluster (`llmsim.lowering.collectives`)."""
    lower = name.lower()
    if lower == "ns3":
        raise NotYetError(
            "--network-backend ns3: packet-level simulation is not part of llmsim; say analytical or congestion-aware"
        )
    if lower not in NETWORKS:
        raise InputError(f'--network-backend is "{name}"; it may be {", ".join(NETWORKS)}')
    return lower


def fp_dtype(bits: int) -> str:
    """`--fp 16` as a dtype."""
    if bits not in FP:
        raise InputError(f"--fp is {bits}; it may be 8, 16 or 32")
    return FP[bits]
