"""What a run folder says, as one hash a part: figures, notes, and each table by its columns and
values.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

LENGTH = 16
"""Hexadecimal digits of a digest."""


def digests(folder: Path) -> dict[str, str]:
    """Digest of each part of a run folder, by name.

    The figures and the notes of the summary are two parts, because a reworded note changes no
    figure. A table's digest covers names, types and values, not the bytes of its file, which depend
    on the version of pyarrow.
    """
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    notes = summary.pop("notes")
    parts = {"figures": _digest(summary), "notes": _digest(notes)}
    for path in sorted(folder.glob("*.parquet")):
        parts[path.stem] = _digest(columns(path))
    return parts


def columns(path: Path) -> list[tuple[str, str, list[Any]]]:
    """Name, type and values of each column of a table, in the order of the file."""
    table = parquet.read_table(path)
    return [
        (field.name, str(field.type), column.to_pylist())
        for field, column in zip(table.schema, table.columns, strict=True)
    ]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:LENGTH]
