"""Figure 13 of the Frontier paper: throughput over speed for a user, by architecture, 256 H800.

usage: python evaluation/figure_13.py [--points 10000] [--jobs 0] [--journal FILE] [--brute 500]
                                      [--plot FILE] [--afd P:A:F ...] [--pd P:D ...]

Llama-3.3-70B (the shape of 3.1) on 256 GPUs: colocated, with prefill and decode apart (pd), or with
prefill, attention and FFN of decodes apart (afd). Attention and FFN servers of an afd plan run
their layers together, over the servers' network cards of 50 GB/s for each GPU (400 Gb/s, as in the
paper); rows are shared out, so that each crosses once. Every candidate passes the static filters;
`--points` of the others are drawn, the same number of each architecture where it has as many, and
run with 250, 1,000 and 2,000 requests. The paper prints neither its lengths nor the sizes of A and
F instances nor their lanes; the order of the architectures is compared, not the digits. `--brute N`
runs N drawn points with all requests and compares the front of successive halving with theirs.
`--afd 15:10:7` searches nothing: it prints the capacity of that split, in servers of prefill, of
attention and of FFN; `--pd 14:18` that of servers of prefill and of decode.
"""

import atexit
import itertools
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser
from llmsim.lowering import LoweringOptions
from llmsim.sizing.bounds import Pruned
from llmsim.sizing.capacity import capacity
from llmsim.sizing.frontier import (
    PERCENTILE,
    Frontier,
    Point,
    Seen,
    counts_text,
    explore,
    sampled,
    static_filter,
)
from llmsim.sizing.load import RATE, Load
from llmsim.sizing.measure import Bench
from llmsim.sizing.plan import Plan, Pool, Shape
from llmsim.sizing.shapes import afd_shapes
from llmsim.sizing.targets import Targets
from llmsim.sizing.workers.workers import Workers

MODEL = "meta-llama/Llama-3.1-70B"  # the shape of Llama-3.3-70B
DEVICE = str(Path(__file__).resolve().parent / "figures" / "h800_sxm.json")
GPUS, PER_NODE = 256, 8
SHAPES = tuple(Shape(tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4) if tp * pp <= 8)
TP = tuple(Shape(tp) for tp in (1, 2, 4, 8))
SPLIT_STEP = 8
SERVERS = GPUS // PER_NODE
RATIOS = ((2, 1), (10, 7), (1, 1), (4, 5))
"""Servers of attention to those of FFN that are tried, the paper's 80:56 among them."""
PROMPTS = (10, 12, 13, 14, 15, 16)
"""Servers of prefill that are tried beside them; the paper has 15 of 32."""
LANES = (1, 2)
SEQUENCES = (32, 64, 128, 256)
BUDGETS = (2048, 4096, 8192)
RATES = tuple(round(2 * 1.115**i, 3) for i in range(64))
LOAD = Load(RATE, 1.0, "lognormal:1000", "lognormal:300", seed=13)
TTFT_MS = (3000.0, 500.0)
SPEED = 50.0
ARCHITECTURES = ("colocated", "pd", "afd")
STEADY = 4
"""Plans of each architecture that are driven to their capacity."""
PAPER = {3000.0: "PDD 137.4k, AFD 116.2k, colocated 27.7k", 500.0: "AFD 116.2k, PDD 100.7k"}


