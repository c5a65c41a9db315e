"""Reads a recorded or simulated run, whatever wrote it: the kind is told by content, never by the
file's name.
"""

import json
from pathlib import Path
from typing import Any

from llmsim.config.errors import InputError
from llmsim.config.files import input_files
from llmsim.config.files.reading import json_value
from llmsim.validation.logs.aiperf import read_aiperf
from llmsim.validation.logs.benchmarks import read_guidellm, read_inference_perf
from llmsim.validation.logs.engine_log import read_engine_log
from llmsim.validation.logs.files import text_of
from llmsim.validation.logs.recording import Recording
from llmsim.validation.logs.simulated import read_csv, read_parquet
from llmsim.validation.logs.vllm_bench import read_bench

KINDS = (
    "a per-request JSONL log (request_id, arrival_time, queued_ts, first_token_ts, last_token_ts, "
    "output_toks), the JSON of `vllm bench serve --save-detailed`, aiperf's profile_export.jsonl, "
    "GuideLLM's benchmarks.json, Inference-Perf's per_request_lifecycle_metrics.json, "
    "or llmsim's run folder, requests.parquet or CSV"
)

FILES_IN_FOLDERS = (
    "requests.parquet",
    "profile_export.jsonl",
    "per_request_lifecycle_metrics.json",
)
"""Where the requests are in a folder: of `llmsim run --run-dir`, of aiperf, and of Inference-Perf.
"""
WHOLE_FILES = (
    "ttfts",
    "mean_ttft_ms",
    "total_output_tokens",
    "time_to_first_token",
    "experiments",
    "benchmarks",
)
"""Keys of files that are one object on one line: vLLM's result with and without details, summary
and raw data of aiperf and genai-perf, GuideLLM's report.
"""


def read_recording(path: Path) -> Recording:
    """The requests of a run, from any of `KINDS`.

    Raises InputError when there is no such file, when it is of no known kind, or when something in
    it is missing.
    """
    if path.is_dir():
        return read_recording(_log_in(path))
    if path.is_file() and _starts_with(path, b"PAR1"):
        return read_parquet(path)
    return _read_text(path, text_of(path, f"it may be {KINDS}"))


def _log_in(folder: Path) -> Path:
    """The file of a folder that holds the requests: of a run, or of aiperf or Inference-Perf."""
    for name in FILES_IN_FOLDERS:
        if (folder / name).is_file():
            return folder / name
    raise InputError(
        f"{folder}: a folder without requests.parquet is no run folder; `llmsim run --run-dir` "
        f"writes one; of other tools it may hold {' or '.join(FILES_IN_FOLDERS[1:])}",
        file=str(folder),
    )


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with input_files.open_binary(path) as stream:
            return stream.read(len(magic)) == magic
    except OSError:
        return False  # text_of says why


def _read_text(path: Path, text: str) -> Recording:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InputError(f"{path}: the file is empty; it may be {KINDS}", file=str(path))
    if text.lstrip().startswith("["):
        records = _records(text)
        if records:
            return read_inference_perf(path, records)
        raise InputError(f"{path}: a JSON list is no known log; it may be {KINDS}", file=str(path))
    if not text.lstrip().startswith("{"):
        number, header = lines[0]
        if "," not in header or header.lstrip().startswith("//"):  # no CSV: a file with comments
            raise InputError(
                f"{path}:{number}: the first line is no header of a known log; it may be {KINDS}",
                file=str(path),
            )
        return read_csv(path, text)
    whole = _whole(text)
    if whole is not None and (len(lines) > 1 or set(WHOLE_FILES) & set(whole)):
        return _read_whole(path, whole)
    rows = [(number, _object(path, number, line)) for number, line in lines]
    first = rows[0][1]
    if set(WHOLE_FILES) & set(first):
        raise InputError(
            f"{path}: it holds {len(rows)} results (--append-result); give the one of this run "
            "alone",
            file=str(path),
        )
    if "metadata" in first and "metrics" in first:
        return read_aiperf(path, rows)
    if "first_token_ts" in first:
        return read_engine_log(path, rows)
    raise InputError(
        f"{path}:{rows[0][0]}: the keys {', '.join(sorted(first)[:8])} are of no known log; it "
        f"may be {KINDS}",
        file=str(path),
    )


def _read_whole(path: Path, data: dict[str, Any]) -> Recording:
    """A file that is one object: a benchmark's result."""
    if "benchmarks" in data and "ttfts" not in data:
        return read_guidellm(path, data)
    if "time_to_first_token" in data and "ttfts" not in data:
        raise InputError(
            f"{path}: aiperf's summary has no single requests; give profile_export.jsonl, which "
            "lies beside it",
            file=str(path),
        )
    if "experiments" in data and "ttfts" not in data:
        raise InputError(
            f"{path}: genai-perf's profile_export.json has no token counts; give "
            "profile_export_genai_perf.json, which "
            "lies beside it and has the means, or use aiperf, whose records have them",
            file=str(path),
        )
    if "ttfts" not in data and not set(WHOLE_FILES) & set(data):
        raise InputError(
            f"{path}: the keys {', '.join(sorted(data)[:8])} are of no known log; it may be "
            f"{KINDS}",
            file=str(path),
        )
    return read_bench(path, data)


def _whole(text: str) -> dict[str, Any] | None:
    """The text as one JSON object, or None where it is JSON lines."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # then each line says what is wrong with it
        return None
    return value if isinstance(value, dict) else None


def _records(text: str) -> list[Any]:
    """The entries of a JSON list whose first one is a request of Inference-Perf; else none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    first = value[0] if isinstance(value, list) and value else None
    return value if isinstance(first, dict) and {"start_time", "info"} <= set(first) else []


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    value = json_value(line, path, "one request in every line", line=number)
    if not isinstance(value, dict):
        raise InputError(
            f"{path}:{number}: a line must be a JSON object, one request", file=str(path)
        )
    return value
