"""Requests and small profile bundles for the tests of the cost sources."""

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmsim.costs import CostRequest
from llmsim.costs.source import AttentionCost, MixedAttention, MixedGrid, SplitAttention, SplitGrid
from llmsim.costs.sources.silicon.database import Database, find_database
from llmsim.model import Dtypes, Layout, ModelConfig, load_hardware, load_model, operators

LLAMA = "meta-llama/Llama-3.1-8B"
PERF = "groundtruth/profiler/perf"
DENSE_LAYERS = (
    "embedding",
    "layernorm",
    "qkv_proj",
    "rotary_emb",
    "o_proj",
    "gate_up_proj",
    "act_fn",
    "down_proj",
    "final_layernorm",
)
SYSTEMS = ("A100", "H100", "H200", "B200", "GB200", "L40S", "RTXPRO6000")
"""Cards that the silicon database has tables of."""
Rows = Iterable[Sequence[object]]

needs_database = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None,
    reason="aiconfigurator-core is not installed",
)


def request(
    model: str | ModelConfig = LLAMA, hardware: str = "RTXPRO6000", *, tp: int = 1, ep: int = 1,
    dtypes: Dtypes | None = None, **changes: Any,
) -> CostRequest:  # fmt: skip
    """A request for a preset model and card with vLLM-like limits; keyword arguments replace its
    fields.
    """
    config = load_model(model) if isinstance(model, str) else model
    layout = Layout(tp, ep)
    dtypes = dtypes or Dtypes()
    base = CostRequest(
        model=config,
        layout=layout,
        dtypes=dtypes,
        hardware_name=hardware,
        hardware=load_hardware(hardware),
        group_memory_bandwidth_bytes_per_s=0,
        operators=operators(config, layout, dtypes),
        max_tokens=2048,
        max_seqs=128,
        max_model_len=16384,
        cuda_graph_sizes=(1, 2, 4, 8, 256, 512),
    )
    return replace(base, **changes)


def database(hardware: str) -> Database:
    """The silicon database's part for a card that it has."""
    found = find_database(request(hardware=hardware))
    assert found is not None
    return found


def write_csv(path: Path, header: str, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header, *(",".join(str(cell) for cell in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def attention_us(chunk: float, kv_prefill: float, n: float, kv: float) -> float:
    """Multilinear, so that linear interpolation must give it back exactly."""
    return 5.0 + chunk * (0.01 + kv_prefill * 1e-5) + n * (0.2 + kv * 1e-3) + chunk * n * 1e-4


def attention_rows() -> list[tuple[object, ...]]:
    kv = (16, 64, 256)
    decodes = [(0, 0, n, k, attention_us(0, 0, n, k)) for n in (1, 8, 64) for k in kv]
    prefills = [(c, p, 0, 0, attention_us(c, p, 0, 0)) for c in (16, 512) for p in (0, *kv)]
    mixed = [
        (c, p, n, k, attention_us(c, p, n, k))
        for c in (16, 512)
        for p in (0, *kv)
        for n in (1, 8, 64)
        for k in kv
    ]
    return [*decodes, *prefills, *mixed]


def write_bundle(
    root: Path, *, hardware: str = "MyCard", tp: int = 1, tables: Mapping[str, Rows] | None = None
) -> Path:
    """A complete bundle of Llama-3.1-8B in bf16 below `root`; `tables` replaces the rows of a file
    by its name.
    """
    folder = root / hardware / "meta-llama" / "Llama-3.1-8B" / "bf16" / f"tp{tp}"
    content: dict[str, tuple[str, Rows]] = {
        "dense.csv": (
            "layer,tokens,time_us",
            [(n, t, 10 + t) for n in DENSE_LAYERS for t in (1, 16, 2048)],
        ),
        "per_sequence.csv": (
            "layer,sequences,time_us",
            [(n, s, 100 + s) for n in ("lm_head", "sampler") for s in (1, 64)],
        ),
        "attention.csv": ("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", attention_rows()),
        "skew.csv": (
            "n,kv_big,kv_mean,t_mean_us,t_skew_us",
            [(64, 1000, 500, 30.0, 30.0 + 3 * 500 * 0.016)],
        ),
    }
    for name, (header, rows) in content.items():
        write_csv(folder / name, header, (tables or {}).get(name, rows))
    return folder


def split_grid(attention: AttentionCost) -> SplitGrid:
    """The grid of attention whose prefills and decodes are calls of their own."""
    assert isinstance(attention, SplitAttention)
    return attention.grid


def mixed_grid(attention: AttentionCost) -> MixedGrid:
    """The grid of attention whose prefills and decodes are one call."""
    assert isinstance(attention, MixedAttention)
    return attention.grid
