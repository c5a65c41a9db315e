"""Prints the JSON Schema of the cluster file, or the reference page of the engine's options
(`llmsim schema`).
"""

import json
from typing import Annotated

import typer

HELP = "Print the JSON Schema of the cluster file."


def command(
    options: Annotated[
        bool,
        typer.Option(
            "--options", help="Prints the engine's options as Markdown instead of the schema."
        ),
    ] = False,
) -> None:
    """Prints to stdout."""
    if options:
        from llmsim.config.engine.reference import options_page

        print(options_page(), end="")
        return
    from llmsim.config import cluster_schema

    print(json.dumps(cluster_schema(), indent=2))
