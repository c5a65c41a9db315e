"""Output files that appear whole or not at all, and the check, before a run, that they can be
written.
"""

import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from llmsim.config.errors import InputError

STANDARD = "-"
"""The name of standard output and input in commands that take one."""
CLUSTER_ENDINGS = (".json", ".yaml", ".yml")
"""Of names of cluster files."""
_MADE: ContextVar[list[Path] | None] = ContextVar("folders made by checks", default=None)
"""Folders that `no_empty_folders` looks after, the outermost first."""


def check_writable(path: str | Path) -> Path:
    """Makes sure, before any work, that `path` can be written; creates its folder where that is
    missing.

    Raises InputError saying what is in the way.
    """
    target = Path(path)
    if str(target) == "-":
        raise InputError("the output is -, which is no file; name one, or give /dev/stdout")
    try:
        if target.is_dir():
            raise InputError(
                f"{target}: the output is a folder, but must be a file", file=str(target)
            )
        if _is_special(target):
            return target
        _make_folder(target.parent)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:64]}."):
            pass
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from None
    return target


def check_page(option: str, path: Path) -> None:
    """Makes sure, before any work, that `path` can be written and is named as a page of HTML is;
    raises InputError.
    """
    if path.suffix not in (".html", ".htm"):
        raise InputError(
            f"{option} {path}: the name of a page ends in .html", field=option, value=str(path)
        )
    check_writable(path)


def check_ending(option: str, path: Path, endings: Sequence[str], remedy: str = "") -> None:
    """Raises InputError where the ending of a file's name stands for another format than those of
    `endings`, such as ".csv". A name may have no ending, or one that is a number.
    """
    ending = path.suffix.lower()
    if ending in endings or not ending[1:2].isalpha():
        return
    *before, last = endings
    known = f"{', '.join(before)} or {last}" if before else last
    raise InputError(
        f"{option} {path}: {path.suffix} is no format of this file; its name ends in {known}"
        f"{remedy}",
        field=option,
        value=str(path),
    )


def keep_inputs(option: str, output: Path, inputs: Iterable[Path]) -> None:
    """Raises InputError where writing `output`, named by `option`, would replace one of the files
    that are read.
    """
    if any(_same_file(output, source) for source in inputs):
        raise InputError(
            f"{option} {output} is an input of this run and would be overwritten; name another file"
        )


def _same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except (OSError, ValueError):
        return False


def check_writable_folder(path: str | Path) -> Path:
    """Makes sure, before any work, that files can be written into the folder `path`; creates it
    where it is missing.

    Raises InputError saying what is in the way.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_dir():
            raise InputError(
                f"{target}: a file, but must be a folder; name one, or a path that does not "
                "exist yet",
                file=str(target),
            )
        _make_folder(target)
        with tempfile.NamedTemporaryFile(dir=target, prefix=".llmsim."):
            pass
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from None
    return target


@contextmanager
def no_empty_folders() -> Iterator[None]:
    """Removes the folders that checks of outputs made in the block and that nothing was written
    into.
    """
    made: list[Path] = []
    token = _MADE.set(made)
    try:
        yield
    finally:
        _MADE.reset(token)
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()


def _make_folder(folder: Path) -> None:
    """Makes a folder and those above it, and remembers those that were not there."""
    made = _MADE.get()
    if made is not None:
        whole = folder.absolute()
        missing = [one for one in (whole, *whole.parents) if not one.exists()]
        made.extend(reversed(missing))
    folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def atomic_writer(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file open for writing that takes the place of `path` when the block ends without an
    exception.

    `mode` is "w" (UTF-8, line feeds) or "wb". A link is followed; a device such as /dev/null is
    written directly. Raises InputError where the file cannot be written.
    """
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    target = Path(path)
    try:
        if _is_special(target):
            with target.open(mode, **text) as stream:  # type: ignore[call-overload]
                yield stream
            return
        target = Path(os.path.realpath(target))
        with _replacement(target) as temporary:
            opened = temporary.open(mode, **text)  # type: ignore[call-overload]
            with opened as stream:
                yield stream
    except OSError as error:
        raise _unwritable(target, error) from None


@contextmanager
def packed_writer(path: str | Path) -> Iterator[IO[bytes]]:
    """`atomic_writer` for bytes, packed with gzip or Zstandard where the name ends with .gz or
    .zst; "-" is standard output. Equal bytes written are equal files.
    """
    name = str(path)
    if name == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with atomic_writer(path, "wb") as stream:
        if name.endswith(".gz"):
            import gzip

            with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
                yield packed  # type: ignore[misc]
        elif name.endswith(".zst"):
            try:
                import pyarrow as pa
            except ImportError:
                raise InputError(
                    f"{path}: writing zstd needs pyarrow; choose another ending", file=str(path)
                ) from None
            with pa.CompressedOutputStream(stream, "zstd") as packed:
                yield packed
        else:
            yield stream


@contextmanager
def _replacement(target: Path) -> Iterator[Path]:
    """A new file beside `target` with its permissions (or the usual ones), moved over it at the
    end.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(
            stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
        )
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _unwritable(path: Path, error: OSError | ValueError) -> InputError:
    return InputError(
        f"{path}: cannot be written ({getattr(error, 'strerror', None) or error}); choose "
        "another place",
        file=str(path),
    )
