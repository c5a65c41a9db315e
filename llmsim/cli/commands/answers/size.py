"""`llmsim size`: how many devices a load with latency targets needs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmsim.cli.run.command_line import given_path

if TYPE_CHECKING:
    from llmsim.sizing.answer import Answer
    from llmsim.sizing.plan import Plan

HELP = (
    "Find the cheapest deployment of a model that serves a load within latency targets. Layouts, "
    "numbers of instances and prefill/decode splits are simulated "
    "(docs/tutorial/sizing.md). The exit code is 5 if nothing meets the targets."
)
NOTHING_MEETS = 5

Model = Annotated[
    str,
    typer.Option(
        "--model", help="Names a bundled model, or the path of a config.json.", show_default=False
    ),
]
Device = Annotated[
    list[str],
    typer.Option(
        "--device",
        help="Names a device, several separated by commas or with the option for each, or any: "
        "every device with a price.",
        metavar="<str>",
        show_default=False,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Sets the requests per second.", show_default=False),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", help="Sets the clients that each wait for an answer.", show_default=False
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option("--dataset", help="Names a trace, served at its own pace.", show_default=False),
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="Draws prompt tokens, such as lognormal:1000.",
        show_default="fixed:1000",
    ),
]
OutputTokens = Annotated[
    str | None,
    typer.Option(
        "--output-tokens",
        help="Draws answer tokens, such as lognormal:200.",
        show_default="fixed:200",
    ),
]
Classes = Annotated[
    str,
    typer.Option(
        "--classes",
        help="Puts the requests into classes, as chat:0.7|batch:0.3; --input and --output-tokens "
        "may then have a distribution for each, separated by |.",
        show_default=False,
    ),
]
Slo = Annotated[
    list[str],
    typer.Option(
        "--slo",
        help="Sets the targets in ms, such as ttft:1000,tpot:40,e2el:20000, or by class as "
        "chat=ttft:300;batch=e2el:60000; given again, it adds targets.",
        metavar="<str>",
        show_default=False,
    ),
]
Percentile = Annotated[
    float, typer.Option("--percentile", help="Sets the percentile that meets each target.")
]
MaxDevices = Annotated[
    int, typer.Option("--max-devices", help="Limits the devices of a deployment.")
]
Architecture = Annotated[
    list[str],
    typer.Option(
        "--architecture",
        help="Names what is tried: colocated, pd, afd (attention and FFN apart), several separated "
        "by commas or with the option for each.",
        metavar="<str>",
        show_default="colocated,pd",
    ),
]
Node = Annotated[int, typer.Option("--devices-per-node", help="Sets the devices of a node.")]
Emit = Annotated[
    Path | None,
    typer.Option(
        "--emit",
        help="Writes files that start the best deployment: vLLM, SGLang, Dynamo, llm-d, "
        "LeaderWorkerSets, Docker compose, a cluster file, and the simulation of it.",
        parser=given_path,
        metavar="<path>",
        show_default=False,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", help="Draws the front (needs matplotlib).", parser=given_path, metavar="<path>",
        show_default=False,
    ),
]  # fmt: skip
Html = Annotated[
    Path | None,
    typer.Option(
        "--html", help="Writes the answer as one page.", parser=given_path, metavar="<path>",
        show_default=False,
    ),
]  # fmt: skip
Engine = Annotated[
    str,
    typer.Option(
        "--engine-profile",
        help="Names the release that serves, such as sglang-0.5.23; vLLM without it.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seeds the draws of the load.")]
Jobs = Annotated[
    int,
    typer.Option("--jobs", "-j", min=0, max=1024, help="Sets the processes; 0: one per processor."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Prints JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Prints no progress.")]


def command(
    model: Model,
    device: Device,
    slo: Slo,
    rate: Rate = None,
    concurrency: Concurrency = None,
    dataset: Dataset = None,
    input_tokens: Input = None,
    output_tokens: OutputTokens = None,
    classes: Classes = "",
    percentile: Percentile = 99.0,
    max_devices: MaxDevices = 512,
    architecture: Architecture = ["colocated", "pd"],  # noqa: B006  # typer copies it
    devices_per_node: Node = 8,
    engine_profile: Engine = "",
    emit: Emit = None,
    plot: Plot = None,
    html: Html = None,
    seed: Seed = 1,
    jobs: Jobs = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Sizes, prints and writes; raises InputError. Returns 5 where nothing meets the targets."""
    from llmsim.cli.run.counted import Counted
    from llmsim.export.json import json_text
    from llmsim.sizing.answer import text
    from llmsim.sizing.size import size

    _check_files(emit, plot, html)
    between = ";" if any("=" in targets for targets in slo) else ","
    with Counted(quiet=quiet) as progress:
        answer = size(
            model,
            ",".join(device),
            slo=between.join(slo),
            rate=rate,
            concurrency=concurrency,
            dataset=dataset,
            input=input_tokens,
            output_tokens=output_tokens,
            classes=classes,
            percentile=percentile,
            max_devices=max_devices,
            architecture=",".join(architecture),
            devices_per_node=devices_per_node,
            engine_profile=engine_profile,
            seed=seed,
            jobs=jobs,
            watch=progress,
        )
    sys.stdout.write(json_text(answer.as_json()) if as_json else text(answer))
    _write_pictures(answer, plot, html)
    if answer.best is None:
        return NOTHING_MEETS
    if emit is not None:
        _emit(answer, answer.best.plan, emit, quiet=quiet)
    return 0


def _check_files(emit: Path | None, plot: Path | None, html: Path | None) -> None:
    """Refuses, before any run, what cannot be written; raises InputError."""
    from llmsim.api.pictures.files import check_picture
    from llmsim.export.files import check_page, check_writable_folder

    if emit is not None:
        check_writable_folder(emit)
    if plot is not None:
        check_picture(plot)
    if html is not None:
        check_page("--html", html)


def _emit(answer: "Answer", plan: "Plan", folder: Path, *, quiet: bool) -> None:
    """Writes the files that start a deployment, names them, and says which it does not write."""
    from llmsim.sizing.emit import not_written

    for path in answer.emit(folder):
        print(path, file=sys.stderr)
    left_out = not_written(plan)
    if left_out and not quiet:
        print(f"note: {left_out}", file=sys.stderr)


def _write_pictures(answer: "Answer", plot: Path | None, html: Path | None) -> None:
    from llmsim.export.files import atomic_writer

    if plot is not None:
        from llmsim.sizing.pictures import plot as draw

        draw(answer, plot)
    if html is not None:
        from llmsim.sizing.pictures import html as page

        with atomic_writer(html) as stream:
            stream.write(page(answer))
