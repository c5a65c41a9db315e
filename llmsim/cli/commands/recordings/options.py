"""Options of the commands that compare a recorded run with a simulated one."""

from typing import Annotated

import typer

from llmsim.config.errors import InputError

SkipSeconds = Annotated[
    float,
    typer.Option(
        "--skip-seconds",
        help="Leaves requests of the first seconds (cold engine) out of paired errors.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Prints JSON on stdout instead of Markdown.")]


def check_skip_seconds(skip_seconds: float) -> None:
    """Raises InputError for a negative or endless time."""
    if not 0 <= skip_seconds < float("inf"):
        raise InputError(f"--skip-seconds is {skip_seconds:g}; it must be 0 or more")
