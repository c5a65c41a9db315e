"""Constants of the machines whose collectives were measured, and which stand in for others."""

import json
from functools import cache
from math import inf
from typing import Any

from llmsim.config import input_files
from llmsim.costs.nccl.protocols import Machine, Protocol
from llmsim.presets import PRESETS_DIR

FOLDER = PRESETS_DIR / "collectives"
SWITCHED, PCIE = "h100_sxm", "rtx_pro_6000_server"
"""Machines that stand in for those that were not measured: with NVLink or its like, and without."""
SLOWEST_SWITCHED_GB_PER_S = 100.0
"""Links of a GPU below this rate are PCIe's."""


def machine_of(silicon_system: str | None, link_bytes_per_s: int) -> Machine:
    """Constants of a device by its folder in the silicon database; others have those of a machine
    of their class, scaled by the rate of their links.
    """
    link = link_bytes_per_s / 1e9
    if silicon_system is not None and (FOLDER / f"{silicon_system}.json").is_file():
        return measured_machine(silicon_system).scaled(link, f"{silicon_system} at {link:g} GB/s")
    stand_in = SWITCHED if link >= SLOWEST_SWITCHED_GB_PER_S else PCIE
    return measured_machine(stand_in).scaled(link, f"{stand_in} scaled to {link:g} GB/s")


@cache
def measured_machine(system: str) -> Machine:
    """The constants in llmsim/presets/collectives, which evaluation/nccl_constants.py fits."""
    path = FOLDER / f"{system}.json"
    given: dict[str, Any] = json.loads(input_files.read_bytes(path))
    custom = given.get("vllm_all_reduce", {})
    return Machine(
        system,
        given["link_gb_per_s"],
        {kind: _protocols(rows) for kind, rows in given["nccl"].items()},
        _protocols(custom.get("protocols", [])),
        custom.get("eager_floor_us", 0.0),
        custom.get("eager_us", 0.0),
        custom.get("eager_copy_gb_per_s", inf),
    )


def measured_machines() -> tuple[str, ...]:
    """Names of the machines with constants of their own, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def _protocols(rows: list[dict[str, Any]]) -> tuple[Protocol, ...]:
    return tuple(
        Protocol(**row | {"gb_per_s": tuple((int(n), rate) for n, rate in row["gb_per_s"].items())})
        for row in rows
    )
