"""Fits the constants of collectives on AMD's cards to published times, and tests them.

usage: python evaluation/amd_collectives.py [--write]

evaluation/amd_collectives.json has the published times and their sources. Every second size is for
the fit, the others for the test. `--write` fits and writes llmsim/presets/collectives/mi300x.json.
The errors are printed as docs/explanation/collectives.md has them.
"""

import json
import sys
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evaluation.nccl_constants import CUSTOM_BELOW_BYTES, Floats, Points, Shape, digits, fitted
from llmsim.cli.arguments import OneSentenceParser
from llmsim.costs.nccl.constants import FOLDER, measured_machine
from llmsim.costs.nccl.plans import Place, choose, choose_vllm, plans
from llmsim.costs.nccl.protocols import ONE_SHOT, PHASES, TWO_SHOT, Machine, Protocol

SYSTEM = "mi300x"
PUBLISHED = Path(__file__).with_suffix(".json")
LINK_GB_PER_S, PAIR_LINKS = 448.0, 7
FASTER_LINKS = 1.2
"""Links of MI350X and MI355X over those of MI300X."""
WIRE_OF_INT4, WIRE_OF_INT3 = 9 / 32, 7 / 32
"""Bytes sent for one of the vector: blocks of 32 numbers with a scale in 16 bits."""
FP4_OVER_RCCL = 1.52
"""Of 1 GB among eight MI355X (ROCm blog quick-reduce-2), where FP4 is as fast as INT4."""
MOST_OF_BUS = {"LL": 4 / 8, "LL128": 120 / 128, "Simple": 1.1}
"""Of the largest bus bandwidth, what a protocol can reach: what is data of its messages."""
FITTED_FROM = {"float16": 512 << 10, "bfloat16": 2 << 20}
"""Half of the smallest vectors that vLLM takes, or less."""
Rows = dict[int, tuple[Floats, Floats]]


def main() -> None:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="Fits and writes the constants.")
    if parser.parse_args().write:
        text = json.dumps(fitted_file(), indent=1) + "\n"
        (FOLDER / f"{SYSTEM}.json").write_text(text)
        measured_machine.cache_clear()
    print(errors_table())
    print()
    print(between_servers())


@cache
def published(kind: str, kernel: str = "") -> dict[str, Any]:
    """The published rows of a kind by number of ranks (strings), of one kernel's type."""
    found: dict[str, Any] = json.loads(PUBLISHED.read_text())[kind]
    return found[kernel] if kernel else {n: rows for n, rows in found.items() if n != "source"}


class Published(Points):
    """Published times, of whose sizes every second one is for the fit, rank by rank."""

    def _part(self, ranks: int, *, held_out: bool) -> tuple[Floats, Floats]:
        sizes, times = self.rows[ranks]
        return sizes[held_out::2], times[held_out::2]


def rows_of(rows: dict[str, Any], *, from_bytes: float = 0.0, below: float = inf) -> Rows:
    """(bytes, microseconds) by number of ranks, of sizes in a range."""
    found = {}
    for ranks, pairs in rows.items():
        sizes, times = np.array(pairs, float).T
        kept = (sizes >= from_bytes) & (sizes < below)
        found[int(ranks)] = (sizes[kept], times[kept])
    return found


def fitted_file() -> dict[str, Any]:
    """The constants of the MI300X, as llmsim/presets/collectives has those of measured machines."""
    ring = _ring()
    custom = _custom() + ring
    kinds = {kind: [_row(one) for one in ring] for kind in PHASES}
    bus = dict(ring[-1].gb_per_s)[8]
    quick = {kernel: _quick(kernel, bus) for kernel in ("float16", "bfloat16")}
    return {
        "source": "evaluation/amd_collectives.py on every second size that was published",
        "link_gb_per_s": LINK_GB_PER_S,
        "pair_links": PAIR_LINKS,
        "nccl": kinds,
        "vllm_all_reduce": {"protocols": [_row(one) for one in custom]},
        "quick_reduce": {
            kernel: [_row(one) for one in protocols] for kernel, protocols in quick.items()
        },
    }


