"""A finished run as columns: from its run folder, or from results in memory."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmsim.columns import FILES, KvTransferColumns, LatencyCauses, RequestEnergy
from llmsim.config.constraints import shown
from llmsim.config.errors import InputError
from llmsim.config.files import input_files
from llmsim.core import PS_PER_S, Int64
from llmsim.results.record_shapes import MANIFEST, SUMMARY, Misfit, Shape, misfit, stray_group

if TYPE_CHECKING:
    import pyarrow as pa

    from llmsim.core import Results

EPOCH_NS = 1_767_225_600_000_000_000
"""The wall-clock time that formats ask for at simulated time 0: 2026-01-01T00:00:00Z.

A simulation has none, and equal runs give equal files.
"""
Floats = NDArray[np.float64]
Value = TypeVar("Value")
_LEFT_OUT = {
    one.name for table in (LatencyCauses, KvTransferColumns, RequestEnergy) for one in table.COLUMNS
}
"""Columns that not every run writes, or that llmsim has not always written."""


class Unfinished(NamedTuple):
    """A request that was sent and did not finish."""

    row: int
    """Its place in the workload."""
    request_id: str | None
    session_id: str | None
    status: str
    """Where it stood when the run ended, such as rejected."""
    arrival_ps: int
    end_ps: int
    """When the engine dropped it, else its arrival."""
    input_tokens: int
    emitted_tokens: int


@dataclass(frozen=True, eq=False)
class RunTables:
    """The requests, series and summary of a run, and what it was given."""

    source: str
    requests: "pa.Table"
    """The rows of `requests.parquet`."""
    series: Mapping[str, NDArray[Any]]
    summary: Mapping[str, Any]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, folder: str | Path) -> "RunTables":
        """Reads a run folder; raises InputError where it is none."""
        path = Path(folder)
        manifest = read_manifest(path)
        series = _parquet(path / "series.parquet")
        return cls(
            str(folder),
            _parquet(path / "requests.parquet"),
            {name: series.column(name).to_numpy() for name in series.column_names},
            read_summary(path),
            manifest,
        )

    @classmethod
    def of_results(
        cls, results: "Results", summary: Mapping[str, Any], asked: Mapping[str, Any], seed: int
    ) -> "RunTables":
        """The tables of results in memory."""
        from llmsim.export.parquet import request_table

        manifest = {"seed": seed, "run": dict(asked)}
        series = dict(results.series)
        return cls("result", request_table(results), series, summary, manifest)

    @cached_property
    def finished(self) -> "pa.Table":
        """The requests that finished, in the order of the workload."""
        import pyarrow.compute as pc

        return self.requests.filter(pc.equal(self.requests.column("status"), "finished"))

    @cached_property
    def finished_rows(self) -> Int64:
        """The places of the finished requests in the workload."""
        status = self.requests.column("status").to_numpy(zero_copy_only=False)
        return np.flatnonzero(status == "finished").astype(np.int64)

    def of_all(self, values: Sequence[Value], missing: Value) -> list[Value]:
        """Values of the finished requests, in a list with a place for each of the workload."""
        found = [missing] * len(self.requests)
        for row, value in zip(self.finished_rows.tolist(), values, strict=True):
            found[row] = value
        return found

    @cached_property
    def unfinished(self) -> list[Unfinished]:
        """The requests that were sent and did not finish, in the order of the workload.

        Calls that their session never came to have no arrival, and are left out.
        """
        names = ("request_id", "session_id", "status", "arrival_ps", "cancelled_ps")
        columns = (*names, "input_tokens", "emitted_tokens")
        table = self.requests.select(list(columns))
        rows = np.setdiff1d(np.arange(len(table)), self.finished_rows)
        found = []
        for row, one in zip(rows.tolist(), table.take(rows).to_pylist(), strict=True):
            begin, end = one["arrival_ps"], one["cancelled_ps"]
            if begin is None:
                continue
            end = begin if end is None else end
            about = (one["request_id"], one["session_id"], one["status"], begin, end)
            tokens = (one["input_tokens"] or 0, one["emitted_tokens"] or 0)
            found.append(Unfinished(row, *about, *tokens))
        return found

    @property
    def failed(self) -> int:
        """Requests that were sent and did not finish."""
        return len(self.requests) - len(self.finished)

    def ps(self, name: str) -> Int64:
        """A column of times of the finished requests; -1 where it is null."""
        return np.asarray(self.finished.column(name).fill_null(-1).to_numpy(), dtype=np.int64)

    def whole(self, name: str) -> Int64:
        """A column of numbers of the finished requests."""
        return np.asarray(self.finished.column(name).fill_null(0).to_numpy(), dtype=np.int64)

    def text(self, name: str) -> list[str | None]:
        """A column of names of the finished requests."""
        values: list[str | None] = self.finished.column(name).to_pylist()
        return values

    @cached_property
    def itl(self) -> tuple[Int64, Int64]:
        """Offsets and values (ps) of the inter-token latencies of the finished requests."""
        column = self.finished.column("itl_ps").combine_chunks()
        values = column.flatten().to_numpy(zero_copy_only=False)
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return offsets.astype(np.int64), np.asarray(values, dtype=np.int64)

    def itl_lists(self, unit_ps: int) -> list[list[float]]:
        """The inter-token latencies of each finished request, in `unit_ps`."""
        offsets, values = self.itl
        scaled = (values / unit_ps).tolist()
        ends = offsets.tolist()
        return [scaled[ends[i] : ends[i + 1]] for i in range(len(ends) - 1)]

    @cached_property
    def tpot_ps(self) -> Floats:
        """Mean time per output token after the first; NaN for answers of one token."""
        tokens = self.whole("emitted_tokens")
        decode = self.ps("e2el_ps") - self.ps("ttft_ps")
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(tokens > 1, decode / (tokens - 1), np.nan)

    @property
    def start_ps(self) -> int:
        """The first arrival of any request; 0 without one."""
        import pyarrow.compute as pc

        first = pc.min(self.requests.column("arrival_ps")).as_py()
        return 0 if first is None else int(first)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.summary["duration"] or 0.0)

    @property
    def model(self) -> str:
        """The models that served, separated by commas."""
        names = {group["model"] for group in self.summary["kv_cache"]}
        return ", ".join(sorted(names))

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.manifest.get("seed", 0))

    @property
    def version(self) -> str:
        """The llmsim that ran it."""
        import llmsim

        return str(self.manifest.get("llmsim_version") or llmsim.__version__)


def needs_requests(tables: RunTables) -> None:
    """Raises InputError where no request finished, since formats have no place for that."""
    if len(tables.finished) == 0:
        raise InputError(
            f"{tables.source}: no request finished, so there are no latencies to export; export a "
            "run whose requests finish"
        )


def distribution(values: NDArray[Any]) -> Floats:
    """The values as floats, without those that are missing."""
    floats = np.asarray(values, dtype=np.float64)
    return floats[~np.isnan(floats)]


def seconds(times_ps: NDArray[Any]) -> Floats:
    """Seconds of times."""
    return np.asarray(times_ps, dtype=np.float64) / PS_PER_S


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file of a run folder; raises InputError."""

    def recorded(pairs: dict[str, Any]) -> _Recorded:
        found = _Recorded(pairs)
        found.file = path
        return found

    try:
        found = json.loads(input_files.read_bytes(path), object_hook=recorded)
    except (FileNotFoundError, NotADirectoryError):
        what = f"is not a run folder, as it has no {path.name}"
        if not path.parent.exists():
            what = "does not exist"
        elif not path.parent.is_dir():
            what = "is a file and no run folder"
        raise InputError(
            f"{path.parent} {what}; name a folder that `llmsim run --run-dir` wrote",
            file=str(path.parent),
        ) from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); name a run folder", file=str(path)
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON ({error}); write the run folder again", file=str(path)
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no JSON object; write the run folder again", file=str(path))
    return found


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a run folder; raises InputError, also for a value that no run writes."""
    path = folder / "summary.json"
    summary = _shaped(path, SUMMARY)
    _refuse(path, stray_group(summary))
    return summary


def read_manifest(folder: Path) -> dict[str, Any]:
    """The same of the manifest."""
    return _shaped(folder / "manifest.json", MANIFEST)


def _shaped(path: Path, shape: Shape) -> dict[str, Any]:
    found = read_object(path)
    _refuse(path, misfit(found, shape))
    return found


def _refuse(path: Path, wrong: Misfit | None) -> None:
    if wrong is None:
        return
    raise InputError(
        f"{path}: {wrong.field} is {shown(wrong.value)}; expected {wrong.words}, as "
        "`llmsim run --run-dir` writes it",
        file=str(path),
        field=wrong.field,
        value=wrong.value,
    )


def read_columns(path: Path, names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """Columns of a table of a run folder (None: all); empty where the file is missing."""
    if not path.is_file():
        return {}
    found = _parquet(path)
    return {name: found.column(name).to_numpy() for name in names or found.column_names}


def _parquet(path: Path) -> "pa.Table":
    import pyarrow as pa

    try:
        content = pa.BufferReader(input_files.read_bytes(path))
        table = input_files.parquet_table(content)
    except FileNotFoundError:
        raise InputError(
            f"{path.parent} has no {path.name}; name a folder that `llmsim run --run-dir` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); write the run folder again", file=str(path)
        ) from None
    _check_columns(path, table)
    return table


def _check_columns(path: Path, table: "pa.Table") -> None:
    """Raises InputError where a table lacks a column that every run writes, or where a column holds
    other values than those that are written.
    """
    again = "`llmsim run --run-dir` writes the folder again"
    for one in FILES.get(path.name, ()):
        if one.name not in table.column_names:
            if one.name in _LEFT_OUT:
                continue
            raise InputError(f'{path}: there is no column "{one.name}"; {again}', file=str(path))
        column = table.column(one.name)
        if not _holds(column.type, one.dtype) or (column.null_count and not one.nullable):
            gaps = " with gaps" if column.null_count else ""
            raise InputError(
                f'{path}: the column "{one.name}" holds {column.type}{gaps}, but must hold '
                f"{one.dtype}; {again}",
                file=str(path),
            )


def _holds(stored: "pa.DataType", declared: str) -> bool:
    """Whether a stored type is of the declared kind, whatever its width."""
    import pyarrow as pa

    if declared.startswith("list"):
        return bool(pa.types.is_list(stored) and pa.types.is_integer(stored.value_type))
    kinds = {"int": pa.types.is_integer, "float": pa.types.is_floating, "str": pa.types.is_string}
    return bool(next(of for kind, of in kinds.items() if declared.startswith(kind))(stored))


class _Recorded(dict[str, Any]):
    """An object of a file of a run folder, of which a name that is missing is an error of input."""

    file: Path

    def __missing__(self, name: str) -> Any:
        raise InputError(
            f'{self.file}: "{name}" is missing; `llmsim run --run-dir` writes the folder again',
            file=str(self.file),
        )
