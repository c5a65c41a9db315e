"""How an option is declared: its names, and its text under a heading of the help."""

from pathlib import Path

import typer


def option(
    panel: str, *names: str, text: str, default: bool = False, metavar: str | None = None
) -> object:
    """What typer reads from a type's annotation; `panel` is the heading."""
    return typer.Option(
        *names, help=text, rich_help_panel=panel, show_default=default, metavar=metavar
    )


def path_option(panel: str, *names: str, text: str) -> object:
    """The same for one path, which may not be empty."""
    return typer.Option(
        *names,
        help=text,
        rich_help_panel=panel,
        show_default=False,
        metavar="<path>",
        parser=given_path,
    )


def given_path(text: str) -> Path:
    """A path that was given: `Path` itself takes an empty one (`--run-dir "$UNSET"`) for the
    current directory.
    """
    if not text:
        raise typer.BadParameter("the path is empty; name one, or leave the option out")
    return Path(text)
