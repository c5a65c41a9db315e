"""Parquet files of the requests, steps and series of a run; times are int64 ps, null where they
never happened.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmsim.columns import (
    FILES,
    Column,
    FrontendCause,
    KvTransferColumns,
    LatencyCauses,
    RequestClass,
    RequestColumns,
    RequestDrafts,
)
from llmsim.core import Results, Status
from llmsim.export.arrow_arrays import numbers, words
from llmsim.export.files import atomic_writer

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 8192
"""Requests per row group: bounds the inter-token latencies that are in memory at once."""
_ENDS = {"ttft_ps": "first_token_ps", "e2el_ps": "finish_ps", "queueing_ps": "scheduled_ps"}
"""A duration since the arrival -> the time that ends it."""
_HANDED_OVER = tuple(column for column in KvTransferColumns.COLUMNS if column.in_files)


def write_columns(
    columns: Mapping[str, NDArray[Any]], schema: Sequence[Column], path: str | Path
) -> None:
    """Writes steps or series: the columns of `schema`, empty where the run recorded none. Raises
    InputError where `path` cannot be written.
    """
    with parquet_writer(path, schema) as writer:
        writer.write_batch(record_batch(columns, schema))


def write_rows(
    columns: Mapping[str, Sequence[Any]], schema: Sequence[Column], path: str | Path
) -> None:
    """Writes columns of Python values, None where there is none. Raises InputError where `path`
    cannot be written.
    """
    import pyarrow as pa

    table = pa.table(dict(columns), schema=_arrow_schema(schema))
    with parquet_writer(path, schema) as writer:
        writer.write_table(table)


@contextmanager
def parquet_writer(path: str | Path, schema: Sequence[Column]) -> Iterator[Any]:
    """A pyarrow writer of these columns, whose file is in its place when the block ends without an
    exception. Raises InputError where `path` cannot be written.
    """
    with _writer(path, _arrow_schema(schema)) as writer:
        yield writer


def record_batch(columns: Mapping[str, NDArray[Any]], schema: Sequence[Column]) -> "pa.RecordBatch":
    """Rows for `parquet_writer`; without columns, none."""
    import pyarrow as pa

    kinds = _arrow_schema(schema)
    arrays = [
        numbers(np.asarray(columns.get(one.name, ()), one.dtype), kinds.field(one.name).type)
        for one in schema
    ]
    return pa.record_batch(arrays, schema=kinds)


def _arrow_schema(schema: Sequence[Column]) -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([_arrow_field(column) for column in schema])


def _arrow_field(column: Column) -> "pa.Field":
    import pyarrow as pa

    match column.dtype:
        case "string":
            kind = pa.string()
        case "list<int64>":
            kind = pa.list_(pa.field("item", pa.int64(), False))
        case dtype:
            kind = pa.from_numpy_dtype(dtype)
    metadata = {"unit": column.unit, "meaning": column.meaning}
    return pa.field(column.name, kind, column.nullable, metadata)


def write_requests(results: Results, path: str | Path) -> None:
    """Writes one row per request of the workload, in its order, whatever became of it. Raises
    InputError where `path` cannot be written.
    """
    schema = _arrow_schema(_request_columns(results))
    with _writer(path, schema) as writer:
        for batch in _request_batches(results, schema):
            writer.write_batch(batch)


def request_table(results: Results) -> "pa.Table":
    """The rows and columns of `write_requests`, in memory."""
    import pyarrow as pa

    schema = _arrow_schema(_request_columns(results))
    return pa.Table.from_batches(_request_batches(results, schema), schema)


def _request_columns(results: Results) -> Sequence[Column]:
    """The columns of requests.parquet, without the causes of latency that the run cannot have;
    those of drafts only where some group speculates, the front end only where it takes time, and
    the class only where the trace has classes.
    """
    absent = {column.name for column in LatencyCauses.COLUMNS} - results.blame.keys()
    *columns, itl = (one for one in FILES["requests.parquet"] if one.name not in absent)
    frontend = FrontendCause.COLUMNS if "frontend_ps" in results.blame else ()
    drafts = () if results.drafts is None else RequestDrafts.COLUMNS
    classes = () if results.workload.slo_class is None else RequestClass.COLUMNS
    return (*columns, *frontend, *drafts, *classes, itl)


def session_table(results: Results) -> "pa.Table":
    """One row per session, in the order of their first calls."""
    import pyarrow as pa

    from llmsim.results.requests.sessions import session_files

    schema = _arrow_schema(FILES["sessions.parquet"])
    columns = session_files(results)
    arrays = [_arrow_array(*columns[name], schema.field(name).type) for name in schema.names]
    return pa.table(arrays, schema=schema)


def write_sessions(results: Results, path: str | Path) -> None:
    """Writes `session_table`. Raises InputError where `path` cannot be written."""
    table = session_table(results)
    with _writer(path, table.schema) as writer:
        writer.write_table(table)


def _request_batches(results: Results, schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    for start in range(0, max(len(results.workload), 1), _ROWS_AT_ONCE):
        rows = slice(start, min(start + _ROWS_AT_ONCE, len(results.workload)))
        columns = {**_identity(results, rows), **_progress(results, rows)}
        arrays = [
            _arrow_array(*columns[name], schema.field(name).type) for name in schema.names[:-1]
        ]
        yield pa.record_batch(
            [*arrays, _inter_token(results, rows, schema.field("itl_ps").type)], schema=schema
        )


_Masked = tuple[Any, NDArray[np.bool_] | None]
"""Numbers, and where they are missing; or words, None where there is none."""


def _arrow_array(values: Any, missing: NDArray[np.bool_] | None, kind: "pa.DataType") -> "pa.Array":
    return numbers(values, kind, missing) if isinstance(values, np.ndarray) else words(values)


def _identity(results: Results, rows: slice) -> dict[str, _Masked]:
    workload, requests = results.workload, results.requests
    group = requests.group[rows]
    served = _named([one.model_name for one in results.groups], group)
    asked = _named(workload.models, workload.model[rows])
    names = [status.name.lower() for status in Status]
    given_ids = workload.request_id[rows] if workload.request_id else None
    row_numbers = [str(row) for row in range(rows.start, rows.stop)]
    sessions = workload.session_id[rows] if workload.session_id else [""] * len(group)
    sessions_or_none = [name or None for name in sessions]
    served_or_asked = [mine or wanted for mine, wanted in zip(served, asked, strict=True)]
    return {
        "request_id": (given_ids or row_numbers, None),
        "session_id": (sessions_or_none, None),
        "group": (group, group < 0),
        "model": (served_or_asked, None),
        "status": ([names[code] for code in requests.status[rows].tolist()], None),
    }


def _named(names: Sequence[str], index: NDArray[Any]) -> list[str | None]:
    """The names of a column of indices; None for -1."""
    return [names[one] if one >= 0 else None for one in index.tolist()]


def _progress(results: Results, rows: slice) -> dict[str, _Masked]:
    workload, requests = results.workload, results.requests
    columns: dict[str, _Masked] = {
        "input_tokens": (workload.input_tokens[rows], None),
        "output_tokens": (workload.output_tokens[rows], None),
    }
    for column in RequestColumns.COLUMNS:
        if column.in_files:
            values = getattr(requests, column.name)[rows]
            columns[column.name] = (values, values < 0 if column.nullable else None)
    arrival = requests.arrival_ps[rows]
    for name, end in _ENDS.items():
        times = getattr(requests, end)[rows]
        columns[name] = (times - arrival, times < 0)
    never_left = np.maximum(requests.finish_ps[rows], requests.cancelled_ps[rows]) < 0
    for name, part_ps in results.blame.items():
        columns[name] = (part_ps[rows], never_left)
    joules = np.zeros(len(arrival)) if results.energy is None else results.energy.request_j[rows]
    columns["energy_j"] = (joules, np.full(len(joules), results.energy is None))
    for column in RequestDrafts.COLUMNS if results.drafts is not None else ():
        columns[column.name] = (getattr(results.drafts, column.name)[rows], None)
    if workload.slo_class is not None:
        columns["slo_class"] = ([name or None for name in workload.slo_class[rows]], None)
    return columns | _kv_transfer(results, rows)


def _kv_transfer(results: Results, rows: slice) -> dict[str, _Masked]:
    h = results.kv_transfers
    if h is None:
        nothing = np.ones(len(results.requests.status[rows]), dtype=np.bool_)
        return {
            column.name: (np.zeros(len(nothing), column.dtype), nothing) for column in _HANDED_OVER
        }
    alone = h.prefill_group[rows] < 0
    columns = {column.name: getattr(h, column.name)[rows] for column in _HANDED_OVER}
    return {name: (values, alone | (values < 0)) for name, values in columns.items()}


def _inter_token(results: Results, rows: slice, list_type: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    lists = [results.itl_of(row) for row in range(rows.start, rows.stop)]
    offsets = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([len(itl) for itl in lists], out=offsets[1:])
    values = np.concatenate(lists) if lists else np.zeros(0, dtype=np.int64)
    return pa.ListArray.from_arrays(
        numbers(offsets, pa.int32()), numbers(values, pa.int64()), type=list_type
    )


@contextmanager
def _writer(path: str | Path, schema: "pa.Schema") -> Iterator[Any]:
    import pyarrow.parquet as pq

    with (
        atomic_writer(path, "wb") as stream,
        pq.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        yield writer