def plans() -> Iterator[Plan]:
    """Every layout, split and batching limit of 256 GPUs."""
    for seqs, budget in itertools.product(SEQUENCES, BUDGETS):
        engine = (("max_num_batched_tokens", budget), ("max_num_seqs", seqs))
        for shape in SHAPES:
            yield Plan(MODEL, DEVICE, (Pool(shape, GPUS // shape.devices),), engine)
        for one, other in itertools.product(TP, TP):
            for prefill in range(SPLIT_STEP, GPUS, SPLIT_STEP):
                counts = prefill // one.devices, (GPUS - prefill) // other.devices
                pools = (Pool(one, counts[0], "prefill"), Pool(other, counts[1], "decode"))
                yield Plan(MODEL, DEVICE, pools, engine)
        for one, (prompts, unit) in itertools.product(TP, apart()):
            pools = (Pool(one, prompts * PER_NODE // one.devices, "prefill"), unit)
            yield Plan(MODEL, DEVICE, pools, engine)


def apart() -> Iterator[tuple[int, Pool]]:
    """Servers of prefill, and the others with attention and FFN apart, all of one afd_group."""
    for prompts, (attends, serves) in itertools.product(PROMPTS, RATIOS):
        others = SERVERS - prompts
        attention = round(others * attends / (attends + serves))
        for shape in afd_shapes(MODEL, PER_NODE, (attention,), (others - attention,), LANES):
            if shape.tp == shape.ffn == PER_NODE and (shape.dp > 1 or shape.sequence_parallel):
                yield prompts, Pool(shape, 1, "decode")


def candidates() -> Iterator[Point]:
    """Every plan at every rate."""
    for plan in plans():
        for rate in RATES:
            yield Point(plan, rate)


def report(found: Frontier) -> str:
    """The best point of each architecture within each limit."""
    lines = []
    for limit in TTFT_MS:
        lines.append(f"p95 TTFT <= {limit:g} ms, at least {SPEED:g} tok/s for a user:")
        for architecture in ARCHITECTURES:
            best = found.best(limit, SPEED, architecture)
            lines.append(f"  {architecture:10} {_shown(best)}")
        lines.append(f"  the paper: {PAPER[limit]}")
    return "\n".join(lines)


def _shown(best: Seen | None) -> str:
    if best is None:
        return "nothing"
    plan = best.point.plan
    options = ", ".join(f"{name} {value}" for name, value in plan.engine)
    return (
        f"{best.output_tok_s / 1000:7.1f}k output tok/s, TTFT {best.ttft_ms:.0f} ms, "
        f"{best.speed:.0f} tok/s/user: {plan.label}, {options}, {best.point.rate:g}/s"
    )


def steady(found: Frontier, workers: Workers) -> str:
    """The best of each architecture again, with as many requests as a steady state needs.

    With 2,000 requests, seconds of high rates are mostly beginning and end. The plans that took the
    highest rates are driven to their capacity with requests for three lifetimes each.
    """
    lines = ["Capacity of the best plans in a steady state (requests for three lifetimes):"]
    _, outputs = LOAD.lengths(2000)
    for limit, architecture in itertools.product(TTFT_MS, ARCHITECTURES):
        targets = Targets((("ttft", limit), ("tpot", 1000 / SPEED)), PERCENTILE)
        # What meets a tighter limit meets this one, and may sustain more.
        tighter = [one for one in TTFT_MS if one <= limit]
        best = [one for ttft in tighter for one in _busiest(found, ttft, architecture)]
        rates = {one.point.plan: one.point.rate for one in reversed(best)}
        tasks = [(plan, targets, rate / 4) for plan, rate in rates.items()]
        if not tasks:
            lines.append(f"  TTFT {limit:g}, {architecture}: nothing")
            continue
        levels = list(workers.map("figure_13:sustained", tasks))
        level, plan = max(zip(levels, rates, strict=True), key=lambda one: one[0])
        tokens = level * float(outputs.mean()) / 1000
        lines.append(
            f"  TTFT {limit:g}, {architecture}: {tokens:.1f}k output tok/s at {level:.1f}/s, "
            f"{plan.label}"
        )
    return "\n".join(lines)


def _busiest(found: Frontier, ttft_ms: float, architecture: str) -> list[Seen]:
    """The plans that took the highest rates within a TTFT, each once."""
    able = [
        one
        for one in found.finalists
        if one.point.plan.architecture == architecture
        and one.ttft_ms <= ttft_ms
        and one.speed >= SPEED
    ]
    able.sort(key=lambda one: -one.point.rate)
    of_plans = {one.point.plan: one for one in reversed(able)}
    return sorted(of_plans.values(), key=lambda one: -one.point.rate)[:STEADY]


def sustained(bench: Bench, task: tuple[Plan, Targets, float]) -> float:
    """The highest rate of a plan within targets; 0 where it has none."""
    plan, targets, start = task
    return capacity(bench, plan, LOAD, targets, start, precision=0.03).level


def split_plan(split: str) -> Plan:
    """Servers of prefill (TP2), and of decode (TP8) or of attention and FFN (TP8 each)."""
    prompts, *others = map(int, split.split(":"))
    if len(others) == 1:
        answers, seqs = Pool(Shape(8), others[0], "decode"), 256
    else:
        attention, serves = others
        unit = Shape(8, ffn=8, attentions=attention, ffns=serves, sequence_parallel=True)
        answers, seqs = Pool(unit, 1, "decode"), 512
    engine = (("max_num_batched_tokens", 4096), ("max_num_seqs", seqs))
    return Plan(MODEL, DEVICE, (Pool(Shape(2), prompts * 4, "prefill"), answers), engine)


def splits(given: list[str], jobs: int) -> Iterator[str]:
    """The capacity of plans by hand, from 200 requests per second on."""
    outputs = LOAD.lengths(2000)[1]
    with Workers(jobs, LoweringOptions(collectives="links")) as workers:
        for split, limit in itertools.product(given, TTFT_MS):
            plan = split_plan(split)
            targets = Targets((("ttft", limit), ("tpot", 1000 / SPEED)), PERCENTILE)
            (rate,) = workers.map("figure_13:sustained", [(plan, targets, 200.0)])
            tokens = rate * float(outputs.mean()) / 1000
            yield f"{split}, TTFT {limit:g} ms: {rate:.0f}/s, {tokens:.1f}k output tok/s"


def brute(points: list[Point], workers: Workers) -> str:
    """Whether the front of successive halving is that of running every point whole."""
    halved = explore(points, LOAD, workers, ttft_ms=TTFT_MS, least_speed=SPEED)
    whole = explore(
        points, LOAD, workers, ttft_ms=TTFT_MS, least_speed=SPEED, rungs=(2000,), in_waves=False
    )
    lines = [f"{len(points)} points with all requests against successive halving:"]
    for limit, architecture in itertools.product(TTFT_MS, ARCHITECTURES):
        fronts = [
            {one.point.key for one in found.front(limit, architecture) if one.speed >= SPEED}
            for found in (whole, halved)
        ]
        same = "equal" if fronts[0] == fronts[1] else "different"
        lines.append(f"  TTFT {limit:g}, {architecture}: {len(fronts[0])} points, {same}")
    return "\n".join(lines)


def plot(found: Frontier, path: Path) -> None:
    """Two panels as in the paper."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, limit in zip(figure.subplots(1, 2), TTFT_MS, strict=True):
        for architecture in ARCHITECTURES:
            front = found.front(limit, architecture)
            axes.plot(
                [one.speed for one in front],
                [one.output_tok_s / 1000 for one in front],
                marker=".",
                label=architecture,
            )
        axes.axvline(SPEED, linestyle="--", color="grey")
        axes.set_title(f"p95 TTFT <= {limit:g} ms")
        axes.set_xlabel("tok/s for a user (1 / p95 TPOT)")
        axes.set_ylabel("1,000 output tok/s")
        axes.legend()
    figure.savefig(path, dpi=150)


def cpu_s() -> float:
    """CPU seconds of this process and those that it waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usages)


def main() -> None:
    """Filters, draws, runs, and prints."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10_000, help="points that are run")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one per processor")
    parser.add_argument("--journal", type=Path, help="keeps answers, so that a run goes on")
    parser.add_argument("--brute", type=int, default=0, help="points of the comparison")
    parser.add_argument("--plot", type=Path, help="writes the two panels")
    parser.add_argument("--afd", nargs="*", default=[], help="splits whose capacity is printed")
    parser.add_argument("--pd", nargs="*", default=[], help="the same of prefill and decode")
    given = parser.parse_args()
    if given.afd or given.pd:
        for line in splits([*given.pd, *given.afd], given.jobs):
            print(line, flush=True)
        return
    start = time.monotonic()
    # Behind the end of the process that workers are forked from, which has waited for them.
    atexit.register(lambda: print(f"{cpu_s():.0f} CPU s, {time.monotonic() - start:.0f} s"))
    options = LoweringOptions(collectives="links")
    kept, static = unpruned()
    print(counts_text(static), flush=True)
    print(f"{cpu_s():.0f} CPU s for the static filters", flush=True)
    with Workers(given.jobs, options) as workers:
        found = explore(
            drawn(kept, given.points),
            LOAD,
            workers,
            ttft_ms=TTFT_MS,
            least_speed=SPEED,
            journal=given.journal,
        )
        print(counts_text(found), flush=True)
        print(report(found), flush=True)
        print(steady(found, workers), flush=True)
        if given.brute:
            print(brute(drawn(kept, given.brute, 500), workers), flush=True)
    if given.plot:
        plot(found, given.plot)


def drawn(kept: list[Point], count: int, seed: int = 13) -> list[Point]:
    """Points of every architecture, as many of each; of one that has fewer, all."""
    of = {name: [one for one in kept if one.plan.architecture == name] for name in ARCHITECTURES}
    found: list[Point] = []
    names = sorted(ARCHITECTURES, key=lambda name: len(of[name]))
    for left, name in zip(range(len(names), 0, -1), names, strict=True):
        found += sampled(of[name], (count - len(found)) // left, seed)
    return found


def unpruned() -> tuple[list[Point], Frontier]:
    """The candidates that nothing rules out, and the counts of the others."""
    found = Frontier(TTFT_MS, pruned=Pruned())
    kept = static_filter(candidates(), LOAD, found, least_speed=SPEED)
    return kept, found


if __name__ == "__main__":
    main()
