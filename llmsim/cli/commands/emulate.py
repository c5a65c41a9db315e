"""`llmsim emulate`: a real engine's server in virtual time."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmsim.cli.run.command_line import given_path
from llmsim.cli.usage import Command
from llmsim.config.errors import InputError
from llmsim.plurals import grouped

if TYPE_CHECKING:
    from llmsim.emulation.emulate import Emulated
    from llmsim.emulation.engines.engine import Engine as EmulatedEngine

HELP = (
    "Run the engine's own server in virtual time, without a GPU (docs/how-to/emulate.md). "
    "The server is unmodified; its steps take the simulated times of the cluster file's devices. "
    "The command takes every option of `llmsim run` that describes deployment and workload. "
    "Words after -- are the command of a client that sends requests in place of --dataset."
)
CLIENT = "llmsim emulate: client"
"""Where the words after `--` stand in the context."""
NO_DATASET = "synthetic:n=1,rate=1,input=fixed:1,output=fixed:1"
"""What stands for the workload where a client has its own."""
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
Engine = Annotated[str, typer.Argument(help="Names the engine: vllm or sglang.", metavar="ENGINE")]
EnginePython = Annotated[
    Path | None,
    typer.Option(
        "--engine-python",
        help="Names the Python interpreter that has the engine; by default, this one.",
        parser=given_path,
        metavar="<path>",
        show_default=False,
    ),
]
EngineArgs = Annotated[
    str, typer.Option("--engine-args", help="Adds options to the server's own, as one text.")
]
RunDir = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        help="Writes requests.parquet, client.json, manifest.json and the server's log there.",
        parser=given_path,
        metavar="<path>",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Prints one JSON object.")]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare/--no-compare",
        help="Compares every step with the simulation of the same options.",
    ),
]


class CommandBeforeClient(Command):
    """The words after `--` are the client's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            args, ctx.meta[CLIENT] = args[:place], args[place + 1 :]
        return super().parse_args(ctx, args)


def command(
    context: typer.Context,
    engine: Engine,
    engine_python: EnginePython = None,
    engine_args: EngineArgs = "",
    run_dir: RunDir = None,
    as_json: AsJson = False,
    compare: Compare = True,
) -> int:
    """Returns the exit code; raises what the parts raise (InputError)."""
    import shlex
    import tempfile

    from llmsim.api.preparation.prepare import prepare
    from llmsim.cli.run.arguments import checked_options, without_outputs
    from llmsim.emulation.emulate import Client, emulate
    from llmsim.emulation.engines import ENGINES
    from llmsim.emulation.release import with_release
    from llmsim.export.files import check_writable_folder

    if engine not in ENGINES:
        raise InputError(f'ENGINE is "{engine}"; this version emulates {" and ".join(ENGINES)}')
    emulated_engine = ENGINES[engine]
    try:
        words = shlex.split(engine_args)
    except ValueError as error:
        raise InputError(f'--engine-args "{engine_args}": {error}') from None
    client_words = context.meta.get(CLIENT)
    if client_words is not None and not client_words:
        raise InputError("-- is followed by no client; name one, as in -- vllm bench serve")
    client = None if client_words is None else Client(client_words, keeps_stdout=not as_json)
    options = [*emulated_engine.options(), *context.args]
    has_dataset = any(word.split("=")[0] == "--dataset" for word in options)
    if client is not None:
        if has_dataset:
            raise InputError("--dataset: the client after -- sends its own requests; leave one out")
        options += ["--dataset", NO_DATASET]
    elif not has_dataset:
        raise InputError(
            "--dataset is missing; it names the workload, and the words of a client after -- send "
            "their own instead, as in -- vllm bench serve (see llmsim emulate --help)",
            field="--dataset",
        )
    python = engine_python or Path(sys.executable)
    checked = without_outputs(checked_options(options, context.command_path))
    prepared = prepare(with_release(checked, emulated_engine, python))
    with tempfile.TemporaryDirectory() as folder, _no_leftovers(run_dir):
        target = Path(folder) if run_dir is None else check_writable_folder(run_dir)
        emulated = emulate(emulated_engine, prepared, python, target / "server.log", words, client)
        compare = compare and client is None
        return _tell(emulated_engine, emulated, prepared, run_dir, as_json=as_json, compare=compare)


