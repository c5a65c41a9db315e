"""Models and devices: what a config.json says, which operators run, how many bytes they hold and move."""

from llmsim.model.hardware import hardware_names, load_hardware
from llmsim.model.layout import RankShape, layout_problem, padded_vocab_size, rank_shape
from llmsim.model.memory import MemoryLedger, memory_ledger
from llmsim.model.operators import operators
from llmsim.model.presets import load_model, model_names
from llmsim.model.sizes import kv_bytes_per_token, parameter_count, weight_bytes
from llmsim.model.types import (
    DTYPES,
    Dtypes,
    Hardware,
    Layout,
    ModelConfig,
    Operator,
    dtype_bytes,
    resolve_dtypes,
    short_dtype,
)

__all__ = [
    "DTYPES",
    "Dtypes",
    "Hardware",
    "Layout",
    "MemoryLedger",
    "ModelConfig",
    "Operator",
    "RankShape",
    "dtype_bytes",
    "hardware_names",
    "kv_bytes_per_token",
    "layout_problem",
    "load_hardware",
    "load_model",
    "memory_ledger",
    "model_names",
    "operators",
    "padded_vocab_size",
    "parameter_count",
    "rank_shape",
    "resolve_dtypes",
    "short_dtype",
    "weight_bytes",
]
