"""What `measure` and `serve-log` do where no option says otherwise: on a CPU, what the engine that
runs there does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmsim.profiler.bundle.plan import Limits

LONGEST = 16384
SERVED_TOKENS, SERVED_SEQS = 2048, 128
"""Limits of a step that is served on a GPU."""


@dataclass(frozen=True)
class Asked:
    """Limits as options gave them; None: not given."""

    max_tokens: int | None = None
    max_seqs: int | None = None
    max_kv: int | None = None
    chunk_factor: float | None = None
    kv_factor: float | None = None


GPU = Limits(2048, 256, LONGEST)
CPU = Limits(512, 32, 2048, 6.0, 6.0, 4.0, 16384)
"""Some minutes for a small model. Its engine packs a step into one sequence, whose attention costs
new times cached tokens: few points tell it, and steps of many long sequences take seconds.
"""


def limits_for(asked: Asked, *, cpu: bool, positions: int) -> Limits:
    """`asked`, completed for the kind of device; contexts end where the model's `positions` do (0:
    unknown).
    """
    base = CPU if cpu else GPU
    longest = min(base.max_kv, positions) if positions > 0 else base.max_kv
    return Limits(
        asked.max_tokens or base.max_tokens,
        asked.max_seqs or base.max_seqs,
        asked.max_kv or max(longest, 16),
        asked.chunk_factor or base.chunk_factor,
        asked.kv_factor or base.kv_factor,
        base.seq_factor,
        base.max_total_kv,
    )


def on_cpu(device: str) -> bool:
    """Whether `--device` means a CPU here; without PyTorch (a dry run), "auto" means a GPU."""
    if device != "auto":
        return device == "cpu"
    try:
        import torch
    except ImportError:
        return False
    return not torch.cuda.is_available()


def threads_of(asked: int | None, *, cpu: bool) -> int:
    """`--threads`: one on a CPU unless given; 0 is PyTorch's choice."""
    return asked if asked is not None else int(cpu)


def clock_of(asked: str, threads: int | None, *, cpu: bool) -> Literal["wall", "cpu"]:
    """`--clock`: processor time where one thread works, in which other programs hardly show; else
    the wall's.
    """
    if asked == "auto":
        return "cpu" if cpu and threads_of(threads, cpu=cpu) == 1 else "wall"
    return "cpu" if asked == "cpu" else "wall"