def _ring() -> tuple[Protocol, ...]:
    """RCCL's protocols among eight. Rings among fewer have the links between their pairs, which
    large vectors of vLLM's kernel show; messages take as long as NVLink's.
    """
    points = Published(rows_of(published("rccl_all_reduce")))
    best = points.bus_gb_per_s("all_reduce", 8)
    starts = {"LL": [0.2 * best], "LL128": [0.5 * best], "Simple": [best, 3 * best, 1.0]}
    shapes = [
        Shape(name, [4.0, 0.7, *start], (8,), most_gb_per_s=best * MOST_OF_BUS[name])
        for name, start in starts.items()
    ]
    nvlink = measured_machine("h100_sxm")
    protocols = []
    found = fitted("all_reduce", points, shapes)
    parts = _bus_parts(found[-1].gb_per_s[0][1])
    for one in found:
        known = nvlink.protocol("all_reduce", one.name)
        assert known is not None
        floor = one.floor_us + (one.step_us - known.step_us) * 14  # of 8 ranks: the sum is measured
        rates = tuple((n, digits(one.gb_per_s[0][1] * part)) for n, part in parts.items())
        protocols.append(
            replace(one, floor_us=digits(max(floor, 0.1)), step_us=known.step_us, gb_per_s=rates)
        )
    return tuple(protocols)


def _bus_parts(eight: float) -> dict[int, float]:
    """Bus among so many ranks, over that among eight: of two and four from the largest vectors, of
    others by links that carry what each does among four.
    """
    large = {n: _largest_bus(published("vllm_custom")[str(n)], n) for n in (2, 4)}
    others = {n: (n - 1) * large[4] / 3 for n in (3, 5, 6, 7)}
    return dict(sorted({n: bus / eight for n, bus in (large | others).items()}.items())) | {8: 1.0}


def _largest_bus(rows: list[list[float]], ranks: int) -> float:
    sizes, times = np.array(rows, float).T
    return float((2 * (ranks - 1) / ranks * sizes / times).max() / 1e3)


def _custom() -> tuple[Protocol, ...]:
    """vLLM's custom all-reduce; the times among eight are of cards with faster links."""
    points = Published(rows_of(published("vllm_custom"), below=CUSTOM_BELOW_BYTES))
    shapes = [
        Shape(
            name, [5.0, 0.2, 48.0, 110.0, 150.0], (2, 4, 8), below_bytes=CUSTOM_BELOW_BYTES,
            most_ranks=8,
        )
        for name in (ONE_SHOT, TWO_SHOT)
    ]  # fmt: skip

    def here(one: Protocol) -> Protocol:
        rates = tuple(
            (n, digits(rate / FASTER_LINKS) if n == 8 else rate) for n, rate in one.gb_per_s
        )
        return replace(one, gb_per_s=rates)

    return tuple(here(one) for one in fitted("all_reduce", points, shapes))


def _quick(kernel: str, bus: float) -> list[Protocol]:
    """The quick all-reduce with each quantisation: one floor, and a rate for each number of ranks.

    Among eight: without quantisation the bus, INT4 by AMD's factor over RCCL, INT8 and INT6 by
    their rates among four. INT3 sends fewer bytes than INT4 and is as fast otherwise.
    """
    half = kernel == "float16"
    names = list(published("quick_reduce", kernel)["4"])
    found = {name: _codec(kernel, name) for name in names}
    int4 = dict((found["INT4"] if half else _codec("float16", "INT4")).gb_per_s)
    gibibyte = dict(published("rccl_all_reduce")["8"])[1 << 30]
    eight = FP4_OVER_RCCL * PHASES["all_reduce"] * 7 / 8 * (1 << 30) / gibibyte / 1e3
    protocols = []
    for name, one in found.items():
        rates = dict(one.gb_per_s)
        if not half:
            rates = {2: dict(_codec("float16", name).gb_per_s)[2]} | rates
        rates[8] = bus if name == "FP" else eight * rates[4] / int4[4]
        protocols.append(_with_rates(one, rates))
    last = protocols[-1]
    faster = WIRE_OF_INT4 / WIRE_OF_INT3
    two = {2: dict(last.gb_per_s)[2] * faster}
    return [*protocols, replace(_with_rates(last, two), name="INT3", most_ranks=2)]


def _with_rates(one: Protocol, rates: dict[int, float]) -> Protocol:
    return replace(one, gb_per_s=tuple((n, digits(rate)) for n, rate in sorted(rates.items())))


@cache
def _codec(kernel: str, name: str) -> Protocol:
    """What one quantisation takes, fitted on sizes from which vLLM may take it."""
    rows = {n: by_name[name] for n, by_name in published("quick_reduce", kernel).items()}
    points = Published(rows_of(rows, from_bytes=FITTED_FROM[kernel]))
    floor = 10.0 if kernel == "float16" else 60.0  # conversions of bfloat16 are not instructions
    start = [floor, 1e-6, *(100.0 for _ in points.ranks)]
    (one,) = fitted("all_reduce", points, [Shape(name, start, tuple(points.ranks))])
    return replace(one, step_us=0.0)


