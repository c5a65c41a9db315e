"""Finds the silicon database that the package aiconfigurator-core carries, without importing that package."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmsim.costs.source import CostRequest

PACKAGE = "aiconfigurator_core"
FRAMEWORKS = ("vllm", "sglang", "trtllm")
"""In this order: vLLM's own kernels are simulated; another framework's stand in, labelled, where it has none."""

TABLES = {
    "gemm": ("gemm", "gemm_perf.parquet"),
    "context_attention": ("attention", "context_attention_perf.parquet"),
    "generation_attention": ("attention", "generation_attention_perf.parquet"),
    "moe": ("moe", "moe_perf.parquet"),
    "scale_matrix": ("quantize", "scale_matrix_perf.parquet"),
    "mla_context": ("mla", "mla_context_module_perf.parquet"),
    "mla_generation": ("mla", "mla_generation_module_perf.parquet"),
    "mla_context_kernel": ("mla", "context_mla_perf.parquet"),
    "mla_generation_kernel": ("mla", "generation_mla_perf.parquet"),
    "sparse_context": ("sparse_attention", "dsa_context_module_perf.parquet"),
    "sparse_generation": ("sparse_attention", "dsa_generation_module_perf.parquet"),
    "linear_attention": ("linear_attention", "gdn_perf.parquet"),
    "all_reduce": ("comm", "custom_allreduce_perf.parquet"),
}


@dataclass(frozen=True)
class TablePath:
    """One Parquet table and the words that the results show for it."""

    path: Path
    label: str


@dataclass(frozen=True)
class Database:
    """The tables of one system; `version` is the package's."""

    system: str
    root: Path
    version: str
    constants: tuple[tuple[str, float], ...]
    """Numbers of the system's YAML that the database's own formulas use."""

    @property
    def has_operators(self) -> bool:
        """GEMM and attention tables exist, which is the least that a model needs."""
        return all(self.tables(kind) for kind in ("gemm", "context_attention", "generation_attention"))

    def tables(self, kind: str) -> list[TablePath]:
        """Tables of one kind, vLLM's newest version first, then its older ones, then the other frameworks'."""
        family, name = TABLES[kind]
        return [found for framework in FRAMEWORKS for found in self._versions(family, framework, name, kind)]

    def nccl(self) -> list[TablePath]:
        """NCCL tables, newest version first."""
        return self._versions("comm", "nccl", "nccl_perf.parquet", "collectives")

    def constant(self, name: str, default: float) -> float:
        """One number of the system's YAML."""
        return dict(self.constants).get(name, default)

    def fingerprint(self) -> str:
        """Changes whenever a table that could be read changes: package version, and names and sizes of the tables."""
        found = [table for kind in TABLES for table in self.tables(kind)] + self.nccl()
        return "\n".join([self.version, *(f"{table.path} {table.path.stat().st_size}" for table in found)])

    def _versions(self, family: str, framework: str, file_name: str, kind: str) -> list[TablePath]:
        folder = self.root / "data" / self.system / family / framework
        if not folder.is_dir():
            return []
        versions = [p for p in folder.iterdir() if (p / file_name).is_file()]
        versions.sort(key=lambda p: version_key(p.name), reverse=True)
        short = ".".join(self.version.split(".")[:2])
        return [
            TablePath(p / file_name, f"aiconfigurator-core {short} {self.system} {framework} {p.name} {kind}")
            for p in versions
        ]


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts 0.24.0 above 0.9.1 and a release candidate below its release."""
    parts = re.findall(r"\d+|[a-z]+", text.lower())
    release_end = (1, -1, "")
    ranks = [(1, int(part), "") if part.isdigit() else (2 if part == "post" else 0, 0, part) for part in parts]
    return (*ranks, release_end)


def find_database(request: CostRequest) -> Database | None:
    """The tables of the request's hardware; None when the device is not in it or the package is not installed."""
    if request.hardware is None or request.hardware.silicon_system is None:
        return None
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations)))
    root = package / "systems"
    system = request.hardware.silicon_system
    if not (root / "data" / system).is_dir():
        return None
    info = sorted(package.parent.glob(f"{PACKAGE}-*.dist-info"))
    version = info[-1].name.removeprefix(f"{PACKAGE}-").removesuffix(".dist-info") if info else "unknown"
    return Database(system, root, version, _constants(root / f"{system}.yaml"))


def _constants(path: Path) -> tuple[tuple[str, float], ...]:
    """`name: number` lines of the YAML; read without a YAML library, which costs more than the rest of a run."""
    if not path.is_file():
        return ()
    found = re.findall(r"^ {2}([a-z_0-9]+): *([0-9.eE+-]+)\s*(?:#.*)?$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return tuple((name, float(value)) for name, value in found)


def read_columns(path: Path, columns: list[str]) -> dict[str, NDArray[np.generic]]:
    """Columns of a Parquet table as numpy arrays; a column that the file lacks is left out of the answer."""
    import pyarrow.parquet as parquet  # heavy: only where a table must be read

    file = parquet.ParquetFile(path)
    present = [name for name in columns if name in file.schema_arrow.names]
    table = file.read(columns=present)
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in present}
