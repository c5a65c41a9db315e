"""The formats by name, and what writes them."""

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config.errors import InputError, nearest
from llmsim.core import PS_PER_NS, Int64
from llmsim.export.benchmark_formats.aiperf import aiperf_records, aiperf_summary
from llmsim.export.benchmark_formats.guidellm import guidellm_report
from llmsim.export.benchmark_formats.inference_perf import (
    inference_perf_requests,
    inference_perf_summary,
)
from llmsim.export.benchmark_formats.mlperf import mlperf_summary
from llmsim.export.benchmark_formats.openmetrics import openmetrics
from llmsim.export.benchmark_formats.tables import RunTables, needs_requests
from llmsim.export.benchmark_formats.vllm_bench import vllm_bench
from llmsim.export.csv import COLUMNS
from llmsim.export.files import atomic_writer, check_writable, check_writable_folder

AIPERF_SUMMARY, AIPERF_RECORDS = "profile_export_aiperf.json", "profile_export.jsonl"
PERF_SUMMARY = "summary_lifecycle_metrics.json"
PERF_REQUESTS = "per_request_lifecycle_metrics.json"


def export(tables: RunTables, name: str, path: Path) -> list[Path]:
    """Writes a run in the format `name`; returns the files.

    `path` is a file; for `aiperf` and `inference-perf`, which are two files each, it may be a
    folder for both. Raises InputError for an unknown format, a path that cannot be written, and a
    run without a finished request.
    """
    check_format(name)
    needs_requests(tables)  # before a folder is made
    return FORMATS[name](tables, path)


def check_format(name: str) -> None:
    """Raises InputError for an unknown format."""
    if name not in FORMATS:
        raise InputError(
            f'--format is "{name}"{nearest(name, FORMATS)}; it may be {", ".join(FORMATS)}'
        )


def _one_json(make: Callable[[RunTables], Mapping[str, Any]]) -> Callable[..., list[Path]]:
    def write(tables: RunTables, path: Path) -> list[Path]:
        check_writable(path)
        _write_json(make(tables), path)
        return [path]

    return write


def _aiperf(tables: RunTables, path: Path) -> list[Path]:
    if path.suffix not in (".json", ".jsonl"):
        folder = check_writable_folder(path)
        return [
            *_aiperf(tables, folder / AIPERF_SUMMARY),
            *_aiperf(tables, folder / AIPERF_RECORDS),
        ]
    check_writable(path)
    if path.suffix == ".json":
        _write_json(aiperf_summary(tables), path)
        return [path]
    _write_lines(aiperf_records(tables), path)
    return [path]


def _inference_perf(tables: RunTables, path: Path) -> list[Path]:
    if path.suffix != ".json":
        folder = check_writable_folder(path)
        summary, requests = folder / PERF_SUMMARY, folder / PERF_REQUESTS
        _write_json(inference_perf_summary(tables), summary)
        _write_json(inference_perf_requests(tables), requests)
        return [summary, requests]
    check_writable(path)
    requests_alone = path.name == PERF_REQUESTS
    _write_json(
        inference_perf_requests(tables) if requests_alone else inference_perf_summary(tables), path
    )
    return [path]


def _openmetrics(tables: RunTables, path: Path) -> list[Path]:
    check_writable(path)
    with atomic_writer(path) as stream:
        for line in openmetrics(tables):
            stream.write(line + "\n")
    return [path]


def _llmservingsim(tables: RunTables, path: Path) -> list[Path]:
    """The CSV of `llmsim run --output`, without the columns of KV transfers."""
    check_writable(path)
    stamps = {
        name: _to_ns(tables.ps(f"{name}_ps"))
        for name in ("arrival", "scheduled", "first_token", "finish")
    }
    group, tokens = tables.whole("group"), tables.whole("emitted_tokens")
    inputs, offsets_gaps = tables.whole("input_tokens"), tables.itl
    names, models = tables.text("request_id"), tables.text("model")
    order = np.lexsort((np.arange(len(group)), tables.ps("finish_ps"), group))
    first_ps = tables.ps("first_token_ps")
    with atomic_writer(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in order.tolist():
            arrival, end = int(stamps["arrival"][row]), int(stamps["finish"][row])
            ttft, emitted = int(stamps["first_token"][row]) - arrival, int(tokens[row])
            decode = end - arrival - ttft
            writer.writerow(
                (
                    int(group[row]),
                    names[row],
                    models[row],
                    int(inputs[row]),
                    emitted,
                    arrival,
                    end,
                    end - arrival,
                    int(stamps["scheduled"][row]) - arrival,
                    ttft,
                    (2 * decode + emitted - 1) // (2 * (emitted - 1)) if emitted > 1 else "",
                    _gaps_ns(int(first_ps[row]), offsets_gaps, row),
                )
            )
    return [path]


def _gaps_ns(first_ps: int, offsets_gaps: tuple[Int64, Int64], row: int) -> list[int]:
    offsets, gaps = offsets_gaps
    mine = gaps[offsets[row] : offsets[row + 1]]
    stamps = first_ps + np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(mine)))
    found: list[int] = np.diff(_to_ns(stamps)).tolist()
    return found


def _to_ns(times_ps: Int64) -> Int64:
    return (times_ps + PS_PER_NS // 2) // PS_PER_NS


def _write_json(value: Any, path: Path) -> None:
    import msgspec

    with atomic_writer(path, "wb") as stream:
        stream.write(msgspec.json.encode(value) + b"\n")


def _write_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    import msgspec

    encode = msgspec.json.Encoder().encode
    with atomic_writer(path, "wb") as stream:
        for row in rows:
            stream.write(encode(row) + b"\n")


FORMATS: dict[str, Callable[[RunTables, Path], list[Path]]] = {
    "vllm-bench": _one_json(vllm_bench),
    "aiperf": _aiperf,
    "guidellm": _one_json(guidellm_report),
    "openmetrics": _openmetrics,
    "inference-perf": _inference_perf,
    "llmservingsim": _llmservingsim,
    "mlperf": _one_json(mlperf_summary),
}
