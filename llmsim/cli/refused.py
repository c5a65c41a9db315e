"""Options of LLMServingSim that this version accepts, maps, or refuses by name."""

from collections.abc import Mapping

from llmsim.config.errors import InputError, NotYetError

NOT_YET: Mapping[str, str] = {
    "--enable-prefix-sharing": "a prefix cache shared between instances",
    "--enable-local-offloading": "streaming weights from host memory",
    "--enable-attn-offloading": "attention on processing-in-memory devices",
    "--enable-sub-batch-interleaving": "sub-batch interleaving",
    "--enable-attn-prediction": "attention costs from a fitted regressor",
}
"""Switches of later versions -> what they ask for."""

NETWORKS = ("analytical", "congestion-unaware", "congestion-aware")
FP = {16: "auto", 32: "float32", 8: "fp8"}
"""LLMServingSim 1.0's --fp, bits per element; 16 keeps whichever 16-bit type the model has."""


def refuse_switches(given: Mapping[str, bool]) -> None:
    """Raises NotYetError for the first switch that is on."""
    for option, is_on in given.items():
        if is_on:
            raise NotYetError(f"{option}: {NOT_YET[option]} does not run in this version; remove the option")


def refuse_storage(storage: str | None) -> None:
    """`--prefix-storage None` is what this version does; the other media come later."""
    if storage is None or storage.lower() == "none":
        return
    if storage.upper() in ("CPU", "CXL"):
        raise NotYetError(
            f'--prefix-storage {storage}: a second tier of the prefix cache does not run in this version; say "None"'
        )
    raise InputError(f'--prefix-storage is "{storage}"; it may be None, CPU or CXL')


def network(name: str) -> str:
    """The network backend; `analytical` means congestion-unaware, as in LLMServingSim."""
    lower = name.lower()
    if lower == "ns3":
        raise NotYetError(
            "--network-backend ns3: packet-level simulation is not part of llmsim; say analytical or congestion-aware"
        )
    if lower == "fair-share":
        raise NotYetError(
            "--network-backend fair-share does not run in this version; say analytical or congestion-aware"
        )
    if lower not in NETWORKS:
        raise InputError(f'--network-backend is "{name}"; it may be {", ".join(NETWORKS)}')
    return "congestion-unaware" if lower == "analytical" else lower


def fp_dtype(bits: int) -> str:
    """`--fp 16` as a dtype."""
    if bits not in FP:
        raise InputError(f"--fp is {bits}; it may be 8, 16 or 32")
    return FP[bits]
