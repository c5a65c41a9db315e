"""Finds the silicon database that the package aiconfigurator-core carries, without importing that
package.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.config.files import input_files
from llmsim.costs.source import ANY_VERSION, CostRequest, EngineVersions

PACKAGE = "aiconfigurator_core"
FRAMEWORKS = ("vllm", "sglang", "trtllm")
"""Who measured kernels. The simulated engine's come first (`EngineVersions.framework`); another
framework's stand in, labelled, where it has none.
"""
NAMES = {"vllm": "vLLM", "nccl": "NCCL", "sglang": "SGLang"}
"""What has a version of its own in `EngineVersions`."""

TABLES = {
    "gemm": ("gemm", "gemm_perf.parquet"),
    "context_attention": ("attention", "context_attention_perf.parquet"),
    "generation_attention": ("attention", "generation_attention_perf.parquet"),
    "moe": ("moe", "moe_perf.parquet"),
    "scale_matrix": ("quantize", "scale_matrix_perf.parquet"),
    "compute_scale": ("quantize", "computescale_perf.parquet"),
    "mla_context": ("mla", "mla_context_module_perf.parquet"),
    "mla_generation": ("mla", "mla_generation_module_perf.parquet"),
    "mla_context_kernel": ("mla", "context_mla_perf.parquet"),
    "mla_generation_kernel": ("mla", "generation_mla_perf.parquet"),
    "mla_products": ("mla_bmm", "mla_bmm_perf.parquet"),
    "sparse_context": ("sparse_attention", "dsa_context_module_perf.parquet"),
    "sparse_generation": ("sparse_attention", "dsa_generation_module_perf.parquet"),
    "compressed_context": ("sparse_attention", "dsv4_hca_context_module_perf.parquet"),
    "compressed_generation": ("sparse_attention", "dsv4_hca_generation_module_perf.parquet"),
    "compressed_sparse_context": ("sparse_attention", "dsv4_csa_context_module_perf.parquet"),
    "compressed_sparse_generation": ("sparse_attention", "dsv4_csa_generation_module_perf.parquet"),
    "block_context": ("msa", "msa_context_module_perf.parquet"),
    "block_generation": ("msa", "msa_generation_module_perf.parquet"),
    "streams": ("mhc", "mhc_module_perf.parquet"),
    "kda": ("kda", "kda_perf.parquet"),
    "linear_attention": ("linear_attention", "gdn_perf.parquet"),
    "all_reduce": ("comm", "custom_allreduce_perf.parquet"),
}


class TablePath(Struct, frozen=True):
    """One Parquet table and the words that the results show for it."""

    path: Path
    label: str
    framework: str = ""
    """Whose kernels it timed."""


class Database(Struct, frozen=True):
    """The tables of one system; `version` is the package's."""

    system: str
    root: Path
    version: str
    constants: tuple[tuple[str, float], ...]
    """Numbers of the system's YAML that the database's own formulas use."""
    engine: EngineVersions = ANY_VERSION
    """The versions whose tables come first."""

    def own_tables(self, kind: str) -> list[TablePath]:
        """Those of the engine's own framework alone."""
        return [table for table in self.tables(kind) if table.framework == self.engine.framework]

    @property
    def has_operators(self) -> bool:
        """GEMM and attention tables exist, which is the least that a model needs."""
        return all(
            self.tables(kind) for kind in ("gemm", "context_attention", "generation_attention")
        )

    def tables(self, kind: str) -> list[TablePath]:
        """Tables of one kind, the engine's own by `nearest_first`, then those of the other
        frameworks.
        """
        family, name = TABLES[kind]
        own = self.engine.framework
        return [
            found
            for framework in sorted(FRAMEWORKS, key=lambda one: one != own)
            for found in self._versions(family, framework, name, kind)
        ]

    def nccl(self) -> list[TablePath]:
        """NCCL tables by `nearest_first`."""
        return self._versions("comm", "nccl", "nccl_perf.parquet", "collectives")

    def constant(self, name: str, default: float) -> float:
        """One number of the system's YAML."""
        return dict(self.constants).get(name, default)

    def fingerprint(self) -> str:
        """Changes whenever a table that could be read changes: package version, and names and sizes
        of the tables.
        """
        found = [table for kind in TABLES for table in self.tables(kind)] + self.nccl()
        for table in found:
            input_files.note(table.path)  # compiled tables may be kept from an earlier run
        return "\n".join(
            [self.version, *(f"{table.path} {table.path.stat().st_size}" for table in found)]
        )

    def _versions(self, family: str, framework: str, file_name: str, kind: str) -> list[TablePath]:
        folder = os.path.join(self.root, "data", self.system, family, framework)
        try:
            now = os.stat(folder)
        except OSError:
            return []
        wanted = getattr(self.engine, framework, "")
        short = ".".join(self.version.split(".")[:2])
        label = f"aiconfigurator-core {short} {self.system} {framework}"
        state = now.st_mtime_ns, now.st_ino
        return list(_tables_in(folder, state, file_name, framework, wanted, label, kind))


@lru_cache(maxsize=1024)
def _tables_in(
    folder: str,
    state: tuple[int, int],
    file_name: str,
    framework: str,
    wanted: str,
    label: str,
    kind: str,
) -> tuple[TablePath, ...]:
    """The tables in the folders of the versions of a framework, while that has this state."""
    if not os.path.isdir(folder):
        return ()
    versions = [
        name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name, file_name))
    ]
    tables = []
    for version in nearest_first(versions, wanted):
        stands_in = (
            "" if of_release(version, wanted) else f", nearest to {NAMES[framework]} {wanted}"
        )
        path = Path(folder, version, file_name)
        tables.append(TablePath(path, f"{label} {version} {kind}{stands_in}", framework))
    return tuple(tables)


