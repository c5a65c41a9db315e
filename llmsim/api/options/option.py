"""The declaration of an option: its names on the command line, and its text under a heading."""

from msgspec import Struct


class Option(Struct, frozen=True):
    """What `llmsim run --help` shows of an option; type and default belong to the field."""

    panel: str
    """The heading of the help."""
    names: tuple[str, ...]
    text: str
    show_default: bool = False
    metavar: str | None = None
    is_path: bool = False
    """A path may not be empty; `""` would mean the current directory."""


def option(
    panel: str, *names: str, text: str, default: bool = False, metavar: str | None = None
) -> Option:
    """An option with its names; `default` says whether the help shows its default."""
    return Option(panel, names, text, show_default=default, metavar=metavar)


def path_option(panel: str, *names: str, text: str) -> Option:
    """An option that takes one path."""
    return Option(panel, names, text, metavar="<path>", is_path=True)
