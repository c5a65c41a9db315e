"""`llmsim serve`: an OpenAI-compatible endpoint over the simulator."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import InputError

if TYPE_CHECKING:
    from llmsim.api.checked.run_options import RunOptions
    from llmsim.endpoint.engine.clock import Clock

HELP = (
    "Serve a simulated cluster over HTTP, as an OpenAI-compatible endpoint without a GPU "
    "(docs/how-to/serve.md). Tokens come at their simulated times. The command takes every option "
    "of `llmsim run` that describes the deployment. SIGTERM drains it within 5 seconds."
)
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
CLOCKS = ("real", "warp")

Host = Annotated[str, typer.Option("--host", help="Names the address to listen at.")]
Port = Annotated[int, typer.Option("--port", help="Sets the port; 0 takes a free one.")]
ClockName = Annotated[
    str,
    typer.Option(
        "--clock",
        help="Is real, where tokens come as from a GPU, or warp, where clients that take part "
        "share a virtual clock.",
    ),
]
Speed = Annotated[
    float,
    typer.Option("--speed", help="Sets the simulated seconds of a second (--clock real)."),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        help="Names a file with the key that clients must send as a bearer token.",
        parser=given_path,
        metavar="<path>",
        show_default=False,
    ),
]
OutputTokens = Annotated[
    int,
    typer.Option("--output-tokens", help="Sets the length of answers whose request sets none."),
]
TokenizerPath = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        help="Names a tokenizer.json; by default five characters are a token.",
        parser=given_path,
        metavar="<path>",
        show_default=False,
    ),
]
MostRequests = Annotated[
    int,
    typer.Option("--max-requests", help="Limits the requests that are under way at a time."),
]
RunDir = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        help="Writes the requests as a trace, and the run folder of its simulation, at the end.",
        parser=given_path,
        metavar="<path>",
        show_default=False,
    ),
]


def command(
    context: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    clock: ClockName = "real",
    speed: Speed = 1.0,
    api_key_file: ApiKeyFile = None,
    output_tokens: OutputTokens = 128,
    tokenizer: TokenizerPath = None,
    max_requests: MostRequests = 65_536,
    run_dir: RunDir = None,
) -> int:
    """Serves until it is told to end; raises what the parts raise (InputError). Returns the exit
    code.
    """
    from contextlib import ExitStack

    from llmsim.cli.run.arguments import checked_options, without_outputs

    try:
        from llmsim.endpoint.building import built
        from llmsim.endpoint.http.server import listening, serve
    except ImportError as error:
        raise InputError(
            f"`llmsim serve` needs the package {error.name}; pip install 'llmsim[serve]'"
        ) from None
    if any(word.partition("=")[0] == "--dataset" for word in context.args):
        raise InputError(
            "--dataset: `llmsim serve` simulates what clients send; leave it out, or give it to "
            "`llmsim run`"
        )
    words = [*context.args, "--dataset", "live requests"]
    options = without_outputs(checked_options(words, context.command_path))
    key = "" if api_key_file is None else _key(api_key_file)
    with ExitStack() as stack:
        recorder = None
        if run_dir is not None:
            from llmsim.endpoint.recorder import TraceRecorder
            from llmsim.export.files import check_writable_folder

            recorder = TraceRecorder(stack, check_writable_folder(run_dir))
        endpoint = built(
            options,
            _clock(clock, speed),
            recorder,
            tokenizer=tokenizer,
            output_tokens=_at_least("--output-tokens", output_tokens),
            rows=_at_least("--max-requests", max_requests),
            api_key=key,
        )
        listener = stack.enter_context(listening(host, port))
        serve(endpoint, listener, lambda address: print(f"ready {address}", flush=True))
        trace = None if recorder is None else recorder.finish(endpoint.engine.clock.now_ps())
        if trace is not None:
            return _run(options, trace, run_dir)
    if run_dir is not None:
        print(f"note: {run_dir}: no request came, so no run is written", file=sys.stderr)
    return 0


def _run(options: "RunOptions", trace: Path, folder: Path | None) -> int:
    """The run of the requests that were served, as `llmsim run` writes it."""
    from llmsim.cli.commands.run import run

    return run(replace(options, dataset=str(trace), run_dir=folder, quiet=True))


def _clock(name: str, speed: float) -> "Clock":
    from llmsim.endpoint.engine.clock import RealClock, WarpClock

    if name not in CLOCKS:
        raise InputError(f'--clock is "{name}"; it must be real or warp')
    if not 1e-3 <= speed <= 1e6:
        raise InputError(f"--speed is {speed:g}; it must be 0.001 to 1000000")
    if name == "real":
        return RealClock(speed)
    if speed != 1.0:
        raise InputError("--speed: virtual time has no speed; leave it out, or take --clock real")
    return WarpClock()


def _key(path: Path) -> str:
    from llmsim.config.files.reading import file_text

    key = file_text(path, "a file with the API key (--api-key-file)").strip()
    if not key:
        raise InputError(f"--api-key-file {path} is empty; write the key into it")
    return key


def _at_least(name: str, value: int, least: int = 1) -> int:
    if value < least:
        raise InputError(f"{name} is {value}; it must be at least {least}")
    return value
