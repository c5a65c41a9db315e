"""`llmsim.diff` and `llmsim.report`: results, or run folders, beside each other."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from llmsim.api.result import Result
from llmsim.config.errors import InputError
from llmsim.plurals import counted

if TYPE_CHECKING:
    import pandas as pd

    from llmsim.export.html_report.runs import Explained
    from llmsim.validation import Recording

Run = Result | str | PathLike[str]
"""A result, a run folder, or for `diff` also a log that `llmsim.validate` reads."""


def diff(a: Run | Sequence[Run], b: Run | Sequence[Run], *, alpha: float = 0.05) -> "pd.DataFrame":
    """What changed from run `a` to run `b`, and whether it is more than chance.

    Runs are paired request by request; lists hold one run for each seed. The table has a row for
    each metric with `a`, `b`, `delta_pct`, `ci_low`, `ci_high` (percent), `p` and `significant`.
    `alpha` is the chance of any false alarm over all metrics. Raises InputError for runs that
    cannot be paired.
    """
    import pandas as pd

    from llmsim.validation.compare.difference import differences
    from llmsim.validation.logs.pairing import pair

    if not 0 < alpha < 1:
        raise InputError(
            f"alpha is {alpha:g}; it must be between 0 and 1, such as 0.05",
            field="alpha",
            value=alpha,
        )
    first, second = _listed(a), _listed(b)
    if len(first) != len(second) or not first:
        raise InputError(
            f"a holds {counted(len(first), 'run')} and b holds {len(second)}; give as many of "
            "each, one for each seed"
        )
    pairs = [
        pair(_recording(one), _recording(other)) for one, other in zip(first, second, strict=True)
    ]
    rows = {}
    for name, one in differences(pairs, alpha).items():
        low, high = one.ci or (None, None)
        rows[name] = (one.a, one.b, one.delta_pct, low, high, one.p, one.significant)
    columns = ["a", "b", "delta_pct", "ci_low", "ci_high", "p", "significant"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def report(
    runs: Run | Sequence[Run] | Mapping[str, Run],
    path: str | PathLike[str],
    *,
    title: str | None = None,
    why: str | None = None,
) -> None:
    """Writes runs side by side as one HTML file, which opens without a network.

    A mapping names the runs. `why` is "ttft", "tpot" or "e2el": further runs then test what would
    help the 99th percentile of that metric. Raises InputError.
    """
    from llmsim.export.files import check_page
    from llmsim.export.html_report.page import write_report

    target = Path(path)
    check_page("path", target)
    named = runs if isinstance(runs, Mapping) else _named(_listed(runs))
    _listed(list(named.values()))
    with TemporaryDirectory() as temporary:
        folders: dict[Path, Run] = {}
        for name, run in named.items():
            folders[_folder(run, Path(temporary) / _file_name(name))] = run

        def explained(folder: Path) -> "Explained":
            run = folders[folder]
            if why is None:
                return None
            return (run if isinstance(run, Result) else _again(folder)).why(why).to_dict()

        write_report(list(folders), target, title, explained)


def _listed(runs: Run | Sequence[Run]) -> list[Run]:
    """The runs, at least one; raises InputError for what is none."""
    listed = [runs] if isinstance(runs, Result | str | PathLike) else runs
    wrong = listed if not isinstance(listed, list | tuple) else _no_run(listed)
    if wrong is not None:
        raise InputError(
            f"a run is {type(wrong).__name__}; give a Result, a run folder, or a list of them",
            field="runs",
            value=wrong,
        )
    if not listed:
        raise InputError("no run is given; give a Result or a run folder", field="runs")
    return list(listed)


def _no_run(listed: Sequence[object]) -> object | None:
    """The first of them that is no run."""
    return next((one for one in listed if not isinstance(one, Result | str | PathLike)), None)


def _named(runs: Sequence[Run]) -> dict[str, Run]:
    return {"run" if len(runs) == 1 else f"run {i}": run for i, run in enumerate(runs, 1)}


def _file_name(name: str) -> str:
    return name.replace("/", "-") or "run"


def _folder(run: Run, temporary: Path) -> Path:
    """The run's folder; a result is saved into `temporary`."""
    if not isinstance(run, Result):
        return Path(run)
    run.save(temporary)
    return temporary


def _again(folder: Path) -> Result:
    """The run of a folder, run again."""
    from llmsim.api.checked.run_inputs import RunInputs

    inputs = RunInputs.of_folder(folder)
    with inputs.in_directory():
        return inputs.run()


def _recording(run: Run) -> "Recording":
    from llmsim.validation import read_recording
    from llmsim.validation.logs.recording import recording_of

    if isinstance(run, Result):
        return recording_of(run._results, with_itl=True)
    return read_recording(Path(run))
