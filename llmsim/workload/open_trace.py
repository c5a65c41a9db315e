"""Opens a trace file, whatever packed it; every failure to read it becomes one sentence."""

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_piped: dict[tuple[str, int, int], BinaryIO] = {}
"""What came through each pipe, by its path, device and inode: a trace is looked at before it is
read.
"""


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """The decompressed bytes of a trace; gzip and Zstandard are recognised by content. Raises
    InputError.
    """
    packing = ""
    with _opened_raw(path) as raw:
        try:
            magic = raw.peek(4)[:4]
            if magic[:2] == _GZIP_MAGIC:
                import gzip

                packing = "gzip"
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield io.BufferedReader(unpacked)
            elif magic == _ZSTD_MAGIC:
                packing = "zstd"
                yield _zstd(raw, path)
            else:
                yield raw
        except (EOFError, zlib.error) as error:
            raise InputError(
                f"{path}: the gzip data is damaged or cut short ({error})", file=str(path)
            ) from None
        except OSError as error:
            if packing == "zstd":
                raise InputError(
                    f"{path}: the zstd data is damaged or cut short ({error})", file=str(path)
                ) from None
            raise InputError(
                f"{path}: cannot be read ({error.strerror or error})", file=str(path)
            ) from None


def _zstd(raw: BinaryIO, path: Path) -> io.BufferedReader:
    try:
        import pyarrow as pa
    except ImportError:
        raise InputError(
            f"{path}: reading zstd needs pyarrow; install it, or unpack the file first",
            file=str(path),
        ) from None
    if not pa.Codec.is_available("zstd"):
        raise InputError(
            f"{path}: this pyarrow was built without zstd; unpack the file first", file=str(path)
        )
    return io.BufferedReader(cast(io.RawIOBase, _Unpacked(pa.CompressedInputStream(raw, "zstd"))))


class _Unpacked(io.RawIOBase):
    """Arrow's stream as one that Python's buffered reader accepts."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _missing(path: Path) -> InputError:
    """The error for a file that is not there, which may be the beginning of a generator."""
    if path.name.lower().startswith("synth"):
        from llmsim.workload.spec_text import EXAMPLE

        said = f"no such trace file; a generator is written as {EXAMPLE}"
    elif str(path) == "-":
        said = "no such trace file; /dev/stdin is what is piped in"
    else:
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        said = f"no such trace file{nearest(path.name, siblings)}"
    return InputError(f"{path}: {said}", file=str(path))


def _opened_raw(path: Path) -> io.BufferedReader:
    try:
        if path.is_fifo() or path.is_socket():
            return _kept(path)
        return cast(io.BufferedReader, input_files.open_binary(path))
    except FileNotFoundError:
        raise _missing(path) from None
    except IsADirectoryError:
        raise InputError(
            f"{path}: a folder, but the dataset must be a file", file=str(path)
        ) from None
    except OSError as error:
        said = f"{path}: cannot be read ({error.strerror or error})"
        raise InputError(said, file=str(path)) from None
    except ValueError as error:
        raise InputError(f"{str(path)!r}: not a usable path ({error})") from None


def _kept(pipe: Path) -> io.BufferedReader:
    """All that comes through a pipe, from its beginning, however often it is asked for."""
    import shutil
    import tempfile  # only pipes are copied

    input_files.note(pipe)
    about = pipe.stat()
    key = (str(pipe), about.st_dev, about.st_ino)
    if key not in _piped:
        # The copy lives until the process ends.
        copy = tempfile.NamedTemporaryFile(prefix="llmsim.")  # noqa: SIM115
        with pipe.open("rb") as stream:
            shutil.copyfileobj(stream, copy, 1 << 20)
        copy.flush()
        _piped[key] = copy  # type: ignore[assignment]
    return open(_piped[key].name, "rb")
