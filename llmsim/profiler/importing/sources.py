"""Opens the tables of an import, CSV or Parquet, and tells by their columns what each is."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmsim.config.errors import InputError
from llmsim.costs.sources.external.table import LATENCY_UNITS, parquet_rows

MAX_COUNT = (1 << 31) - 1
"""Largest number of tokens or sequences in a cell."""
LFS_MARK = b"version https://git-lfs"
MAX_TABLES, MAX_ENTRIES = 500, 20_000
"""Below one folder. A device's tables are tens, those of all models and engines of a silicon
database's device 170.
"""


@dataclass(frozen=True)
class SourceTable:
    """One table, every cell as text; `line[i]` is row i's line in the file (of Parquet: its row
    number).
    """

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    first_line: int

    @property
    def kind(self) -> str:
        """Which table of which format this is; "" for none that is known."""
        columns = set(self.header)
        for kind, needed in KINDS.items():
            if needed <= columns:
                return kind
        return ""

    def place(self, row: int) -> str:
        """`file:line` of a row."""
        return f"{self.path}:{self.first_line + row}"

    def text(self, name: str) -> list[str]:
        """A column as text, "" where there is none."""
        if name not in self.header:
            return [""] * len(self.rows)
        index = self.header.index(name)
        return [row[index].strip() for row in self.rows]

    def numbers(self, name: str) -> list[float]:
        """A column as numbers; NaN where a cell is blank or there is no such column; InputError
        with its place.
        """
        return [self._number(row, name, cell) for row, cell in enumerate(self.text(name))]

    def count(self, name: str, row: int, least: int = 0) -> int:
        """A cell as a whole number; InputError with its place for a blank, a fraction, or what is
        out of range.
        """
        cell = self._cell(name, row)
        value = self._number(row, name, cell)
        if not (least <= value <= MAX_COUNT and value == int(value)):
            shown = cell or "blank"
            raise InputError(
                f"{self.place(row)}: {name} is {shown}; it must be a whole number, {least} to "
                f"{MAX_COUNT}"
            )
        return int(value)

    def time(self, name: str, row: int) -> float:
        """A cell as a duration; InputError with its place where there is none."""
        value = self._number(row, name, self._cell(name, row))
        if math.isnan(value):
            raise InputError(f"{self.place(row)}: {name} is blank; remove the row or measure it")
        return value

    def _cell(self, name: str, row: int) -> str:
        return self.rows[row][self.header.index(name)].strip() if name in self.header else ""

    def _number(self, row: int, name: str, cell: str) -> float:
        if not cell:
            return math.nan
        try:
            value = float(cell)
        except ValueError:
            raise InputError(f'{self.place(row)}: {name} is "{cell}", not a number') from None
        if math.isinf(value) or (value < 0 and not math.isnan(value)):
            raise InputError(
                f"{self.place(row)}: {name} is {cell}; it must be finite and not negative"
            )
        return value


KINDS: dict[str, frozenset[str]] = {
    "llmservingsim dense": frozenset({"layer", "tokens", "time_us"}),
    "llmservingsim per_sequence": frozenset({"layer", "sequences", "time_us"}),
    "llmservingsim attention": frozenset(
        {"prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"}
    ),
    "llmservingsim moe": frozenset({"tokens", "activated_experts", "time_us"}),
    "llmservingsim skew": frozenset({"kv_big", "kv_mean", "t_mean_us", "t_skew_us"}),
    "llmservingsim fit": frozenset({"skew_rate_label", "alpha", "n_samples"}),
    "older layers": frozenset({"layer_name", "input", "kv_cache", "tp_size", "latency(ns)"}),
    "older prefill predictions": frozenset({"kv_cache_size", "prefill_chunk_size", "prediction"}),
    "older decode predictions": frozenset({"batch_size", "kv_cache_size", "prediction"}),
    "vidur moe": frozenset({"time_stats.moe_grouped_gemm.median", "num_tokens"}),
    "vidur linear": frozenset(
        {"time_stats.attn_pre_proj.median", "num_tokens", "num_tensor_parallel_workers"}
    ),
    "vidur attention": frozenset(
        {"batch_size", "kv_cache_size", "prefill_chunk_size", "is_prefill", "n_q_head"}
    ),
    "vidur collective": frozenset({"num_workers", "size", "collective"}),
    "aiconfigurator gemm": frozenset({"gemm_dtype", "m", "n", "k", "latency"}),
    "aiconfigurator attention": frozenset(
        {"batch_size", "isl", "num_heads", "num_key_value_heads", "step", "latency"}
    ),
    "aiconfigurator moe": frozenset(
        {"moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "latency"}
    ),
    "aiconfigurator collective": frozenset({"num_gpus", "message_size", "latency"}),
    **{f"external {unit}": frozenset({"operator", unit}) for unit in LATENCY_UNITS},
}
"""Columns that tell a table; the first that fits holds."""


def open_tables(sources: Sequence[Path]) -> list[SourceTable]:
    """Every .csv, .txt and .parquet among the sources and below the folders among them, sorted by
    path.
    """
    return [open_table(path) for path in table_files(sources, (".csv", ".txt", ".parquet"))]


def table_files(sources: Sequence[Path], endings: Sequence[str]) -> list[Path]:
    """The files among the sources, and those of these endings below the folders among them, sorted
    by path.

    Hidden folders below a source, such as .git and .venv, are left out. InputError where nothing is
    found, and for a folder with far more than one device's profile.
    """
    found: list[Path] = []
    for source in sources:
        if not source.exists():
            raise InputError(f"{source} does not exist; name files or folders with the tables")
        found += [source] if source.is_file() else sorted(_below(source, endings))
    if not found:
        *others, last = endings
        raise InputError(
            f"{', '.join(map(str, sources))}: no {', '.join(others)} or {last} file is there"
        )
    return found


def _below(folder: Path, endings: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    entries = 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        entries += len(folders) + len(files)
        found += [Path(root, name) for name in files if name.endswith(tuple(endings))]
        if entries > MAX_ENTRIES or len(found) > MAX_TABLES:
            raise InputError(
                f"{folder} has more than {MAX_TABLES} tables or {MAX_ENTRIES} files below it; name "
                "the folder of the profile of one device, such as profiler/perf/H100 or "
                "a100/meta-llama/Llama-2-7b-hf, or its files",
                file=str(folder),
            )
    return found


def open_table(path: Path) -> SourceTable:
    """One table; InputError for what is not one, a Git LFS pointer among them."""
    try:
        head = path.open("rb").read(len(LFS_MARK))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", file=str(path)) from None
    if head == LFS_MARK:
        raise InputError(
            f"{path}: this is a Git LFS pointer, not the table; fetch it with `git lfs pull`",
            file=str(path),
        )
    if head[:4] == b"PAR1":
        return _parquet(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.reader(stream) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not CSV in UTF-8 ({error})", file=str(path)) from None
    if not rows:
        raise InputError(f"{path}: the file is empty", file=str(path))
    header = tuple(cell.strip() for cell in rows[0])
    table = SourceTable(path, header, rows[1:], 2)
    for number, row in enumerate(rows[1:] if table.kind else (), 2):  # of others nothing is taken
        if len(row) != len(header):
            raise InputError(
                f"{path}:{number}: the row has {len(row)} fields where the header has "
                f"{len(header)}",
                file=str(path),
            )
    return table


def _parquet(path: Path) -> SourceTable:
    names, rows = parquet_rows(path)
    cells = [["" if row[name] is None else str(row[name]) for name in names] for row in rows]
    return SourceTable(path, tuple(names), cells, 1)