def of_release(version: str, wanted: str) -> bool:
    """Whether a version is of the release `wanted` ("0.24.0" is of "0.24"), or none is wanted."""
    release = _numbers(wanted)
    return _numbers(version)[: len(release)] == release


def nearest_first(versions: Sequence[str], wanted: str) -> list[str]:
    """Versions in the order in which they stand in for a release: its own, older ones from the
    newest, then newer ones.

    Without a release that is wanted, the newest comes first.
    """
    newest_first = sorted(versions, key=version_key, reverse=True)
    if not wanted:
        return newest_first
    release = _numbers(wanted)
    older = [version for version in newest_first if _numbers(version)[: len(release)] <= release]
    newer = [version for version in reversed(newest_first) if version not in older]
    return older + newer


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts 0.24.0 above 0.9.1 and a release candidate below its release."""
    parts = re.findall(r"\d+|[a-z]+", text.lower())
    release_end = (1, -1, "")
    ranks = [
        (1, int(part), "") if part.isdigit() else (2 if part == "post" else 0, 0, part)
        for part in parts
    ]
    return (*ranks, release_end)


def find_database(request: CostRequest) -> Database | None:
    """The tables of the request's hardware; None when the device is not in it or the package is not
    installed.
    """
    if request.hardware is None or request.hardware.silicon_system is None:
        return None
    return database_of(request.hardware.silicon_system, request.engine)


def database_of(system: str, engine: EngineVersions = ANY_VERSION) -> Database | None:
    """The tables of a folder of the database; None when it has none or the package is not
    installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations)))
    root = package / "systems"
    if not (root / "data" / system).is_dir():
        return None
    version = _package_version(package.parent, package.parent.stat().st_mtime_ns)
    return Database(system, root, version, _constants(root / f"{system}.yaml"), engine)


@lru_cache(maxsize=16)
def _package_version(folder: Path, changed_ns: int) -> str:
    """The version of the package that is installed in a folder, while that has not changed."""
    info = sorted(folder.glob(f"{PACKAGE}-*.dist-info"))
    if not info:
        return "unknown"
    return info[-1].name.removeprefix(f"{PACKAGE}-").removesuffix(".dist-info")


def silicon_is_missing(request: CostRequest) -> bool:
    """Whether the device, or the one that it resembles, may be in the database, which is not
    installed.
    """
    sheet = request.hardware
    if sheet is None or (sheet.silicon_system is None and sheet.similar_to is None):
        return False
    return importlib.util.find_spec(PACKAGE) is None


def _constants(path: Path) -> tuple[tuple[str, float], ...]:
    """`name: number` lines of the YAML; read without a YAML library, which costs more than the rest
    of a run.
    """
    if not path.is_file():
        return ()
    found = re.findall(
        r"^ {2}([a-z_0-9]+): *([0-9.eE+-]+)\s*(?:#.*)?$", input_files.read_text(path), re.MULTILINE
    )
    return tuple((name, float(value)) for name, value in found)


def distinct_rows(table: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct rows of whole numbers, ascending, and of each row which of them it is.

    As `numpy.unique` along the first axis, which compares rows as bytes and takes ten times as long
    as numbers do.
    """
    least = table.min(axis=0)
    spans = (table.max(axis=0) - least + 1).tolist()
    if prod(spans) > np.iinfo(np.int64).max:
        rows, owner = np.unique(table, axis=0, return_inverse=True)
        return rows, owner.reshape(-1)
    numbers = np.zeros(len(table), dtype=np.int64)
    for column, span in zip((table - least).T, spans, strict=True):
        numbers = numbers * span + column
    _, first, owner = np.unique(numbers, return_index=True, return_inverse=True)
    return table[first], owner


class TableFile(NamedTuple):
    """A file of the database as it is now: what is made of it holds for an equal one."""

    path: Path
    size: int
    changed_ns: int
    inode: int


def table_file(path: Path) -> TableFile:
    """The file, which the run reads from now on."""
    input_files.note(path)
    now = path.stat()
    return TableFile(path, now.st_size, now.st_mtime_ns, now.st_ino)


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    """Columns of a Parquet table as numpy arrays, which are not to be written to; a column that the
    file lacks is left out of the answer.
    """
    return dict(_columns(table_file(path), tuple(columns)))


@lru_cache(maxsize=16)
def _columns(file: TableFile, columns: tuple[str, ...]) -> dict[str, NDArray[np.generic]]:
    import pyarrow.parquet as parquet  # heavy: only where a table must be read

    input_files.note(file.path)  # again: whoever opens a file says so
    present = [name for name in columns if name in parquet.read_schema(file.path).names]
    # Words recur in thousands of rows: as a dictionary each becomes one string of Python.
    table = parquet.ParquetFile(file.path, read_dictionary=present).read(columns=present)
    found = {name: _values(table.column(name)) for name in present}
    for values in found.values():
        values.flags.writeable = False
    return found


def _values(column: Any) -> NDArray[np.generic]:
    import pyarrow as pa

    if column.null_count and hasattr(column.type, "value_type"):
        column = column.cast(column.type.value_type)  # a dictionary gives what is null a word
    array = column.combine_chunks()
    if not array.null_count and not isinstance(array, pa.ChunkedArray):
        if isinstance(array.type, pa.DictionaryType):
            found: NDArray[np.generic] = np.array(array.dictionary.to_pylist(), dtype=np.object_)
            found = found[np.from_dlpack(array.indices)]
            return found
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            return np.from_dlpack(array)
    return np.asarray(column.to_numpy(zero_copy_only=False))  # imports pandas, which is slow
