"""`llmsim data`: public logs and traces, fetched with a checksum."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from llmsim.cli.run.command_line import given_path

LIST_HELP = "List the public logs and traces that can be fetched."
FETCH_HELP = "Fetch a public log or trace and check its SHA-256. A file that is there stays."

Name = Annotated[
    str, typer.Argument(help="Names a file of `llmsim data list`.", show_default=False)
]
To = Annotated[
    Path,
    typer.Option("--to", help="Names the folder.", parser=given_path, metavar="<path>"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Prints JSON instead of a table.")]


def list_files(as_json: AsJson = False) -> None:
    """Prints every file with its size and licence."""
    from dataclasses import asdict

    from llmsim.export.json import json_text
    from llmsim.installation.public_data import catalogue

    found = catalogue()
    if as_json:
        sys.stdout.write(json_text({"files": [asdict(one) for one in found]}))
        return
    width = max(len(one.name) for one in found)
    for one in found:
        print(f"{one.name:{width}}  {one.bytes:>9,} B  {one.license}  {one.what}")


def fetch(name: Name, to: To = Path("data")) -> None:
    """Fetches one file; raises InputError."""
    from llmsim.installation import public_data

    wanted = public_data.find(name)
    path, new = public_data.fetch(wanted, to)
    print(f"{path}: {'fetched' if new else 'already there'}, SHA-256 {wanted.sha256}")
