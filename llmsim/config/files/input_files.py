"""Opens every file that a run reads, and records it for a search and for the manifest of a run
folder.

A reader calls `read_bytes`, `read_text` or `open_binary`, or `note` where a library opens the path
itself. `recorded` collects what one run reads. The record belongs to the calling thread's context;
runs in other threads have their own. Files of the package itself are not recorded:
`llmsim.config.files.code_identity` covers them.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from msgspec import Struct

PACKAGE = Path(__file__).resolve().parents[2]
Kind = Literal["file", "absent", "folder", "special"]
Path_ = str | os.PathLike[str]


class InputFile(Struct, frozen=True):
    """One path that a run read or looked for.

    `sha256` is that of a file's content, or of the sorted names in a folder. It is None for a path
    that was absent, for a pipe or device, and for a file that changed after the run had read it.
    """

    path: str
    kind: Kind
    sha256: str | None
    bytes: int | None


class _State(Struct, frozen=True):
    """What identifies a file's content without reading it."""

    kind: Kind
    size: int
    changed_ns: int
    inode: int


class InputFiles:
    """The paths that one run has read or looked for."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}

    def note(self, path: Path_) -> None:
        """Records a path as it is now; the first note of a path counts."""
        name = os.path.abspath(path)
        if name not in self._states and not _in_package(name):
            self._states[name] = _state(name)

    def add(self, other: "InputFiles") -> None:
        """Records what another record has; a path that both have stays as it was noted here."""
        for name, state in other._states.items():
            self._states.setdefault(name, state)

    def unchanged(self) -> bool:
        """Whether every recorded path still has the kind, size, time of change and inode that it
        had when it was noted.
        """
        return self.changed() is None

    def changed(self) -> str | None:
        """The first recorded path that is not what it was when it was noted; None: none is."""
        return next((name for name, state in self._states.items() if _state(name) != state), None)

    def copied(self) -> "InputFiles":
        """The same paths, whatever block of `recorded` noted them."""
        copy = InputFiles()
        copy.add(self)
        return copy

    def note_again(self) -> None:
        """Notes the paths for the blocks of `recorded` that are open now."""
        for name in self._states:
            note(name)

    def listed(self) -> list[InputFile]:
        """Every recorded path in alphabetical order, hashed now."""
        return [_input_file(name, self._states[name]) for name in sorted(self._states)]


_RECORD: ContextVar[InputFiles | None] = ContextVar("llmsim_input_files", default=None)


@contextmanager
def recorded() -> Iterator[InputFiles]:
    """Collects what is read within the block by this thread. A block within a block reports to
    both.
    """
    outer = _RECORD.get()
    record = _Nested(outer) if outer is not None else InputFiles()
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


class _Nested(InputFiles):
    def __init__(self, outer: InputFiles) -> None:
        super().__init__()
        self._outer = outer

    def note(self, path: Path_) -> None:
        self._outer.note(path)
        super().note(path)


def read_so_far() -> list[InputFile]:
    """What the innermost block of `recorded` has collected; nothing without one."""
    record = _RECORD.get()
    return [] if record is None else record.listed()


def note(path: Path_) -> None:
    """Records a path that the caller, or a library on its behalf, is about to open or to list."""
    record = _RECORD.get()
    if record is not None:
        record.note(path)


def read_bytes(path: Path_) -> bytes:
    """The file's content; OSError where it cannot be read."""
    note(path)
    with open(path, "rb") as stream:
        return stream.read()


def read_text(path: Path_, encoding: str = "utf-8") -> str:
    """The file's content as text; OSError or UnicodeDecodeError where it cannot be read."""
    note(path)
    with open(path, encoding=encoding) as stream:
        return stream.read()


def open_binary(path: Path_) -> BinaryIO:
    """The file, opened to read bytes; OSError where it cannot be opened."""
    note(path)
    return cast(BinaryIO, open(path, "rb"))


def is_file(path: Path) -> bool:
    """Whether a file is there. A path that is absent is recorded: the run may be another one once
    it exists.
    """
    there = path.is_file()
    if not there:
        note(path)
    return there


def is_folder(path: Path) -> bool:
    """Whether a folder is there. A path that is absent is recorded; `entries` records what a folder
    holds.
    """
    there = path.is_dir()
    if not there:
        note(path)
    return there


def parquet_table(source: Any, columns: Sequence[str] | None = None) -> Any:
    """The pyarrow table of a Parquet file, given as a path or as a pyarrow buffer reader; raises
    what pyarrow raises.

    A thread of pyarrow's pools that begins while the process ends, as with an error in the next
    line, aborts it. `pyarrow.parquet.read_table` starts one whatever its options are.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(source, pre_buffer=False) as file:
        return file.read(columns, use_threads=False)


def entries(folder: Path) -> list[Path]:
    """What a folder holds, in alphabetical order, and records the names; OSError where it cannot be
    listed.
    """
    note(folder)
    return sorted(folder.iterdir())


def fingerprint(path: str) -> InputFile:
    """The path as it is now."""
    return _input_file(path, _state(path))


def _in_package(name: str) -> bool:
    return name.startswith(f"{PACKAGE}{os.sep}")


def _state(name: str) -> _State:
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return _State("absent", 0, 0, 0)
    kind: Kind = "special"
    if stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISDIR(found.st_mode):
        kind = "folder"
    return _State(kind, found.st_size, found.st_mtime_ns, found.st_ino)


def _input_file(name: str, state: _State) -> InputFile:
    """The path with its hash; a file that has not changed for a while is hashed once."""
    if state.kind in ("absent", "special"):
        return InputFile(name, state.kind, None, None)
    try:
        if state.kind == "folder":
            digest = hashlib.sha256(
                "\0".join(sorted(os.listdir(name))).encode("utf-8", "surrogateescape")
            ).hexdigest()
            return InputFile(name, state.kind, digest, None)
        known = _HASHED.get((name, state))
        digest = known or _hash_of(name)
    except OSError:
        return InputFile(name, state.kind, None, None)
    if known is None and _state(name) != state:
        return InputFile(name, state.kind, None, state.size)
    if time.time_ns() - state.changed_ns > SETTLED_NS:
        _HASHED[name, state] = digest
    return InputFile(name, state.kind, digest, state.size)


SETTLED_NS = 2 * 10**9
"""A younger file may change without another time of change: clocks of file systems are coarse."""
_HASHED: dict[tuple[str, _State], str] = {}


def _hash_of(name: str) -> str:
    with open(name, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
