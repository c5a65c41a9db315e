"""Simulated runs from their files: our run folder and requests.parquet, and the CSV that LLMServingSim shares."""

import ast
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config import input_files
from llmsim.config.errors import InputError
from llmsim.core import PS_PER_S
from llmsim.export.csv import COLUMNS
from llmsim.validation.recording import Finding, KvUse, Recording

NS_PER_S = 1e9
SIMULATED_KINDS = ("llmsim run folder", "simulator CSV")
"""`Recording.kind` of what this module reads."""


def read_csv(path: Path, text: str) -> Recording:
    """One row per finished request, times in ns; ITL, where it is there, as a list of integers."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in COLUMNS[:10] if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f'{path}:1: there is no column "{missing[0]}"; the columns must be {", ".join(COLUMNS)}')
    rows = list(reader)
    if not rows:
        raise InputError(f"{path}: no request finished; there is nothing to compare")

    def column(name: str) -> "np.ndarray[Any, np.dtype[np.int64]]":
        values = []
        for line, row in enumerate(rows, 2):
            try:
                values.append(round(float(row[name])))
            except (TypeError, ValueError):
                raise InputError(f'{path}:{line}: {name} is "{row[name]}"; it must be a number of ns') from None
        return np.array(values, dtype=np.int64)

    arrival = column("arrival")
    return Recording(
        source=str(path),
        kind="simulator CSV",
        request_id=tuple(row["request id"] for row in rows),
        arrival_s=(arrival - arrival.min()) / NS_PER_S,
        ttft_s=column("TTFT") / NS_PER_S,
        latency_s=(column("end_time") - arrival) / NS_PER_S,
        input_tokens=column("input"),
        output_tokens=column("output"),
        itl_s=_itl(path, rows),
    )


def _itl(path: Path, rows: list[dict[str, str]]) -> "np.ndarray[Any, np.dtype[np.float64]] | None":
    values: list[int] = []
    for line, row in enumerate(rows, 2):
        try:
            values.extend(ast.literal_eval(row.get("ITL") or "[]"))
        except (SyntaxError, TypeError, ValueError):
            raise InputError(f"{path}:{line}: ITL is not a list of integers") from None
    return np.array(values, dtype=np.float64) / NS_PER_S if values else None


def read_parquet(path: Path) -> Recording:
    """`requests.parquet` of a run folder; summary.json and manifest.json beside it say how full the KV cache was."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        input_files.note(path)
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a Parquet file that can be read ({error})") from None
    needed = ("request_id", "status", "arrival_ps", "first_token_ps", "finish_ps", "input_tokens", "emitted_tokens")
    missing = [name for name in needed if name not in table.column_names]
    if missing:
        raise InputError(f'{path}: there is no column "{missing[0]}"; it must be the requests.parquet of a run folder')
    done = np.array(table["status"].to_pylist()) == "finished"
    unfinished = int(len(done) - done.sum())
    table = table.filter(pa.array(done))
    if table.num_rows == 0:
        raise InputError(f"{path}: no request finished; there is nothing to compare")
    arrival, first, finish = (table[name].to_numpy() for name in ("arrival_ps", "first_token_ps", "finish_ps"))
    findings = []
    if unfinished:
        findings.append(Finding("unfinished", True, f"{unfinished} requests of the simulation did not finish"))
    itl = None
    if "itl_ps" in table.column_names:
        itl = table["itl_ps"].combine_chunks().flatten().to_numpy(zero_copy_only=False) / PS_PER_S
    return Recording(
        source=str(path.parent),
        kind="llmsim run folder",
        request_id=tuple(table["request_id"].to_pylist()),
        arrival_s=(arrival - arrival.min()) / PS_PER_S,
        ttft_s=(first - arrival) / PS_PER_S,
        latency_s=(finish - arrival) / PS_PER_S,
        input_tokens=table["input_tokens"].to_numpy().astype(np.int64),
        output_tokens=table["emitted_tokens"].to_numpy().astype(np.int64),
        itl_s=itl,
        findings=tuple(findings),
        kv=_kv_use(path.parent),
    )


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
    except (OSError, ValueError, KeyError, TypeError):
        return None
