"""Options of `llmsim run` behind another command: checked, and passed on instead of run."""

import sys
from collections.abc import Sequence

from msgspec.structs import replace

from llmsim.api.checked.run_options import RunOptions
from llmsim.config.errors import InputError


def checked_options(arguments: Sequence[str], command: str = "llmsim run") -> RunOptions:
    """The options of a `run` command line, checked but not run: what other commands pass on to
    `trial`. Errors name `command` and its help.
    """
    from llmsim.cli.app import run_app

    options: RunOptions | int = run_app(
        list(arguments), prog_name=command, standalone_mode=False, obj=lambda checked: checked
    )
    if isinstance(options, int):  # typer gives the exit code of an interrupt in place of the result
        raise KeyboardInterrupt
    return options


def without_outputs(options: RunOptions) -> RunOptions:
    """The same for a command that writes none of a run's outputs; says on stderr which of them were
    asked for.
    """
    asked = {
        "--output": options.output,
        "--run-dir": options.run_dir,
        "--timeline": options.timeline,
        "--graphs": options.graphs,
    }
    named = [name for name, path in asked.items() if path is not None]
    if named:
        print(f"note: {', '.join(named)}: this command writes no such output", file=sys.stderr)
    if options.require:
        raise InputError(
            f"--require {options.require}: only `llmsim run` refuses times; leave it out"
        )
    return replace(options, output=None, run_dir=None, timeline=None, graphs=None)
