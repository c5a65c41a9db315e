"""Text of a recorded run's file, plain or packed."""

from pathlib import Path

from llmsim.config.errors import InputError
from llmsim.workload.opening import opened


def text_of(path: Path, expected: str) -> str:
    """The file as text, unpacked where it is gzip or Zstandard; InputError says what was `expected`."""
    if not path.exists():
        raise InputError(f"{path}: cannot be read (No such file or directory); {expected}")
    try:
        with opened(path) as stream:
            return stream.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: cannot be read (it is not UTF-8 text); {expected}") from None
