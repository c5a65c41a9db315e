"""Prints the JSON Schema of the cluster file, or a reference page (`llmsim schema`)."""

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
    columns: Annotated[
        bool, typer.Option("--columns", help="Prints the columns of a run's tables as Markdown.")
    ] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Prints every command and its options as Markdown.")
    ] = False,
) -> None:
    """Prints to stdout."""
    if commands:
        from llmsim.cli.commands_page import commands_page

        print(commands_page(), end="")
        return
    if options:
        from llmsim.config.engine.reference import options_page

        print(options_page(), end="")
        return
    if columns:
        from llmsim.export.columns_page import columns_page

        print(columns_page(), end="")
        return
    from llmsim.config import cluster_schema

    print(json.dumps(cluster_schema(), indent=2))
