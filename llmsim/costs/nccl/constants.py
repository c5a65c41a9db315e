"""Constants of the machines whose collectives were measured, and which stand in for others."""

import json
from functools import cache
from math import inf
from typing import Any

from msgspec.structs import replace

from llmsim.config.files import input_files
from llmsim.costs.nccl.protocols import MULTIMEM, NVLS, Machine, Protocol
from llmsim.model import Hardware, load_hardware
from llmsim.presets import PRESETS_DIR

FOLDER = PRESETS_DIR / "collectives"
STAND_INS = ("a100_sxm", "h100_sxm", "b200_sxm", "rtx_pro_6000_server")
"""Machines that stand in for those that nobody measured: of NVLink 3, 4 and 5, and of PCIe."""
SLOWEST_SWITCHED_GB_PER_S = 100.0
"""Links of a GPU below this rate are PCIe's."""
REDUCED_BY_SWITCHES = (NVLS, MULTIMEM)
"""Protocols that need NVIDIA's switches."""


def machine_of(hardware: Hardware) -> Machine:
    """Constants of a device that was measured, of the one that its data sheet names as similar, or
    of the machine of its class with the nearest link rate; scaled by the rate of the links.
    """
    link = hardware.intra_node_link_bytes_per_s / 1e9
    found = measured_machine(_system(hardware, link))
    if _own_constants(hardware) == found.name and found.link_gb_per_s == link:
        return found
    if hardware.vendor != "NVIDIA":
        found = found.without(REDUCED_BY_SWITCHES)
    name = f"{found.name} scaled to {link:g} GB/s"
    return replace(found.scaled(link, name), name=name)


def _own_constants(hardware: Hardware) -> str | None:
    """The file of constants that a data sheet names."""
    return hardware.collective_constants or hardware.silicon_system


def _system(hardware: Hardware, link_gb_per_s: float) -> str:
    """Folder of the device whose constants a device takes."""
    similar = None if hardware.similar_to is None else load_hardware(hardware.similar_to)
    for sheet in (hardware, similar):
        system = None if sheet is None else _own_constants(sheet)
        if sheet is None or system is None or system not in measured_machines():
            continue
        if _switched(sheet.intra_node_link_bytes_per_s / 1e9) == _switched(link_gb_per_s):
            return system
    stand_ins = {name: measured_machine(name).link_gb_per_s for name in STAND_INS}
    alike = [
        name for name, rate in stand_ins.items() if _switched(rate) == _switched(link_gb_per_s)
    ]
    return min(alike, key=lambda name: abs(stand_ins[name] - link_gb_per_s))


def _switched(link_gb_per_s: float) -> bool:
    return link_gb_per_s >= SLOWEST_SWITCHED_GB_PER_S


@cache
def measured_machine(system: str) -> Machine:
    """The constants in llmsim/presets/collectives, which evaluation/nccl_constants.py fits."""
    given: dict[str, Any] = json.loads(input_files.read_bytes(FOLDER / f"{system}.json"))
    custom = given.get("vllm_all_reduce", {})
    return Machine(
        system,
        given["link_gb_per_s"],
        {kind: _protocols(rows) for kind, rows in given["nccl"].items()},
        _protocols(custom.get("protocols", [])),
        custom.get("eager_floor_us", 0.0),
        custom.get("eager_us", 0.0),
        custom.get("eager_copy_gb_per_s", inf),
        {kernel: _protocols(rows) for kernel, rows in given.get("quick_reduce", {}).items()},
        given.get("pair_links", 1),
    )


@cache
def measured_machines() -> tuple[str, ...]:
    """Names of the machines with constants of their own, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def _protocols(rows: list[dict[str, Any]]) -> tuple[Protocol, ...]:
    return tuple(
        Protocol(**row | {"gb_per_s": tuple((int(n), rate) for n, rate in row["gb_per_s"].items())})
        for row in rows
    )
