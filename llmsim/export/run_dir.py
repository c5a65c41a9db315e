"""The run folder: what was asked (manifest.json), what came out (summary.json) and the tables
behind it.
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import llmsim
from llmsim.columns import PowerColumns, StepColumns
from llmsim.config.errors import InputError
from llmsim.config.files.input_files import InputFile
from llmsim.core import Results
from llmsim.export.files import check_writable_folder
from llmsim.export.json import write_json
from llmsim.export.parquet import write_columns, write_requests, write_sessions
from llmsim.export.series_files import SeriesFiles
from llmsim.results.requests.sessions import reasons

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class RunRecord:
    """What makes a run repeatable.

    `config` is the resolved configuration as JSON values. `inputs` are the files that the command
    line names, `files` all that the run read. `table_hashes` names each compiled cost table. Only
    `host` may hold wall-clock facts.
    """

    argv: Sequence[str]
    seed: int
    inputs: Sequence[str | Path]
    config: Mapping[str, Any]
    table_hashes: Mapping[str, str]
    host: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The cluster's text, the dataset and the options: what runs it again."""
    files: Sequence[InputFile] = ()


def write_run_dir(
    folder: str | Path,
    results: Results,
    summary: Mapping[str, Any],
    record: RunRecord,
    written: SeriesFiles | None = None,
) -> None:
    """Writes requests, steps, series and summary, then manifest.json: where that is there, the rest
    is complete.

    `written` holds the series, where the run wrote them on its way; else they are in `results`.

    All but the manifest's "host" is the same bytes for the same run (Parquet: with the same
    pyarrow). Files of an earlier run are replaced one by one, and tables that this one does not
    have are removed. Raises InputError where something cannot be written or an input is gone.
    """
    target = check_writable_folder(folder)
    (target / "manifest.json").unlink(missing_ok=True)
    write_requests(results, target / "requests.parquet")
    write_columns(results.steps, StepColumns.COLUMNS, target / "steps.parquet")
    written = written or _all_at_once(target, results)
    written.finish("series")
    for name in ("sessions.parquet", "kv_tiers.parquet", "links.parquet", "power.parquet"):
        (target / name).unlink(missing_ok=True)
    if reasons(results.workload):
        write_sessions(results, target / "sessions.parquet")
    if results.kv_tiers:
        written.finish("kv_tiers")
    if len(results.links.get("bytes", ())):
        written.finish("links")
    if results.energy is not None:
        write_columns(results.energy.series, PowerColumns.COLUMNS, target / "power.parquet")
    write_json(summary, target / "summary.json")
    write_json(_manifest(record), target / "manifest.json")


def arguments_of(folder: Path) -> list[str] | None:
    """The arguments of the command whose run a folder holds; None where it holds none that can be
    read.
    """
    try:
        argv = json.loads((folder / "manifest.json").read_bytes())["argv"]
        return [str(word) for word in argv[1:]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _all_at_once(folder: Path, results: Results) -> SeriesFiles:
    files = SeriesFiles(folder, 0)
    for table, columns in (
        ("series", results.series),
        ("kv_tiers", results.kv_tier_series),
        ("links", results.link_series),
    ):
        if len(columns):
            files.add(table, columns)  # type: ignore[arg-type]  # mypy widens the names
    return files


def _manifest(record: RunRecord) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "llmsim_version": getattr(llmsim, "__version__", None),
        "argv": list(record.argv),
        "seed": record.seed,
        "run": dict(record.asked),
        "inputs": [_fingerprint(path) for path in record.inputs],
        "files": [_listed(one) for one in record.files if one.kind == "file"],
        "config": dict(record.config),
        "table_hashes": dict(record.table_hashes),
        "host": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "system": platform.system(),
            "machine": platform.machine(),
            "cpu_count": os.cpu_count(),
            "directory": os.getcwd(),
            **record.host,
        },
    }


def _listed(one: InputFile) -> dict[str, Any]:
    """A file below the working directory is named from there, so that equal runs have equal
    manifests.
    """
    return {
        "path": one.path.removeprefix(os.getcwd() + os.sep),
        "sha256": one.sha256,
        "bytes": one.bytes,
    }


def _fingerprint(path: str | Path) -> dict[str, Any]:
    """Of a pipe nothing: it has been read, and to open it again would wait for another writer."""
    if Path(path).exists() and not Path(path).is_file():
        return {"path": str(path), "sha256": None, "bytes": None}
    try:
        with Path(path).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            size = stream.tell()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read again for the manifest ({error.strerror or error})",
            file=str(path),
        ) from None
    return {"path": str(path), "sha256": digest, "bytes": size}
