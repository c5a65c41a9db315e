"""Bytes, text and JSON of a file that a user gives: whatever is wrong with the file is one sentence
with its position.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmsim.config.errors import InputError
from llmsim.config.files import input_files

MAX_WHOLE_BYTES = 1 << 29
"""Bytes of a file, after decompression, that a format which must be read as a whole may have (512
MiB).
"""
MAX_LINE_BYTES = 1 << 26
"""Bytes of one line, or of one JSON value in a list, that a reader of many lines takes (64 MiB)."""
LONGEST_SHOWN = 60


def shown(value: object) -> str:
    """A value of a file for a sentence, as Python writes it, cut where it gets long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested deeply, or an integer of thousands of digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def quoted(text: str) -> str:
    """A text of a file for a sentence, in double quotes, cut where it gets long."""
    return f'"{text}"' if len(text) <= LONGEST_SHOWN else f'"{text[: LONGEST_SHOWN - 3]}..."'


def finite(value: object) -> float | None:
    """A JSON number as a finite float; None for anything else: a bool, a text, NaN, an integer
    beyond a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def too_long(position: str) -> InputError:
    """The error for a line, or a JSON value in a list, that is longer than `MAX_LINE_BYTES`."""
    most = MAX_LINE_BYTES >> 20
    return InputError(
        f"{position}: longer than the {most} MiB that one line or value may have; split it into "
        "several"
    )


def too_large(path: Path) -> InputError:
    """The error for a file that must be read as a whole and has more than `MAX_WHOLE_BYTES`."""
    most = MAX_WHOLE_BYTES >> 20
    return InputError(
        f"{path}: holds more than the {most} MiB that are read as a whole; split it into several "
        "files",
        file=str(path),
    )


def file_bytes(path: Path, expected: str) -> bytes:
    """The bytes of a file; InputError says what was `expected` where it cannot be read or is too
    large.
    """
    try:
        with input_files.open_binary(path) as stream:
            data = stream.read(MAX_WHOLE_BYTES + 1)
    except (OSError, ValueError) as error:  # a path may hold a NUL
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path}: cannot be read ({reason}); expected {expected}", file=str(path)
        ) from None
    if len(data) > MAX_WHOLE_BYTES:
        raise too_large(path)
    return data


def decoded(data: bytes, path: Path, expected: str) -> str:
    """UTF-8 bytes of a file as text, a byte order mark left out; InputError names the line that is
    not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise InputError(
            f"{path}:{line}: byte 0x{byte:02x} is not UTF-8 text; expected {expected}",
            file=str(path),
        ) from None


def file_text(path: Path, expected: str) -> str:
    """A UTF-8 file as text; InputError says what was `expected` where it is none."""
    return decoded(file_bytes(path, expected), path, expected)


def json_value(
    text: str,
    path: Path,
    expected: str,
    *,
    line: int = 1,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """The value of a JSON text that begins in `line` of a file; InputError names file, line and
    column.
    """
    try:
        return json.loads(text, parse_float=parse_float)
    except json.JSONDecodeError as error:
        position = f"{path}:{line + error.lineno - 1}:{error.colno}"
        raise InputError(f"{position}: not valid JSON: {error.msg}; expected {expected}") from None
    except RecursionError:
        raise InputError(
            f"{path}:{line}: the JSON is nested too deeply; expected {expected}", file=str(path)
        ) from None
    except ValueError:  # the only other one: an integer of more digits than Python converts
        raise InputError(
            f"{path}:{line}: a number has thousands of digits; expected {expected}", file=str(path)
        ) from None


def json_file(path: Path, expected: str) -> Any:
    """The value of a JSON file; InputError says what was `expected` where there is none."""
    return json_value(file_text(path, expected), path, expected)
