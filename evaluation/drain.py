"""Which batches of a recorded run are slower than their tables say, from its end, where every step
only decodes.

usage: python evaluation/drain.py LOG <options of llmsim run>

After the log's last first token no prompt is computed: between two requests that finish, the same
sequences decode, and their contexts are known to the token. How many steps lie between follows from
the step time: exactly where there are few; the step time of a batch size is taken from those first.
Requests that start or finish in one step tie such counts together: how many of these ties hold is
printed.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from llmsim.api.checked.run_options import RunOptions
from llmsim.api.preparation.prepare import prepare
from llmsim.cli.arguments import OneSentenceParser
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError, LlmsimError
from llmsim.costs.explain import decode_us
from llmsim.costs.source import SKEW_FRACTION_BITS
from llmsim.validation import Recording, read_recording

FEW_STEPS = 6
"""Up to here a step time that is off by 7 % miscounts nothing."""
BIN = 8
RANGES = ((1, 16), (17, 32), (33, 48), (49, 64), (65, 96), (97, 128), (129, 10**6))
Price = Callable[[Sequence[int]], float]
"""Contexts of a batch that decodes -> us of its step."""


@dataclass(frozen=True)
class Gap:
    """Between two finishing stamps: contexts of the sequences at its end, how long it took, how
    many steps.
    """

    contexts: tuple[int, ...]
    us: float
    steps: int


@dataclass(frozen=True)
class Drain:
    """The end of a log, newest gap first."""

    gaps: tuple[Gap, ...]
    ties: int
    ties_held: int


def step_price(options: RunOptions) -> Price:
    """The tables of the deployment, as the core adds them up for a batch of decodes in a graph."""
    (group, *others) = prepare(options).lowered.groups
    costs, sizes = group.costs, sorted(group.engine.cuda_graph_sizes)
    if others or costs.link_collectives or costs.more_attention:
        raise InputError(
            "the drain is read of one instance with one kind of attention and no collectives on "
            "links"
        )

    def price(contexts: Sequence[int]) -> float:
        count = len(contexts)
        padded = next((size for size in sizes if size >= count), count)
        rows = (
            sum(
                op.repeat * int(op.ps[count if op.feature == "sequences" else padded])
                for op in costs.ops
            )
            / 1e6
        )
        mean = sum(contexts) / count
        skew = (
            costs.attention.skew_ps_per_token_q20
            / (1 << SKEW_FRACTION_BITS)
            / 1e6
            * (max(contexts) - mean)
        )
        return rows + costs.attention.repeat * (
            decode_us(costs.attention, count, mean) + (skew if count > 1 else 0.0)
        )  # type: ignore[arg-type]

    return price


def read_drain(real: Recording, price: Price) -> Drain:
    """Walks backwards from the last token; needs a log with the engine's own stamps."""
    first, last = real.arrival_s + real.ttft_s, real.arrival_s + real.latency_s
    rows = [row for row in range(len(real)) if last[row] > first.max()]
    rows.sort(key=lambda row: -last[row])
    factors: dict[int, float] = {}
    for only_few in (True, False):
        gaps, ends = _walk(real, rows, last, price, factors)
        known = [gap for gap in gaps if gap.steps <= FEW_STEPS or not only_few]
        factors = _factors(known, price)
    return Drain(tuple(gaps), *_ties(real, rows, first, last, ends))


def _walk(
    real: Recording,
    rows: Sequence[int],
    last: Sequence[float],
    price: Price,
    factors: dict[int, float],
) -> tuple[list[Gap], dict[int, int]]:
    """The gaps, and how many steps before the last one each request finished."""
    gaps, active, ends = [], [rows[0]], {rows[0]: 0}
    steps_left = 0
    for row in rows[1:]:
        us = 1e6 * (last[active[-1]] - last[row])
        if us > 1.0:
            contexts = _contexts(real, active, ends, steps_left)
            steps = max(1, round(us / (price(contexts) * _near(factors, len(contexts)))))
            gaps.append(Gap(_contexts(real, active, ends, steps_left + steps // 2), us, steps))
            steps_left += steps
        active.append(row)
        ends[row] = steps_left
    return gaps, ends


def _contexts(
    real: Recording, active: Sequence[int], ends: dict[int, int], steps_left: int
) -> tuple[int, ...]:
    return tuple(
        int(real.input_tokens[row])
        + max(0, int(real.output_tokens[row]) - 1 - (steps_left - ends[row]))
        for row in active
    )


def _factors(gaps: Sequence[Gap], price: Price) -> dict[int, float]:
    """Recorded over priced time by bins of the batch size."""
    found: dict[int, list[float]] = defaultdict(list)
    for gap in gaps:
        found[-(-len(gap.contexts) // BIN)].append(gap.us / gap.steps / price(gap.contexts))
    return {place: median(ratios) for place, ratios in found.items()}


def _near(factors: dict[int, float], count: int) -> float:
    place = -(-count // BIN)
    return factors[min(factors, key=lambda known: abs(known - place))] if factors else 1.0


def _ties(
    real: Recording,
    rows: Sequence[int],
    first: Sequence[float],
    last: Sequence[float],
    ends: dict[int, int],
) -> tuple[int, int]:
    """Requests whose first tokens came in one step finish as many steps apart as their
    lengths say.
    """
    together: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        together[round(first[row] * 1e5)].append(int(real.output_tokens[row]) + ends[row])
    differences = [value - group[0] for group in together.values() for value in group[1:]]
    return len(differences), sum(difference == 0 for difference in differences)


def drain_markdown(drains: dict[str, tuple[Drain, Price]]) -> str:
    """A line for each range of batch sizes; ends in a line feed."""
    heads = " | ".join(f"{name}, ms | {name}, %" for name in drains)
    lines = [
        f"| sequences | steps | recorded, ms | {heads} |",
        "| --- |" + " ---: |" * (2 + 2 * len(drains)),
    ]
    for low, high in RANGES:
        cells: list[str] = []
        for drain, price in drains.values():
            gaps = [gap for gap in drain.gaps if low <= len(gap.contexts) <= high]
            steps = sum(gap.steps for gap in gaps)
            if not steps:
                break
            recorded = sum(gap.us for gap in gaps) / steps / 1e3
            priced = sum(price(gap.contexts) * gap.steps for gap in gaps) / steps / 1e3
            cells += [str(steps), f"{recorded:.2f}"] if not cells else []
            cells += [f"{priced:.2f}", f"{100 * (priced / recorded - 1):+.2f}"]
        if cells:
            most = max(len(gap.contexts) for drain, _ in drains.values() for gap in drain.gaps)
            lines.append(f"| {low} to {min(high, most)} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_notes(drains)]) + "\n"


def _notes(drains: dict[str, tuple[Drain, Price]]) -> Iterator[str]:
    for name, (drain, _) in drains.items():
        yield (
            f"- {name}: {drain.ties_held} of {drain.ties} counts of steps that the log ties "
            "together hold."
        )


def main() -> int:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("log", type=Path)
    arguments, run_arguments = parser.parse_known_args()
    try:
        price = step_price(replace(checked_options(run_arguments), output=None, run_dir=None))
        print(
            drain_markdown(
                {"simulated": (read_drain(read_recording(arguments.log), price), price)}
            ),
            end="",
        )
    except LlmsimError as error:
        print(f"drain: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