def _row(protocol: Protocol) -> dict[str, object]:
    fields = asdict(protocol) | {"gb_per_s": {str(n): rate for n, rate in protocol.gb_per_s}}
    return {name: value for name, value in fields.items() if value != inf}


def errors_of() -> dict[str, tuple[Floats, Floats]]:
    """(sizes, relative errors on held-out sizes) of what was published, by what it is."""
    machine = measured_machine(SYSTEM)
    found = {}
    points = Published(rows_of(published("rccl_all_reduce")))
    sizes, times = points.held_out(8)
    told = choose(machine, "all_reduce", sizes, Place(8, 1, 8)).us
    found["RCCL, 8 MI300X"] = (sizes, told / times - 1)
    custom = Published(rows_of(published("vllm_custom"), below=CUSTOM_BELOW_BYTES))
    for n in custom.ranks:
        sizes, times = custom.held_out(n)
        card, here = ("MI355X", machine.scaled(LINK_GB_PER_S * FASTER_LINKS, "")) if n == 8 else (
            "MI300X", machine,
        )  # fmt: skip
        told = choose_vllm(here, sizes, n, eager=False).us
        found[f"vLLM custom, {n} {card}"] = (sizes, told / times - 1)
    for kernel in machine.quick:
        for n, by_name in published("quick_reduce", kernel).items():
            for name, pairs in by_name.items():
                quick = Published(rows_of({n: pairs}, from_bytes=FITTED_FROM[kernel]))
                sizes, times = quick.held_out(int(n))
                protocol = next(one for one in machine.quick[kernel] if one.name == name)
                errors = protocol.us("all_reduce", sizes, int(n)) / times - 1
                found[f"quick {name}, {n} MI300X, {kernel}"] = (sizes, errors)
    return found


def errors_table() -> str:
    """The errors on held-out sizes in per cent, as Markdown."""
    lines = ["| what | sizes | median of the amounts | from | to |", "|" + " --- |" * 5]
    for name, (sizes, errors) in errors_of().items():
        per_cent = errors * 100
        cells = (np.median(np.abs(per_cent)), per_cent.min(), per_cent.max())
        shown = " | ".join(f"{cell:.1f}" for cell in cells)
        lines.append(f"| {name} | {len(sizes)} | {shown} |")
    return "\n".join(lines)


BETWEEN = (
    ("all_reduce", 1.0, 2, 1 << 30, 340.8),
    ("all_reduce", 1.0, 2, 1 << 33, 356.1),
    ("all_reduce", 1.0, 4, 1 << 33, 349.9),
    ("all_reduce", 1.0, 8, 1 << 33, 350.0),
    ("all_reduce", FASTER_LINKS, 2, 1 << 30, 364.4),
    ("all_reduce", FASTER_LINKS, 2, 1 << 33, 369.0),
    ("all_gather", FASTER_LINKS, 2, 1 << 33, 380.0),
    ("reduce_scatter", FASTER_LINKS, 2, 1 << 33, 400.0),
)
"""(collective, links over MI300X's, servers of eight, bytes, published bus GB/s)."""


def between_servers() -> str:
    """Bus bandwidths over servers of eight with eight cards of 400 Gb/s, as Markdown."""
    machine = measured_machine(SYSTEM)
    lines = ["| collective | card | servers | GiB | bus GB/s | published |", "|" + " --- |" * 6]
    for kind, faster, servers, size, known in BETWEEN:
        place = Place(servers * 8, servers, 8, 50.0, 2.0)
        times = plans(_scaled(machine, faster), kind, np.array([float(size)]), place)
        us = min(float(one[0]) for one in times.values())
        bus = PHASES[kind] * (place.ranks - 1) / place.ranks * size / us / 1e3
        card = "MI300X" if faster == 1.0 else "MI355X"
        lines.append(f"| {kind} | {card} | {servers} | {size >> 30} | {bus:.0f} | {known:.0f} |")
    return "\n".join(lines)


def _scaled(machine: Machine, faster: float) -> Machine:
    return machine.scaled(LINK_GB_PER_S * faster, "faster links")


if __name__ == "__main__":
    main()
