"""What an import is for: the model, its degree and precision, and how far the tables
shall reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmsim.model import Layout, ModelConfig, Operator, operators, resolve_dtypes


@dataclass(frozen=True)
class Target:
    """Where the bundle goes and which rows belong into it."""

    model: ModelConfig
    hardware: str
    tp: int
    dtype: str
    """Short name of the weights' and activations' type."""
    out_root: Path
    max_tokens: int = 2048
    max_seqs: int = 256
    max_kv: int = 16384

    @property
    def folder(self) -> Path:
        """Of this degree."""
        return self.out_root / self.hardware / self.model.name / self.dtype / f"tp{self.tp}"

    @property
    def cost_table(self) -> Path:
        """Where rows go that stay single operators' (`--cost-table`)."""
        return (
            self.out_root
            / self.hardware
            / "cost_tables"
            / f"{self.model.name.split('/')[-1]}-tp{self.tp}.csv"
        )

    @property
    def long_dtype(self) -> str:
        """As torch spells the dtype."""
        return {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(
            self.dtype, self.dtype
        )

    def operators(self) -> tuple[Operator, ...]:
        """Of one rank."""
        return operators(self.model, Layout(self.tp, 1), resolve_dtypes(self.model, self.dtype))
