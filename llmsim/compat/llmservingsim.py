"""Options of LLMServingSim that this version accepts, maps, or refuses by name."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmsim.config.errors import InputError, NotYetError
from llmsim.config.files import input_files

NETWORKS = ("analytical", "congestion-unaware", "congestion-aware", "fair-share")
FP = {16: "auto", 32: "float32", 8: "fp8"}
"""LLMServingSim 1.0's --fp, bits per element; 16 keeps whichever 16-bit type the model has."""


def network(name: str) -> str:
    """The network backend; what `analytical` means depends on the cluster
    (`llmsim.lowering.network.mesh`).
    """
    lower = name.lower()
    if lower == "ns3":
        raise NotYetError(
            "--network-backend ns3: packet-level simulation is not part of llmsim; say "
            "analytical or congestion-aware"
        )
    if lower == OUTSIDE[0] or lower.startswith(OUTSIDE[1]):
        return "analytical"  # what is not in the traces of steps
    if lower not in NETWORKS:
        raise InputError(
            f'--network-backend is "{name}"; it may be {", ".join(NETWORKS)}, strict or '
            "external:PATH"
        )
    return lower


OUTSIDE = ("strict", "external:")
"""Network backends that are other programs, which time whole steps."""


def outside_network(name: str) -> str:
    """The backend that is another program; "": it is none."""
    lower = name.lower()
    return name if lower == OUTSIDE[0] or lower.startswith(OUTSIDE[1]) else ""


def fp_dtype(bits: int) -> str:
    """`--fp 16` as a dtype."""
    if bits not in FP:
        raise InputError(f"--fp is {bits}; it may be 8, 16 or 32")
    return FP[bits]


def cost_tables(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The paths of `--cost-table`; InputError, before any group is looked at, for one that is no
    table there.
    """
    for path in paths:
        input_files.note(path)
        what = "does not exist" if not path.exists() else "is a folder" if path.is_dir() else ""
        what = what or (
            "" if path.suffix in (".csv", ".json", ".parquet") else "has another ending"
        )
        if what:
            raise InputError(f'--cost-table "{path}" {what}; name a .csv, .json or .parquet file')
    return tuple(paths)


def named_outputs(paths: Mapping[str, Path | None], run_id: str | None) -> dict[str, Path | None]:
    """The paths of outputs, with the run's name in place of `{run_id}`; InputError for a name that
    names no file.
    """
    if run_id is not None and (not run_id.strip(" .") or "/" in run_id or "\0" in run_id):
        raise InputError(f'--run-id is "{run_id}"; it must be usable as the name of a file')
    name = run_id or f"run_{time.time_ns() // 1000}_{os.getpid()}"
    return {
        key: None if path is None else Path(str(path).replace("{run_id}", name))
        for key, path in paths.items()
    }


def without_effect(
    inputs_root: Path | None, cleanup_inputs: bool | None, run_id: str | None, *, named: bool
) -> tuple[str, ...]:
    """What was given and changes nothing, each with the reason; `named`: a path holds
    `{run_id}`.
    """
    given = [] if inputs_root is None else [f"--inputs-root {inputs_root}"]
    given += (
        [] if cleanup_inputs is None else [f"--{'' if cleanup_inputs else 'no-'}cleanup-inputs"]
    )
    notes = [f"{option} changes nothing: no intermediate files are written" for option in given]
    if run_id is not None and not named:
        notes.append(f"--run-id {run_id} changes nothing: no path of an output holds {{run_id}}")
    return tuple(notes)