@contextmanager
def _no_leftovers(run_dir: Path | None) -> Iterator[None]:
    """Where the input is refused inside of it, what has been added to the folder is removed."""
    if run_dir is None:
        yield
        return
    before = set(run_dir.iterdir()) if run_dir.is_dir() else None
    try:
        yield
    except InputError:
        for path in set(run_dir.glob("*")) - (before or set()):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if before is None and run_dir.is_dir():
            run_dir.rmdir()
        raise


def _tell(
    engine: "EmulatedEngine",
    emulated: "Emulated",
    prepared: Any,
    run_dir: Path | None,
    *,
    as_json: bool,
    compare: bool,
) -> int:
    from llmsim.emulation.outcome import client_figures, difference, write_folder
    from llmsim.emulation.release import engine_profiles, other_release
    from llmsim.export.json import json_text

    if isinstance(emulated.failure, InputError):
        raise emulated.failure
    figures = client_figures(emulated)
    manifest: dict[str, Any] = {
        "engine": engine.name,
        "engine_version": emulated.version,
        "engine_profiles": engine_profiles(prepared.lowered),
        "other_release": other_release(prepared.lowered, engine, emulated.version),
        "deterministic": not emulated.reasons,
        "reasons": list(emulated.reasons),
        "jumps": emulated.jumps,
        "virtual_s": figures["duration"],
        "wall_s": round(emulated.wall_s, 3),
        "start_s": round(emulated.start_s, 3),
        "cpu_s": None if emulated.cpu_s is None else round(emulated.cpu_s, 3),
        "steps": sum(len(one.items) for one in emulated.schedules),
    }
    if compare and emulated.failure is None:
        first = difference(emulated, prepared)
        manifest["same_as_run"], manifest["first_difference"] = not first, first or None
    if run_dir is not None:
        model = prepared.lowered.groups[0].info.model_name
        write_folder(run_dir, emulated, model, figures, manifest)
    if as_json:
        short = {name: value for name, value in figures.items() if not isinstance(value, list)}
        print(json_text(manifest | short), end="")
    else:
        _print(engine.title, manifest, figures, len(emulated.asked.names))
    if emulated.failure is not None:
        raise emulated.failure
    return 0


def _print(title: str, manifest: Mapping[str, Any], figures: Mapping[str, Any], asked: int) -> None:
    speed = manifest["virtual_s"] / manifest["wall_s"] if manifest["wall_s"] else 0.0
    print(
        f"Served:    {figures['completed']:,} of {grouped(asked, 'request')} in "
        f"{manifest['virtual_s']:.1f} virtual s by {title} {manifest['engine_version']}, "
        f"{grouped(manifest['steps'], 'step')}"
    )
    for label, name in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2el")):
        if f"mean_{name}_ms" in figures:
            row = "   ".join(
                f"{title} {figures[f'{key}_{name}_ms']:,.2f}"
                for title, key in (
                    ("p50", "median"),
                    ("p90", "p90"),
                    ("p99", "p99"),
                    ("mean", "mean"),
                )
            )
            print(f"{label + ':':<11}{row} ms")
    print(
        f"Speed:     {speed:.1f} times real time, {manifest['wall_s']:.1f} s; "
        f"the server started in {manifest['start_s']:.0f} s"
    )
    if manifest["other_release"] is not None:
        print(f"note: {manifest['other_release']}")
    for reason in manifest["reasons"]:
        print(f"note: another emulation may give other results: {reason}")
    if "same_as_run" in manifest:
        profiles = ", ".join(manifest["engine_profiles"])
        same = f"every step is that of `llmsim run` with the engine profile {profiles}"
        print(f"Compared:  {manifest['first_difference'] or same}")
