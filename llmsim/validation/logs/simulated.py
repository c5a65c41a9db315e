"""Simulated runs from their files: our run folder and requests.parquet, and the CSV that
LLMServingSim shares.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.config.files import input_files
from llmsim.config.files.reading import finite, quoted
from llmsim.core import PS_PER_S
from llmsim.export.csv import COLUMNS
from llmsim.plurals import counted
from llmsim.validation.logs.recording import (
    FailedRequests,
    Finding,
    Float64,
    Int64,
    KvUse,
    Recording,
    counts_of,
)

NS_PER_S = 1e9
LARGEST_NS = 1 << 62
"""No clock says more; differences of two such times fit 64 bits."""
LONGEST_ITL = 1 << 26
"""Characters of a cell: inter-token latencies of millions of tokens."""
SIMULATED_KINDS = ("llmsim run folder", "simulator CSV")
"""`Recording.kind` of what this module reads."""


def read_csv(path: Path, text: str) -> Recording:
    """One row per finished request, times in ns; ITL, where it is there, as a list of integers."""
    header, rows = _csv_rows(path, text)

    def column(name: str) -> "np.ndarray[Any, np.dtype[np.int64]]":
        at = header.index(name)
        return np.array([_whole(path, line, name, row[at]) for line, row in rows], dtype=np.int64)

    arrival = column("arrival")
    gaps = _itl(path, rows, header.index("ITL")) if "ITL" in header else []
    pooled = np.array([gap for one in gaps for gap in one], dtype=np.float64) / NS_PER_S
    return Recording(
        source=str(path),
        kind="simulator CSV",
        request_id=tuple(row[header.index("request id")] for _, row in rows),
        arrival_s=(arrival - arrival.min()) / NS_PER_S,
        ttft_s=column("TTFT") / NS_PER_S,
        latency_s=(column("end_time") - arrival) / NS_PER_S,
        input_tokens=column("input"),
        output_tokens=column("output"),
        itl_s=pooled if len(pooled) else None,
        itl_counts=counts_of(gaps) if len(pooled) else None,
    )


def _csv_rows(path: Path, text: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header and (line, cells) of every row; InputError names the line that is not CSV or has
    missing cells.
    """
    limit_before = csv.field_size_limit(LONGEST_ITL)
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next(reader, [])
        missing = [name for name in COLUMNS[:10] if name not in header]
        if missing:
            raise InputError(
                f'{path}:1: there is no column "{missing[0]}"; the columns must be '
                f"{', '.join(COLUMNS)}",
                file=str(path),
            )
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise InputError(
            f"{path}:{reader.line_num}: not valid CSV ({error}); quote values that hold commas",
            file=str(path),
        ) from None
    finally:
        csv.field_size_limit(limit_before)
    if not rows:
        raise InputError(
            f"{path}: no request finished; there is nothing to compare", file=str(path)
        )
    for line, row in rows:
        if len(row) < len(header):
            raise InputError(
                f"{path}:{line}: {len(row)} fields, but the header names {len(header)}",
                file=str(path),
            )
    return header, rows


def _whole(path: Path, line: int, name: str, cell: str) -> int:
    """A time in ns, or a count; "12.0" is 12."""
    try:
        number = int(cell) if len(cell) < 20 and cell.isdecimal() else round(float(cell))
    except (OverflowError, ValueError):  # an infinity, and what is no number
        number = LARGEST_NS + 1
    if not -LARGEST_NS <= number <= LARGEST_NS:
        raise InputError(
            f"{path}:{line}: {name} is {quoted(cell)}; it must be a number from 0 to {LARGEST_NS}",
            file=str(path),
        )
    return number


def _itl(path: Path, rows: list[tuple[int, list[str]]], at: int) -> list[list[float]]:
    """The inter-token latencies of each row in ns."""
    return [_gaps(path, line, row[at]) if row[at] else [] for line, row in rows]


def _gaps(path: Path, line: int, cell: str) -> list[float]:
    """The numbers, ns, of a cell such as "[15800000, 15800000]"."""
    try:
        values = json.loads(cell)
    except (ValueError, RecursionError):
        values = None
    gaps = [finite(one) for one in values] if isinstance(values, list) else [None]
    if any(gap is None or abs(gap) > LARGEST_NS for gap in gaps):
        raise InputError(
            f"{path}:{line}: ITL is {quoted(cell)}; it must be a list of numbers of ns",
            file=str(path),
        )
    return gaps  # type: ignore[return-value]  # none is missing


