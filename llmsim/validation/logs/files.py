"""Text of a recorded run's file, plain or packed."""

from pathlib import Path

from llmsim.config.errors import InputError
from llmsim.config.files.reading import MAX_WHOLE_BYTES, decoded, too_large
from llmsim.workload.open_trace import opened


def text_of(path: Path, expected: str) -> str:
    """The file as text, unpacked where it is gzip or Zstandard; InputError says what was
    `expected`.
    """
    if not path.exists():
        raise InputError(
            f"{path}: cannot be read (No such file or directory); {expected}", file=str(path)
        )
    with opened(path) as stream:
        data = stream.read(MAX_WHOLE_BYTES + 1)
    if len(data) > MAX_WHOLE_BYTES:
        raise too_large(path)
    return decoded(data, path, expected)
