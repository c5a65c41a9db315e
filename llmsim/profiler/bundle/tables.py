"""CSV tables that grow row by row, so that an interrupted measurement loses nothing and goes on
where it stopped.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from llmsim.config.errors import InputError

Key = tuple[str, ...]


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Says in one sentence that a file cannot be written, and where: a full disk names no file."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); what was measured so far is "
            "kept, and the same command goes on from there",
            file=str(path),
        ) from None


class GrowingTable:
    """One CSV file with key columns; every row is on disk before the next one is measured."""

    def __init__(self, path: Path, keys: Sequence[str], columns: Sequence[str]) -> None:
        """Reads what is there; a last line without its end (a power cut) is dropped. InputError for
        another header.
        """
        self.path = path
        self._header = [*keys, *columns]
        self._keys = len(keys)
        self.done: set[Key] = set()
        if path.is_file():
            self._read()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(",".join(self._header) + "\n", "w")

    def __contains__(self, key: Sequence[object]) -> bool:
        return tuple(str(part) for part in key) in self.done

    def __len__(self) -> int:
        return len(self.done)

    def add(self, key: Sequence[object], values: Mapping[str, object]) -> None:
        """Appends one row; `values` by column name, missing ones stay empty."""
        cells = [*key, *(values.get(name, "") for name in self._header[self._keys :])]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        self._write(text.getvalue(), "a")
        self.done.add(tuple(str(part) for part in key))

    def _write(self, text: str, mode: str) -> None:
        with written(self.path), self.path.open(mode, encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) != len(content):
            with self.path.open("r+b") as stream:
                stream.truncate(len(whole))
        rows = list(csv.reader(io.StringIO(whole.decode("utf-8", errors="replace"))))
        if not rows:
            self._write(",".join(self._header) + "\n", "w")
            return
        if rows[0] != self._header:
            raise InputError(
                f"{self.path}:1:1: the columns are {','.join(rows[0])}, not "
                f"{','.join(self._header)}; another "
                "profiler wrote it: give another folder (--out-root)",
                file=str(self.path),
            )
        self.done = {tuple(row[: self._keys]) for row in rows[1:] if len(row) == len(self._header)}
