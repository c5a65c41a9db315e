"""Files of pictures: which kinds there are, and how a figure becomes one."""

from pathlib import Path
from typing import TYPE_CHECKING

from llmsim.api.pictures.plots import new_figure
from llmsim.config.errors import InputError
from llmsim.export.files import atomic_writer, check_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
USUAL = ".png"
"""The kind of a picture whose name ends in none."""


def check_picture(path: Path) -> None:
    """Makes sure, before any work, that a picture can be drawn into this file; raises InputError
    for a name of another kind, for a file that cannot be written, and without matplotlib.
    """
    kinds = new_figure((1, 1)).canvas.get_supported_filetypes()
    if _kind(path) not in kinds:
        raise InputError(
            f"--plot {path}: the name of a picture ends in .png, .svg or .pdf",
            field="--plot",
            value=str(path),
        )
    check_writable(path)


def write_figure(path: Path, figure: "Figure") -> None:
    """Writes a figure as a picture of the kind that the name ends in."""
    with atomic_writer(path, "wb") as stream:
        figure.savefig(stream, format=_kind(path), dpi=DPI)


def _kind(path: Path) -> str:
    return (path.suffix or USUAL).lstrip(".").lower()