_NEEDED = (
    "request_id",
    "status",
    "arrival_ps",
    "first_token_ps",
    "finish_ps",
    "input_tokens",
    "emitted_tokens",
)


def read_parquet(path: Path) -> Recording:
    """`requests.parquet` of a run folder; summary.json and manifest.json beside it say how full the
    KV cache was.
    """
    import pyarrow as pa

    try:
        input_files.note(path)
        table = input_files.parquet_table(path)
        table.validate(
            full=True
        )  # a damaged table would end the process where its values are taken
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        said = " ".join(str(error).split())
        raise InputError(
            f"{path}: not a Parquet file that can be read ({said})", file=str(path)
        ) from None
    missing = [name for name in _NEEDED if name not in table.column_names]
    if missing:
        raise InputError(
            f'{path}: there is no column "{missing[0]}"; it must be the requests.parquet of a '
            "run folder",
            file=str(path),
        )
    done = np.array(
        [status == "finished" for status in table["status"].to_pylist()], dtype=np.bool_
    )
    others, table = (table.filter(pa.array(rows)) for rows in (~done, done))
    if table.num_rows == 0:
        raise InputError(
            f"{path}: no request finished; there is nothing to compare", file=str(path)
        )
    gaps, counts = _stored_gaps(path, table) if "itl_ps" in table.column_names else (None, None)
    arrival, first, finish, inputs, outputs = (_integers(path, table, name) for name in _NEEDED[2:])
    findings = []
    if others.num_rows:
        sentence = f"{counted(others.num_rows, 'request')} of the simulation did not finish"
        findings.append(Finding("unfinished", True, sentence))
    return Recording(
        source=str(path.parent),
        kind="llmsim run folder",
        request_id=tuple(map(str, table["request_id"].to_pylist())),
        arrival_s=(arrival - arrival.min()) / PS_PER_S,
        ttft_s=(first - arrival) / PS_PER_S,
        latency_s=(finish - arrival) / PS_PER_S,
        input_tokens=inputs,
        output_tokens=outputs,
        itl_s=gaps,
        itl_counts=counts,
        findings=tuple(findings),
        kv=_kv_use(path.parent),
        failed=FailedRequests.of(_stamps(others), float(arrival.min()), PS_PER_S),
    )


def _stamps(table: Any) -> list[tuple[str, Any]]:
    """The name and the arrival of each row; None of a request that never came."""
    names, arrivals = (table[name].to_pylist() for name in ("request_id", "arrival_ps"))
    came = (None if stamp is None or stamp < 0 else stamp for stamp in arrivals)
    return list(zip(map(str, names), came, strict=True))


def _integers(path: Path, table: Any, name: str) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """A column of 64-bit integers that are all there and not beyond `LARGEST_NS`."""
    import pyarrow as pa

    column = table[name]
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InputError(
            f"{path}: {name} must be whole numbers in every row, but holds {column.type} or gaps",
            file=str(path),
        )
    values = column.to_numpy().astype(np.float64)
    if float(np.abs(values).max()) > LARGEST_NS:
        raise InputError(
            f"{path}: {name} holds {values[np.abs(values).argmax()]:g}, more than any clock says",
            file=str(path),
        )
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _stored_gaps(path: Path, table: Any) -> tuple[Float64, Int64]:
    """Inter-token latencies of a run folder, seconds, and how many each request has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table["itl_ps"]
    wanted = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if not wanted or not pa.types.is_integer(column.type.value_type):
        raise InputError(
            f"{path}: itl_ps holds {column.type}, but must be lists of whole numbers of ps",
            file=str(path),
        )
    lists = column.combine_chunks()
    gaps = lists.flatten().to_numpy(zero_copy_only=False)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.asarray(gaps, dtype=np.float64) / PS_PER_S, np.asarray(counts, dtype=np.int64)


def _kv_use(folder: Path) -> KvUse | None:
    """None where the folder has no summary or manifest, as that of a lone Parquet file."""
    try:
        summary = json.loads(input_files.read_text(folder / "summary.json"))
        manifest = json.loads(input_files.read_text(folder / "manifest.json"))
        engines = [group["engine"] for group in manifest["config"]["groups"]]
        return KvUse(
            peak_usage=max(float(group["peak_usage"] or 0) for group in summary["kv_cache"]),
            preemptions=int(summary["preemptions"]),
            blocks_given=all(engine["num_gpu_blocks_override"] is not None for engine in engines),
        )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        return None  # a folder is compared without it
