"""Parquet and Arrow files: which columns they have, and their rows in batches (package pyarrow)."""

from collections.abc import Iterator
from typing import Any

from llmsim.config.errors import InputError
from llmsim.config.files import input_files

BATCH_ROWS = 20_000


def stored_columns(path: str, kind: str) -> tuple[str, ...]:
    """The names of the columns. Raises InputError where the file cannot be read."""
    input_files.note(path)
    with _Faults(path, kind):
        import pyarrow as pa
        import pyarrow.parquet as pq

        if kind == "parquet":
            return tuple(pq.read_schema(path).names)
        with pa.memory_map(path) as data:
            return tuple(pa.ipc.open_file(data).schema.names)


def stored_batches(path: str, kind: str, names: list[str]) -> Iterator[Any]:
    """Record batches of the columns `names`. Raises InputError where the file cannot be read."""
    input_files.note(path)
    with _Faults(path, kind):
        import pyarrow as pa
        import pyarrow.parquet as pq

        if kind == "parquet":
            batches = pq.ParquetFile(path).iter_batches(
                BATCH_ROWS, columns=names, use_threads=False
            )
            for batch in batches:
                batch.validate(
                    full=True
                )  # a damaged batch would end the process where its values are taken
                yield batch
            return
        with pa.memory_map(path) as data:
            reader = pa.ipc.open_file(data)
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                batch.validate(full=True)
                yield batch.select(names)


class _Faults:
    """Says in one sentence what pyarrow cannot read."""

    def __init__(self, path: str, kind: str) -> None:
        self._path, self._kind = path, kind

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, ImportError):
            raise InputError(
                f"{self._path}: reading Parquet needs pyarrow", file=str(self._path)
            ) from None
        # What pyarrow finds wrong inside a file is an OSError without a number, a name that is not
        # UTF-8, or its own.
        inside = isinstance(error, UnicodeDecodeError) or (
            isinstance(error, OSError) and error.errno is None
        )
        if error is not None and (inside or type(error).__module__.startswith("pyarrow")):
            said = " ".join(str(error).split())
            raise InputError(
                f"{self._path}: not readable as {self._kind} ({said})", file=str(self._path)
            ) from None
