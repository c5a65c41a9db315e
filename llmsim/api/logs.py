"""`llmsim.validate` and `llmsim.calibrate`: runs beside the log of a real server."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from llmsim.api.cluster import Cluster, cluster_of
from llmsim.api.python_values import typed
from llmsim.api.python_words import in_python_words
from llmsim.api.result import Result
from llmsim.api.trials import Trial, diagnosed, inputs_of
from llmsim.config.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from llmsim.lowering import LoweredDeployment
    from llmsim.lowering.types import LoweredGroup
    from llmsim.validation import Comparison

SKIP_SECONDS = 2.0
"""Requests of the first seconds met a cold engine and are left out of paired errors."""


def validate(
    log: str | PathLike[str],
    run: "Result | str | PathLike[str]",
    *,
    skip_seconds: float = SKIP_SECONDS,
) -> "Comparison":
    """Compares a run with the log of a real server, request by request.

    `log` is a file that `llmsim validate` reads; `run` is a `Result`, a run folder or a result
    file. Raises InputError where they cannot be compared.
    """
    from llmsim.validation import read_recording
    from llmsim.validation.compare.compare import compare
    from llmsim.validation.logs.recording import recording_of

    _check_skip(skip_seconds)
    real = read_recording(typed("log", log, Path))
    if not isinstance(run, Result):
        run = typed("run", run, Path)
    simulated = recording_of(run._results) if isinstance(run, Result) else read_recording(Path(run))
    comparison = compare(real, simulated, skip_seconds)
    inputs = run.inputs if isinstance(run, Result) else inputs_of(Path(run))
    return comparison if inputs is None else diagnosed(comparison, real, inputs, Path(log))


def calibrate(
    log: str | PathLike[str],
    cluster: "str | PathLike[str] | Mapping[str, Any] | Cluster",
    workload: Any,
    *,
    fit: Sequence[str] = (),
    skip_seconds: float = SKIP_SECONDS,
    **options: Any,
) -> dict[str, Any]:
    """Fits constants of one machine to the first half of a log and tests them on the second.

    Gives the content of a calibration file, for `run(..., calibration=FILE)`. `fit` names constants
    as `llmsim calibrate --fit` does. Raises InputError, and InfeasibleError where one would be
    needed and none is kept.
    """
    from llmsim.api.checked.run_options import checked
    from llmsim.api.run import _given
    from llmsim.validation import read_recording
    from llmsim.validation.fit.calibrate import calibrate as fitted
    from llmsim.validation.fit.calibrate import calibration_json, refusal

    _check_skip(skip_seconds)
    if options.get("calibration") is not None:
        raise InputError(
            "calibration is given; a calibration is fitted from nothing, leave it out",
            field="calibration",
        )
    real = read_recording(typed("log", log, Path))
    arrivals = Path(log) if real.has_arrivals else None
    with in_python_words(options):
        file = cluster_of(cluster)
        settings = checked(_given(file, options))
        settings = replace(settings, arrivals=settings.arrivals or arrivals)
        trial = Trial(file, workload, settings)
        hardware, available = fitted_constants(trial.lowered())
        report = fitted(
            real,
            trial.recording,
            hardware=hardware,
            wanted=tuple(fit),
            available=available,
            skip_seconds=skip_seconds,
            doctor=lambda real, constants: trial.diagnosis(real, skip_seconds, constants),
        )
    reason = refusal(report)
    if reason is not None:
        raise InfeasibleError(f"{log}: {reason}")
    source = f"{log}, first {len(real) // 2} of {len(real)} requests"
    found: dict[str, Any] = calibration_json(report, source=source)
    return found


def fitted_constants(lowered: "LoweredDeployment") -> tuple[str, tuple[str, ...]]:
    """The hardware of a deployment, and the constants that matter in it; raises InputError for
    several kinds of hardware.
    """
    from llmsim.validation.fit.link import LINK

    hardware = sorted({group.info.hardware for group in lowered.groups})
    if len(hardware) > 1:
        raise InputError(
            f"the cluster has {', '.join(hardware)}; a log of several kinds of machine does not "
            "tell whose constants it is about: calibrate each alone"
        )
    linked = any(on_first_link(group) for group in lowered.groups)
    measured = any(op.collective for group in lowered.groups for op in group.costs.ops)
    collectives = ("collective_factor",) if measured else ()
    return hardware[0], ("time_factor", "host_gap_ns", *collectives, *(LINK if linked else ()))


def on_first_link(group: "LoweredGroup") -> bool:
    """Whether collectives of the group cross the first link of the cluster file: those inside a
    group do, and with one link for all those among data-parallel and expert-parallel ranks, too.
    """
    from llmsim.lowering.network.mesh import MeshView
    from llmsim.model import Collective

    links = group.links
    alone = isinstance(links, MeshView) and len(links.spec.bandwidth_bytes_per_s) == 1
    return any(
        isinstance(op, Collective)
        and op.name in group.costs.link_collectives
        and op.among != "stages"
        and (group.info.tp > 1 if op.among == "tp" else alone or group.info.tp > 1)
        for op in group.operators
    )


def _check_skip(skip_seconds: float) -> None:
    if not 0 <= skip_seconds < float("inf"):
        raise InputError(
            f"skip_seconds is {skip_seconds:g}; it must be 0 or more",
            field="skip_seconds",
            value=skip_seconds,
        )
