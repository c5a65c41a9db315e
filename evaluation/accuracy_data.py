"""Finds the optional data of the accuracy page."""

from pathlib import Path


class SectionSkipped(Exception):
    """A section cannot be computed here; the text says why."""


def needed(folder: Path, relative: str) -> Path:
    """A file or folder of the data; raises SectionSkipped where it is absent."""
    path = folder / relative
    if not path.exists():
        raise SectionSkipped(f"{relative} is not in the data folder (--data)")
    return path
