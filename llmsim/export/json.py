"""JSON text of our outputs: the same value gives the same bytes, and NaN is never written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsim.export.files import atomic_writer


def json_text(value: Mapping[str, Any]) -> str:
    """Indented JSON in the order of the keys, ending in a line feed. Raises ValueError for NaN and
    infinity.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode(
        errors="backslashreplace"
    ).decode()  # a lone surrogate, as in a folder's name, is JSON's escape


def write_json(value: Mapping[str, Any], path: str | Path) -> None:
    """Writes `json_text(value)` to `path`, atomically. Raises InputError where that is not
    possible.
    """
    with atomic_writer(path) as stream:
        stream.write(json_text(value))
