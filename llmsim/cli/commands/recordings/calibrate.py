"""`llmsim calibrate`: fits the constants of one machine to a recorded run of it."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from llmsim.cli.commands.recordings.options import AsJson, SkipSeconds, check_skip_seconds
from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import InfeasibleError, InputError
from llmsim.sizing.workers.watch import NOBODY, Watch

if TYPE_CHECKING:
    from llmsim.api.checked.run_options import RunOptions
    from llmsim.lowering import Calibration
    from llmsim.validation import Recording
    from llmsim.validation.fit.doctor import Diagnosis
    from llmsim.validation.logs.means_readers import Means

HELP = (
    "Fit constants of one machine to a recorded run. The constants are a speed factor of the "
    "operators, the host gap, and the link. They are fitted to the first half of the requests "
    "and tested on the second half. The file for `run --calibration` is written if they improve"
    " both halves. The command takes every option of `llmsim run` that describes the recorded "
    "deployment; --cluster-config and --dataset are required. A log that holds means alone "
    "(vLLM's benchmark without details, aiperf's summary) needs --fit with one constant, which "
    "is fitted to the mean TPOT."
)
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


Log = Annotated[
    Path,
    typer.Argument(
        help="Names the log of the recorded run; it precedes all options.", show_default=False
    ),
]
Fit = Annotated[
    list[str] | None,
    typer.Option(
        "--fit",
        help="Names a constant to fit: time_factor, host_gap_ns, collective_factor, "
        "link_bandwidth_gb_per_s or link_latency_ns. Repeated options are fitted together. By "
        "default each constant is tried alone, except the two of the link, and the best is kept.",
        show_default=False,
        metavar="<str>",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="<path>",
        parser=given_path,
        help="Writes the calibration file.",
        show_default=False,
    ),
]


def command(
    context: typer.Context,
    log: Log,
    fit: Fit = None,
    out: Out = None,
    skip_seconds: SkipSeconds = 2.0,
    as_json: AsJson = False,
) -> int:
    """Fits, prints, writes; raises what reading the log and simulating raise (InputError). Returns
    the exit code.
    """
    from llmsim.export.files import check_writable
    from llmsim.export.json import json_text, write_json
    from llmsim.validation.logs.means_readers import read_means

    check_skip_seconds(skip_seconds)
    if str(log).startswith("-"):
        raise InputError(
            "the log comes first: llmsim calibrate LOG --cluster-config ... --dataset ..."
        )
    if out is not None:
        check_writable(out)
    means = read_means(log)
    if means is not None:
        found = _of_means(means, _trial_options(context.args, None), fit or ())
    else:
        found = _of_requests(log, context.args, fit or (), skip_seconds)
    if out is not None and found.refusal is None:
        write_json(found.data, out)
    sys.stdout.write(json_text(found.data) if as_json else found.text)
    if found.refusal is not None:
        raise InfeasibleError(f"{log}: {found.refusal}")
    return 0


@dataclass(frozen=True)
class _Found:
    """The calibration file, what is printed, and why the file is not written (None: it is)."""

    data: dict[str, Any]
    text: str
    refusal: str | None


def _of_requests(
    log: Path, arguments: list[str], wanted: Sequence[str], skip_seconds: float
) -> _Found:
    """From a log of single requests."""
    from llmsim.validation import read_recording
    from llmsim.validation.fit.calibrate import calibrate, calibration_json, refusal
    from llmsim.validation.report.calibration_table import calibration_markdown

    real = read_recording(log)
    options = _trial_options(arguments, log if real.has_arrivals else None)
    hardware, available = what_can_be_fitted(options)
    with _counted(options) as progress:
        report = calibrate(
            real,
            lambda calibration: _simulated(options, calibration, progress),
            hardware=hardware,
            wanted=wanted,
            available=available,
            skip_seconds=skip_seconds,
            doctor=lambda log, constants: examined(log, options, constants, skip_seconds, progress),
        )
    source = f"{log}, first {len(real) // 2} of {len(real)} requests"
    return _Found(
        calibration_json(report, source=source), calibration_markdown(report), refusal(report)
    )


def _of_means(means: "Means", options: "RunOptions", wanted: Sequence[str]) -> _Found:
    """From a table of means."""
    from llmsim.validation.fit.means import calibrate_means, means_fit_json, means_refusal
    from llmsim.validation.report.means_table import means_fit_markdown

    hardware, available = what_can_be_fitted(options)
    with _counted(options) as progress:
        fit = calibrate_means(
            means,
            lambda calibration: _simulated(options, calibration, progress),
            hardware=hardware,
            wanted=wanted,
            available=available,
        )
    data = means_fit_json(fit, source=f"{means.source}, {fit.fitted_on}")
    return _Found(data, means_fit_markdown(fit), means_refusal(fit))


@contextmanager
def _counted(options: "RunOptions") -> Iterator[Watch]:
    """Shows how many simulations have been done; nobody knows how many it takes."""
    from llmsim.cli.run.counted import Counted

    with Counted(quiet=options.quiet) as progress:
        progress.begin("simulations")
        yield progress


def _trial_options(arguments: list[str], log: Path | None) -> "RunOptions":
    """The deployment under test: the log's arrivals where the trace is not a session trace, and no
    outputs.
    """
    from llmsim.cli.run.arguments import checked_options, without_outputs

    options = without_outputs(checked_options(arguments))
    if options.calibration is not None:
        raise InputError(
            "--calibration: a calibration is fitted from nothing; leave the option out"
        )
    return replace(options, arrivals=options.arrivals or log)


def _simulated(
    options: "RunOptions", calibration: "Calibration | None", watch: Watch = NOBODY
) -> "Recording":
    from llmsim.api.preparation.prepare import trial
    from llmsim.validation.logs.recording import recording_of

    found = recording_of(trial(replace(options, calibration=calibration)))
    watch.done()
    return found


def examined(
    log: "Recording",
    options: "RunOptions",
    constants: float,
    skip_seconds: float,
    watch: Watch = NOBODY,
) -> "Diagnosis | None":
    """The engine option that explains a log better than constants do; None where none does."""
    from llmsim.api.cluster import Cluster
    from llmsim.api.trials import Trial

    cluster = Cluster.load(options.cluster)
    trial = Trial(cluster, options.dataset, options, watch.done)
    return trial.diagnosis(log, skip_seconds, constants)


def what_can_be_fitted(options: "RunOptions") -> tuple[str, tuple[str, ...]]:
    """The hardware of the deployment, and the constants that matter in it."""
    from llmsim.api.logs import fitted_constants
    from llmsim.api.preparation.prepare import prepare

    return fitted_constants(prepare(options).lowered)
