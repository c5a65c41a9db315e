"""`llmsim examples`: the bundled cluster files and traces, by name, from any folder."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from llmsim.cli.run.command_line import given_path

LIST_HELP = "List the bundled cluster files and traces."
COPY_HELP = (
    "Copy a bundled example into a folder. With a cluster file comes the trace that shows it."
)
RUN_HELP = (
    "Run a bundled example. A cluster serves its trace; a trace is served by one H100. Options of "
    "`llmsim run` may follow and win."
)
RUN_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}

Name = Annotated[
    str, typer.Argument(help="Names an example of `llmsim examples list`.", show_default=False)
]
Folder = Annotated[
    Path,
    typer.Argument(
        help="Names the folder to copy into.",
        parser=given_path,
        metavar="DIR",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replaces files that differ.")]
AsJson = Annotated[bool, typer.Option("--json", help="Prints JSON instead of a table.")]


def list_examples(as_json: AsJson = False) -> None:
    """Prints every example with what it shows."""
    from llmsim.export.json import json_text
    from llmsim.installation.examples import bundled

    found = list(bundled())
    if as_json:
        rows = [
            {"name": one.name, "kind": one.kind, "what": one.what, "path": str(one.path)}
            for one in found
        ]
        sys.stdout.write(json_text({"examples": rows}))
        return
    width = max(len(one.name) for one in found)
    for one in found:
        print(f"{one.name:{width}}  {one.kind:7}  {one.what}")


def copy_example(name: Name, folder: Folder, force: Force = False) -> None:
    """Copies and says how to run the copy; raises InputError."""
    from llmsim.installation.examples import copy, find, run_words

    example = find(name)
    copies = copy(example, folder, force=force)
    for path in copies:
        print(path)
    there = {path.name: str(path) for path in copies}
    words = [there.get(Path(word).name, word) for word in run_words(example)]
    print("llmsim run " + " ".join(f'"{word}"' if " " in word else word for word in words))


def run_example(context: typer.Context, name: Name) -> int:
    """Runs it as `llmsim run` does; returns the exit code."""
    from llmsim.cli.app import run_app
    from llmsim.installation.examples import find, run_words

    words = [*run_words(find(name)), *context.args]
    code = run_app(words, standalone_mode=False)
    return code if isinstance(code, int) else 0
