"""Parquet files of the requests, steps and series of a run; times are int64 ps, null where they
never happened.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Results, Status
from llmsim.export.files import atomic_writer
from llmsim.results.tables import (
    BLAME,
    HANDOVERS,
    REQUEST_AMOUNTS,
    REQUEST_DURATIONS,
    REQUEST_TIMES,
    Column,
)

if TYPE_CHECKING:
    import pyarrow as pa

_ITL = Column("itl_ps", "int64", "ps", "inter-token latencies, one less than tokens")
_ENERGY = Column(
    "energy_j",
    "float64",
    "J",
    "its part of what its groups drew (docs/explanation/power.md); null without power",
)
_ROWS_AT_ONCE = 8192
"""Requests per row group: bounds the inter-token latencies that are in memory at once."""


def write_columns(
    columns: Mapping[str, NDArray[Any]], schema: Sequence[Column], path: str | Path
) -> None:
    """Writes steps or series: the columns of `schema`, empty where the run recorded none. Raises
    InputError where `path` cannot be written.
    """
    with parquet_writer(path, schema) as writer:
        writer.write_batch(record_batch(columns, schema))


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

    arrays = [
        pa.array(np.asarray(columns.get(column.name, ()), dtype=column.dtype)) for column in schema
    ]
    return pa.record_batch(arrays, schema=_arrow_schema(schema))


def _arrow_schema(schema: Sequence[Column]) -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(
        [
            pa.field(column.name, pa.from_numpy_dtype(column.dtype), False, _meaning(column))
            for column in schema
        ]
    )


def write_requests(results: Results, path: str | Path) -> None:
    """Writes one row per request of the workload, in its order, whatever became of it. Raises
    InputError where `path` cannot be written.
    """
    import pyarrow as pa

    fields = [
        pa.field("request_id", pa.string(), False),
        pa.field("session_id", pa.string()),
        pa.field("group", pa.int16()),
        pa.field("model", pa.string()),
        pa.field("status", pa.string(), False),
        *(pa.field(column.name, pa.int64(), True, _meaning(column)) for column in REQUEST_TIMES),
        *(pa.field(column.name, pa.int32(), False, _meaning(column)) for column in REQUEST_AMOUNTS),
        *(
            pa.field(column.name, pa.int64(), True, _meaning(column))
            for column in (*REQUEST_DURATIONS, *BLAME)
        ),
        *(
            pa.field(column.name, pa.from_numpy_dtype(column.dtype), True, _meaning(column))
            for column in HANDOVERS
        ),
        pa.field(_ENERGY.name, pa.float64(), True, _meaning(_ENERGY)),
        pa.field("itl_ps", pa.list_(pa.field("item", pa.int64(), False)), metadata=_meaning(_ITL)),
    ]
    schema = pa.schema(fields)
    _write(path, schema, _request_batches(results, schema))


def _request_batches(results: Results, schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    for start in range(0, max(len(results.workload), 1), _ROWS_AT_ONCE):
        rows = slice(start, min(start + _ROWS_AT_ONCE, len(results.workload)))
        columns = {**_identity(results, rows), **_progress(results, rows)}
        arrays = [
            pa.array(columns[name][0], schema.field(name).type, mask=columns[name][1])
            for name in schema.names[:-1]
        ]
        yield pa.record_batch(
            [*arrays, _inter_token(results, rows, schema.field("itl_ps").type)], schema=schema
        )


_Masked = tuple[Any, NDArray[np.bool_] | None]


def _identity(results: Results, rows: slice) -> dict[str, _Masked]:
    workload, requests = results.workload, results.requests
    group = requests.group[rows]
    served = [results.groups[index].model_name if index >= 0 else None for index in group.tolist()]
    asked = [
        workload.models[index] if index >= 0 else None for index in workload.model[rows].tolist()
    ]
    names = [status.name.lower() for status in Status]
    numbers = [str(row) for row in range(rows.start, rows.stop)]
    sessions = workload.session_id[rows] if workload.session_id else [""] * len(group)
    return {
        "request_id": (workload.request_id[rows] if workload.request_id else numbers, None),
        "session_id": ([name or None for name in sessions], None),
        "group": (group, group < 0),
        "model": ([mine or wanted for mine, wanted in zip(served, asked, strict=True)], None),
        "status": ([names[code] for code in requests.status[rows].tolist()], None),
    }


def _progress(results: Results, rows: slice) -> dict[str, _Masked]:
    workload, requests = results.workload, results.requests
    columns: dict[str, _Masked] = {}
    for name in (column.name for column in REQUEST_TIMES):
        times = getattr(requests, name)[rows]
        columns[name] = (times, times < 0)
    columns["input_tokens"] = (workload.input_tokens[rows], None)
    columns["output_tokens"] = (workload.output_tokens[rows], None)
    for name in ("emitted_tokens", "cached_tokens", "preemptions"):
        columns[name] = (getattr(requests, name)[rows], None)
    arrival = requests.arrival_ps[rows]
    for name, end in (
        ("ttft_ps", "first_token_ps"),
        ("e2el_ps", "finish_ps"),
        ("queueing_ps", "scheduled_ps"),
    ):
        times = getattr(requests, end)[rows]
        columns[name] = (times - arrival, times < 0)
    for column in BLAME:
        columns[column.name] = (
            results.blame[column.name][rows],
            np.maximum(requests.finish_ps[rows], requests.cancelled_ps[rows]) < 0,
        )
    columns |= _kv_transfer(results, rows)
    joules = (
        np.zeros(len(requests.status[rows]))
        if results.energy is None
        else results.energy.request_j[rows]
    )
    columns[_ENERGY.name] = (joules, np.full(len(joules), results.energy is None))
    return columns


def _kv_transfer(results: Results, rows: slice) -> dict[str, _Masked]:
    h = results.kv_transfers
    if h is None:
        nothing = np.ones(len(results.requests.status[rows]), dtype=np.bool_)
        return {
            column.name: (np.zeros(len(nothing), column.dtype), nothing) for column in HANDOVERS
        }
    alone = h.prefill_group[rows] < 0
    columns = {column.name: getattr(h, column.name)[rows] for column in HANDOVERS}
    return {name: (values, alone | (values < 0)) for name, values in columns.items()}


def _inter_token(results: Results, rows: slice, list_type: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    lists = [results.itl_of(row) for row in range(rows.start, rows.stop)]
    offsets = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([len(itl) for itl in lists], out=offsets[1:])
    values = np.concatenate(lists) if lists else np.zeros(0, dtype=np.int64)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values, type=pa.int64()), type=list_type
    )


def _write(path: str | Path, schema: "pa.Schema", batches: Any) -> None:
    with _writer(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


@contextmanager
def _writer(path: str | Path, schema: "pa.Schema") -> Iterator[Any]:
    import pyarrow.parquet as pq

    with (
        atomic_writer(path, "wb") as stream,
        pq.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        yield writer


def _meaning(column: Column) -> dict[str, str]:
    return {"unit": column.unit, "meaning": column.meaning}
