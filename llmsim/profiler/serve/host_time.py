"""What a step of the transformers engine takes on a CPU besides its kernels, from the same model
made narrow.

A CPU runs Python and kernels one after the other: forming the batch, calling every module of every
layer, adding residuals, taking the tokens. None of that is in a bundle, whose rows are kernels. In
a model of the same layers, heads and experts whose matrices are a few numbers wide it is nearly all
that is left of a step; what its kernels still take is measured as a bundle measures them, and taken
off.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsim.model import Layout, load_model, resolve_dtypes
from llmsim.profiler.device.device import describe
from llmsim.profiler.device.timing import Stopwatch
from llmsim.profiler.rank.rank import Rank
from llmsim.profiler.serve.serve_log import Job, ServeOptions, Step

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_DIM = 8
WIDTHS = {
    "vocab_size": 64,
    "intermediate_size": 16,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
SEQUENCES = 16
"""Of the batch, at most; what a step takes per sequence is small beside what it takes per layer."""
PROMPT, ANSWER = 16, 64


def narrow_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with the same layers, heads and experts, and next to no arithmetic."""
    heads = int(fields["num_attention_heads"])
    kept = {name: value for name, value in fields.items() if name != "quantization_config"}
    widths = {name: value for name, value in WIDTHS.items() if name in kept}
    return {**kept, **widths, "head_dim": HEAD_DIM, "hidden_size": HEAD_DIM * heads}


def host_gap_ns(
    torch: Any, device: Any, options: ServeOptions, fields: Mapping[str, Any],
    run: Callable[[ServeOptions, Sequence[Job]], Sequence[Step]], folder: Path,
) -> int:  # fmt: skip
    """Median time of a narrow decode step less its kernels' medians, ns; `run` serves jobs on the
    model of options.
    """
    path = folder / "narrow.json"
    path.write_text(json.dumps(narrow_fields(fields)), encoding="utf-8")
    narrow = replace(options, model=str(path), kv_tokens=None)
    count = min(options.max_num_seqs, SEQUENCES, options.max_num_batched_tokens)
    jobs = [Job(f"narrow-{index}", 0.0, PROMPT, ANSWER) for index in range(count)]
    steps = run(narrow, jobs)
    full = [
        step.end - step.start for step in steps if [new for new, _ in step.batch] == [1] * count
    ]
    if not full:
        return 0
    model = load_model(str(path))
    dtypes = resolve_dtypes(model, options.dtype)
    rank = Rank(
        torch, device, model, Layout(1, 1), dtypes, describe(torch, device), "eager", "packed"
    )
    kernels_us = kernel_us(rank, Stopwatch(torch, device, clock=options.clock), count)
    return max(0, round(statistics.median(full) * 1e9 - kernels_us * 1e3))


def kernel_us(rank: Rank, watch: Stopwatch, sequences: int) -> float:
    """All kernels of one decode step as a bundle has them: medians times executions, us."""
    timings = watch.sequence(rank.program(sequences))
    total = sum(
        timings[name].median_us * count for name, count in rank.executions("tokens").items()
    )
    attention, once, layers = rank.attention_work([(1, PROMPT + ANSWER // 2)] * sequences)
    before = rank.neighbours(sequences)
    total += watch.eager(attention, before).median_us * layers
    total += watch.eager(once).median_us if once is not None else 0.0
    for name, count in rank.executions("sequences").items():
        total += (
            watch.eager(rank.work("per_sequence", (name, sequences))[0], before).median_us * count
        )
    if rank.expert_op is not None:
        active = min(sequences * rank.expert_op.topk, rank.expert_op.experts_local)
        total += (
            watch.eager(rank.work("moe", (sequences, active))[0], before).median_us
            * rank.expert_op.repeat
        )
    return total
