"""How good a neighbour's times are: measured cards priced from another measured card, as if nobody
had measured them.

Each row is a card and the one that its operators are scaled from
(llmsim/costs/sources/scaled_device.py), with the relative errors of single operators of
Llama-3.1-8B, Llama-3.1-70B on four ranks and Qwen3-30B-A3B at 1 to 2,048 tokens, and of decodes of
1 to 128 sequences of 512 to 8,192 tokens; beside it the errors of the data sheet alone for the same
points.
"""

import sys

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.cli.arguments import OneSentenceParser
from llmsim.costs import CompiledCosts, CostRequest
from llmsim.costs.catalog import look
from llmsim.costs.compile import build
from llmsim.costs.explain import decode_us
from llmsim.model import Dtypes, Layout, load_hardware, load_model, operators

Floats = NDArray[np.float64]
PAIRS = (
    ("H200", "H100"),
    ("H100", "H200"),
    ("B200", "GB200"),
    ("B300", "B200"),
    ("RTX-PRO-6000", "L40S"),
)
MODELS = (
    ("meta-llama/Llama-3.1-8B", 1),
    ("meta-llama/Llama-3.1-70B", 4),
    ("Qwen/Qwen3-30B-A3B", 1),
)
TOKENS = (1, 4, 16, 64, 256, 1024, 2048)
BATCHES, CONTEXTS = (1, 8, 32, 128), (512, 2048, 8192)


def errors(card: str, neighbour: str) -> tuple[Floats, Floats]:
    """Relative errors of the neighbour's times and of the data sheet's, over all points of all
    models.
    """
    found: list[list[float]] = [[], []]
    for name, tp in MODELS:
        asked = _request(name, tp, card)
        assert asked.hardware is not None
        unknown = replace(
            asked, hardware=replace(asked.hardware, silicon_system=None, similar_to=neighbour)
        )
        truth = _points(build(asked, look(asked)))
        for of_source, other in zip(
            found, (unknown, replace(asked, source="roofline")), strict=True
        ):
            points = _points(build(other, look(other)))
            of_source += [points[key] / us - 1 for key, us in truth.items() if key in points]
    return np.array(found[0]), np.array(found[1])


def _request(name: str, tp: int, card: str) -> CostRequest:
    model, layout = load_model(name), Layout(tp)
    return CostRequest(
        model=model,
        layout=layout,
        dtypes=Dtypes(),
        hardware_name=card,
        hardware=load_hardware(card),
        group_memory_bandwidth_bytes_per_s=0,
        operators=operators(model, layout, Dtypes()),
        max_tokens=max(TOKENS),
        max_seqs=max(BATCHES),
        max_model_len=max(CONTEXTS),
        collectives="links",
    )


def _points(costs: CompiledCosts) -> dict[tuple[str, int, int], float]:
    """Microseconds of the operators that take most of a step, and of decodes."""
    large = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "moe", "lm_head")
    points = {
        (op.name, t, 0): op.ps[t] / 1e6
        for op in costs.ops
        if op.name in large
        for t in TOKENS
        if t < len(op.ps)
    }
    decodes = {
        ("decode", n, kv): decode_us(costs.attention, n, kv) for n in BATCHES for kv in CONTEXTS
    }
    return points | decodes


def main() -> int:
    """Prints the table of docs/explanation/estimator.md."""
    OneSentenceParser(description=__doc__).parse_args()
    print("| card | scaled from | points | p50 | p90 | data sheet p50 | p90 |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for card, neighbour in PAIRS:
        near, sheet = errors(card, neighbour)
        cells = [
            f"{np.percentile(np.abs(one), q) * 100:.1f} %"
            for one in (near, sheet)
            for q in (50, 90)
        ]
        print(f"| {card} | {neighbour} | {len(near)} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
