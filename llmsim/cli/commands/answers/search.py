"""`llmsim search`: which deployments of a space are best."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import FailedRuns, InfeasibleError, InputError, InterruptedRun, nearest
from llmsim.plurals import counted, plural

if TYPE_CHECKING:
    from llmsim.search.journal import Journal, Trial
    from llmsim.search.space import Space as SearchSpace
    from llmsim.search.study import Course
    from llmsim.sizing.workers.watch import Watch
    from llmsim.sizing.workers.workers import Workers

LOCAL, RAY = "local", "ray"
HELP = (
    "Simulate many deployments and list the best ones. The search file names the dimensions of "
    "the space (fields of a cluster file, options of run, replicas), the objectives, and the "
    "requirements (docs/tutorial/sizing.md). Each point is one run. A repeated command "
    "continues an interrupted search."
)

Space = Annotated[
    Path,
    typer.Argument(help="Names the search file (.yaml or .json).", show_default=False),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        parser=given_path,
        metavar="<path>",
        help="Writes cluster files, trials and result.json into this folder.",
    ),
]
Count = Annotated[
    int,
    typer.Option(
        "--trials",
        min=1,
        max=1_000_000,
        help="Limits the simulated points; a smaller space is simulated completely.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        min=0,
        max=1024,
        help="Sets the number of parallel runs; 0 means one per processor.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        max=(1 << 32) - 1,
        help="Seeds the choice of points in a space larger than --trials.",
    ),
]
AllowPlugins = Annotated[
    bool,
    typer.Option(
        "--allow-plugins",
        help="Allows the search file to name Python plug-ins, whose code then runs (SECURITY.md).",
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="<local|ray>",
        help="Runs points in processes of this machine (local) or as actors of Ray "
        "(llmsim[ray]); results are equal.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        parser=given_path,
        metavar="<path>",
        help="Draws the front over the first two objectives (needs matplotlib).",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Prints JSON on stdout instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Prints no progress and no notes.")]


def command(
    space: Space,
    output: Output = Path("outputs/search"),
    trials: Count = 128,
    jobs: Jobs = 0,
    seed: Seed = 0,
    as_json: Json = False,
    allow_plugins: AllowPlugins = False,
    executor: Executor = LOCAL,
    plot: Plot = None,
    quiet: Quiet = False,
) -> int:
    """Searches and writes.

    Raises InputError for a file that is none or changed while the search ran, FailedRuns for points
    without an answer, and InfeasibleError where no point is an answer.
    """
    from llmsim.cli.run.counted import Counted
    from llmsim.cli.run.signals import terminable
    from llmsim.export.files import check_writable_folder
    from llmsim.export.json import json_text, write_json
    from llmsim.search import report, study
    from llmsim.search.apply import load_base
    from llmsim.search.space import load_space
    from llmsim.search.trials import Trials

    asked = load_space(space)
    _check_options(asked.path, [*asked.file.options, *asked.file.vary])
    if plot is not None:
        _check_plot(asked, plot)
    base = load_base(asked)
    folder = check_writable_folder(output)
    course = study.Course() if asked.halves else None
    progress = Counted(quiet=quiet)
    workers = _workers(executor, jobs, progress, fresh=allow_plugins)
    known = Trials(base, folder, workers, progress, allow_plugins=allow_plugins)
    if not quiet:
        _tell_stale(known.journal)
    try:
        with terminable(), progress, workers:
            found = study.search(asked, known.of, trials, seed, course, known.bounds())
    except KeyboardInterrupt:
        raise InterruptedRun(
            f"interrupted after {counted(known.known, 'point')}, which "
            f"{plural(known.known, 'is', 'are')} in {output}; the same call goes on from there"
        ) from None
    front = study.best(asked, found)
    for i in front:
        found[i] = known.with_cluster_file(found[i])
    grid = study.is_grid(asked, trials)
    result = report.as_json(asked, found, front, grid=grid, seed=seed, course=course)
    write_json(result, output / "result.json")
    if plot is not None:
        _draw(asked, found, plot)
    shown = report.as_table(asked, found, front) + (report.counts_text(course) if course else "")
    sys.stdout.write(json_text(result) if as_json else shown)
    _refuse_unfinished(found, known.journal, output)
    if not front:
        raise InfeasibleError(_why_none(found, course, output))
    return 0


def _check_plot(asked: "SearchSpace", path: Path) -> None:
    """Refuses what cannot be drawn, before the first run; raises InputError."""
    from llmsim.api.pictures.files import check_picture
    from llmsim.search.picture import draw_trials

    check_picture(path)
    draw_trials((), asked.objectives)


def _draw(asked: "SearchSpace", found: "list[Trial]", path: Path) -> None:
    from llmsim.api.pictures.front import write_picture
    from llmsim.search.picture import draw_trials

    title = asked.file.model or asked.path.name
    write_picture(path, title, lambda ax: draw_trials(found, asked.objectives, ax))


def _check_options(path: Path, names: Sequence[str]) -> None:
    """Raises InputError for an option that `llmsim run` does not have, before any point is run."""
    from typer.main import get_command

    from llmsim.cli.app import run_app
    from llmsim.cli.usage import unknown_option

    parameters = get_command(run_app).params
    known = [
        one for parameter in parameters for one in (*parameter.opts, *parameter.secondary_opts)
    ]
    for name in names:
        if name.startswith("--") and name not in known:
            raise InputError(
                f"{path}: {unknown_option(name, known, 'llmsim run')}", file=str(path), field=name
            )


def _workers(executor: str, jobs: int, watch: "Watch", *, fresh: bool) -> "Workers":
    """The processes that run points; raises InputError for an executor that is none."""
    from llmsim.sizing.workers.ray_worker import RayWorker, actors
    from llmsim.sizing.workers.workers import Workers

    if executor not in (LOCAL, RAY):
        raise InputError(
            f'--executor is "{executor}"{nearest(executor, (LOCAL, RAY))}; give {LOCAL} or {RAY}',
            field="--executor",
            value=executor,
        )
    if executor == LOCAL:
        return Workers(jobs, apart=True, fresh=fresh, watch=watch)
    return Workers(actors(jobs), apart=True, fresh=fresh, start=RayWorker, watch=watch)


def _tell_stale(journal: "Journal") -> None:
    if journal.stale:
        print(
            (
                f"note: {journal.why_stale} has changed: {journal.stale} earlier "
                f"{plural(journal.stale, 'answer does', 'answers do')} not count and "
                f"{plural(journal.stale, 'is', 'are')} run again"
            ),
            file=sys.stderr,
        )


def _refuse_unfinished(found: "list[Trial]", journal: "Journal", output: Path) -> None:
    """Raises where an answer is missing, or where answers are of two contents of one file."""
    failed = [trial for trial in found if trial.state == "failed"]
    if failed:
        from llmsim.search.apply import shown

        raise FailedRuns(
            f"{len(failed)} of {counted(len(found), 'point')} "
            f"{plural(len(failed), 'has', 'have')} no answer, after two runs of each; for "
            f"instance {shown(failed[0].point)}: {failed[0].reason}; the others are in "
            f"{output / 'result.json'}, and the same call runs what is missing"
        )
    if changed := journal.changed_since():
        raise InputError(
            f"{changed} changed while the search ran, so that its answers are of two contents; the "
            "same call runs those of the old one again"
        )


def _why_none(found: "list[Trial]", course: "Course | None", output: Path) -> str:
    if course is not None and not course.drawn:
        return _why_none_ran(course, output)
    if course is not None and not found:
        examples = [rung.example for rung in course.rungs if rung.example]
        nearest = f"; for instance {examples[0]}" if examples else ""
        return (
            f"none of {counted(course.drawn, 'point')} is an answer: each misses a requirement "
            f"with few requests or by its bounds{nearest}; the "
            f"counts are in {output / 'result.json'}"
        )
    short = [trial for trial in found if trial.state == "short"]
    nearest = f"; for instance {(short or found)[0].reason}"
    return (
        f"none of {counted(len(found), 'point')} is an answer: {len(found) - len(short)} "
        f"cannot run, {counted(len(short), 'misses', 'miss')} a requirement{nearest}; all are in "
        f"{output / 'result.json'}"
    )


def _why_none_ran(course: "Course", output: Path) -> str:
    """Every deployment was ruled out by its memory, its layout or the data sheet's speed."""
    from llmsim.search.prune import REMEDIES

    reason, count = max(course.pruned.items(), key=lambda item: item[1])
    several = f"all {course.candidates} points were"
    what = plural(course.candidates, "the only point was", several)
    example = course.examples[reason].partition(" (")[0]  # without the arithmetic
    return (
        f"{what} pruned without a run, {count} because of: {reason} "
        f"({example}); {REMEDIES[reason]}; the counts are in {output / 'result.json'}"
    )
