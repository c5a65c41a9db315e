"""How an option is declared: its names, and its text under a heading of the help."""

import typer


def option(panel: str, *names: str, text: str, default: bool = False, metavar: str | None = None) -> object:
    """What typer reads from a type's annotation; `panel` is the heading."""
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=default, metavar=metavar)
