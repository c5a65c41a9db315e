"""Fits the constants of NCCL's protocols on half of the measured sizes, and tests them on the
others.

usage: python evaluation/nccl_constants.py [--write]

Every second size of every table of aiconfigurator-core is for the fit, the others for the test.
`--write` fits and writes llmsim/presets/collectives. The errors of the written constants are
printed as docs/explanation/collectives.md has them.
"""

import json
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from llmsim.cli.arguments import OneSentenceParser
from llmsim.costs.nccl.constants import FOLDER, measured_machine
from llmsim.costs.nccl.plans import Place, plans
from llmsim.costs.nccl.protocols import (
    MULTIMEM,
    NVLS,
    ONE_SHOT,
    PHASES,
    TWO_SHOT,
    Machine,
    Protocol,
    fastest,
    protocol_times,
)
from llmsim.costs.sources.silicon.collectives import measured_times
from llmsim.costs.sources.silicon.database import database_of
from llmsim.model import load_hardware

Floats = NDArray[np.float64]

CARDS = {
    "a100_sxm": "A100-80GB-SXM",
    "h100_sxm": "H100",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX-PRO-6000",
}
"""Folder of the database -> a name of the data sheet."""
WITHOUT_SWITCH = ("l40s", "rtx_pro_6000_server")
"""Their rings cross PCIe switches and sockets, so that rates differ by the number of ranks."""
HOPPER, BLACKWELL = ("h100_sxm", "h200_sxm"), ("b200_sxm", "b300_sxm", "gb200", "gb300")
REDUCING_SWITCH = dict.fromkeys(HOPPER, 8) | dict.fromkeys(BLACKWELL, 4)
"""The fewest ranks that NVLS serves better than a ring does (NVIDIA/nccl#1455 for H100)."""
RING_LIMIT_GB_PER_S = dict.fromkeys(HOPPER, 370.0)
"""What NVLink 4 gives a ring after protocols (NVIDIA/nccl-tests#212, NVIDIA/nccl#1455)."""
CUSTOM_BELOW_BYTES = 8 << 20
"""vLLM's own all-reduce takes smaller vectors, on NVLink among all, on PCIe between two."""
MULTIMEM_BELOW_BYTES = 128 << 20
"""vLLM reduces smaller vectors in symmetric memory among six and eight Blackwell GPUs."""
HOST_GPUS = {"gb200": 4, "gb300": 4}
"""vLLM's custom all-reduce stays on one host: a tray of NVL72 has four."""
COUNTS = (2, 4, 8, 16)
"""Numbers of ranks that tables may have."""
SHARPNESS = 30.0
"""Of the smooth minimum over protocols, which the fit differentiates."""
STARTS = 6
NCCL = {"LL": (0.2, 4.0, 0.6), "LL128": (0.8, 6.0, 1.0), "Simple": (1.0, 9.0, 1.5)}
"""Where the fit begins: share of the largest bus bandwidth, floor (us), step (us)."""


class Points:
    """Measured times (us) of one kind of collective by size (bytes) and number of ranks."""

    def __init__(self, rows: dict[int, tuple[Floats, Floats]]) -> None:
        self.ranks = sorted(rows)
        self.rows = rows
        sizes = np.unique(np.concatenate([sizes for sizes, _ in rows.values()]))
        self.fitted_sizes = sizes[::2]

    def fitted(self, ranks: int) -> tuple[Floats, Floats]:
        """(sizes, times) that the constants are fitted on."""
        return self._part(ranks, held_out=False)

    def held_out(self, ranks: int) -> tuple[Floats, Floats]:
        """(sizes, times) that the constants are tested on."""
        return self._part(ranks, held_out=True)

    def _part(self, ranks: int, *, held_out: bool) -> tuple[Floats, Floats]:
        sizes, times = self.rows[ranks]
        keep = np.isin(sizes, self.fitted_sizes) != held_out
        return sizes[keep], times[keep]

    def bus_gb_per_s(self, kind: str, ranks: int) -> float:
        """The largest bus bandwidth among so many ranks."""
        sizes, times = self.rows[ranks]
        return float((PHASES[kind] * (ranks - 1) / ranks * sizes / times).max() / 1e3)


def main() -> None:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="Fits and writes the constants.")
    if parser.parse_args().write:
        FOLDER.mkdir(exist_ok=True)
        for system in CARDS:
            text = json.dumps(_as_json(fitted_machine(system)), indent=1) + "\n"
            (FOLDER / f"{system}.json").write_text(text)
            print(f"wrote {system}", file=sys.stderr)
        measured_machine.cache_clear()
    print(errors_table())
    print(between_servers())


def fitted_machine(system: str) -> Machine:
    """Constants of one machine from the fitted sizes."""
    sheet = load_hardware(CARDS[system])
    assert sheet is not None
    kinds = {
        kind: fitted(kind, points, _shapes(kind, points, system))
        for kind, points in nccl_points(system).items()
    }
    graph, eager = vllm_points(system)
    protocols = fitted("all_reduce", graph, _custom_shapes(graph, system))
    eager_constants = _fitted_eager(protocols, eager)
    link = sheet.intra_node_link_bytes_per_s / 1e9
    return Machine(system, link, kinds, protocols, *eager_constants)


def nccl_points(system: str) -> dict[str, Points]:
    """NCCL's measured times by kind of collective."""
    return {kind: Points(measured_collectives(system, kind)) for kind in PHASES}


def vllm_points(system: str) -> tuple[Points, Points]:
    """Measured times of vLLM's all-reduce: in a CUDA graph, and outside."""
    graph, eager = (
        Points(measured_collectives(system, f"vllm_{mode}")) for mode in ("graph", "eager")
    )
    return graph, eager


def measured_collectives(system: str, name: str) -> dict[int, tuple[Floats, Floats]]:
    """(bytes, microseconds) of a collective by the number of ranks."""
    database = database_of(system)
    assert database is not None, "aiconfigurator-core is not installed"
    found = {n: measured_times(database, name, n) for n in COUNTS}
    return {n: (rows[1], rows[2]) for n, rows in found.items() if rows is not None}


class Shape:
    """One protocol with its constants open; all of them are fitted by their logarithms."""

    def __init__(
        self,
        name: str,
        start: list[float],
        ranks: tuple[int, ...],
        most_gb_per_s: float = inf,
        **fixed: float,
    ) -> None:
        self.name, self.start, self.ranks, self.fixed = name, start, ranks, fixed
        self.most_gb_per_s = most_gb_per_s

    def bounds(self) -> tuple[Floats, Floats]:
        """The least and largest logarithms of the constants."""
        logs, spread = np.log(self.start), self._spread()
        most = logs + spread
        rates = slice(2, 2 + len(self.ranks))
        most[rates] = np.minimum(most[rates], np.log(self.most_gb_per_s))
        return logs - spread, most

    def _spread(self) -> Floats:
        """How far (in logarithms) each constant may move from its start."""
        known = self.name in ("Simple", NVLS) and len(self.ranks) == 1
        near = [1.2, 2.5, *[0.3 if known else 3.0 for _ in self.ranks]]
        return np.array(near + [2.0, 2.5] * (len(self.start) > len(near)))

    def made(self, values: Floats) -> Protocol:
        """The protocol with these constants: floor, step, rates, then copy rate and fill."""
        count = len(self.ranks)
        rates = tuple(zip(self.ranks, map(float, values[2 : 2 + count]), strict=True))
        rest = [float(one) for one in values[2 + count :]]
        copy, fill = rest if rest else (inf, 0.0)
        steps = 0.0 if self.name in (NVLS, MULTIMEM) else float(values[1])
        fixed: dict[str, Any] = self.fixed
        return Protocol(self.name, float(values[0]), steps, rates, copy, fill, **fixed)


def _shapes(kind: str, points: Points, system: str) -> list[Shape]:
    """NCCL's protocols, each with a rate for each number of ranks where no switch joins them."""
    by_ranks = tuple(points.ranks) if system in WITHOUT_SWITCH else (max(points.ranks),)
    reducing = REDUCING_SWITCH.get(system) if kind == "all_reduce" else None
    ring = [n for n in points.ranks if reducing is None or n < reducing]
    best = {
        n: points.bus_gb_per_s(kind, n if n in ring and len(by_ranks) > 1 else max(ring))
        for n in by_ranks
    }
    shapes = []
    for name, (share, floor, step) in NCCL.items():
        start = [floor, step, *(rate * share for rate in best.values())]
        if name == "Simple":
            start += [3 * max(best.values()), 1.0]
        most = RING_LIMIT_GB_PER_S.get(system, inf)
        shapes.append(Shape(name, start, by_ranks, most_gb_per_s=most))
    if reducing is not None and reducing in points.ranks:
        largest = max(points.ranks)
        rate = points.bus_gb_per_s(kind, largest) * 1.1
        start = [15.0, 1.0, rate, 1e5, 1.0]
        shapes.append(Shape(NVLS, start, (largest,), fewest_ranks=reducing))
    return shapes


def _custom_shapes(points: Points, system: str) -> list[Shape]:
    """vLLM's own kernels below their limit, and NCCL's protocols."""
    most = 2 if system in WITHOUT_SWITCH else min(max(points.ranks), HOST_GPUS.get(system, 8))
    small = {n: sizes_times for n, sizes_times in points.rows.items() if n <= most}
    best = Points(small).bus_gb_per_s("all_reduce", most)
    custom = [
        Shape(
            name, [4.0, 0.2, best * 0.8], (most,), below_bytes=CUSTOM_BELOW_BYTES, most_ranks=most
        )
        for name in (ONE_SHOT, TWO_SHOT)
    ]
    if most == 2:  # both are one thing between two
        custom = custom[:1]
    if system in BLACKWELL and max(points.ranks) >= 8:
        rate = points.bus_gb_per_s("all_reduce", 8)
        start, limits = [8.0, 1.0, rate], {"fewest_ranks": 6, "most_ranks": 8}
        custom.append(Shape(MULTIMEM, start, (8,), below_bytes=MULTIMEM_BELOW_BYTES, **limits))
    return custom + _shapes("all_reduce", points, system)


def fitted(kind: str, points: Points, shapes: list[Shape]) -> tuple[Protocol, ...]:
    """Least squares of the relative errors on the fitted sizes."""
    fitted = [(n, *points.fitted(n)) for n in points.ranks]
    ends = np.cumsum([len(shape.start) for shape in shapes])[:-1]

    def made(values: Floats) -> tuple[Protocol, ...]:
        parts = np.split(np.exp(values), ends)
        return tuple(shape.made(part) for shape, part in zip(shapes, parts, strict=True))

    def errors(values: Floats) -> Floats:
        protocols = made(values)
        found = [
            np.log(_soft_minimum(protocols, kind, sizes, n) / times) for n, sizes, times in fitted
        ]
        return np.concatenate(found)

    low, high = (np.concatenate(ends_) for ends_ in zip(*(s.bounds() for s in shapes), strict=True))
    best = _least(errors, low, high)
    return tuple(_rounded(one) for one in made(best))


def _least(errors: Callable[[Floats], Floats], low: Floats, high: Floats) -> Floats:
    """The best of several starts between the bounds, drawn with fixed seeds."""
    best = None
    for seed in range(STARTS):
        drawn = np.random.default_rng(seed).uniform(0.35, 0.65, len(low)) if seed else 0.5
        found = least_squares(
            errors, low + (high - low) * drawn, loss="soft_l1", f_scale=0.1, max_nfev=200,
            bounds=(low, high),
        )  # fmt: skip
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    return np.asarray(best.x)


def _soft_minimum(protocols: tuple[Protocol, ...], kind: str, sizes: Floats, ranks: int) -> Floats:
    times = protocol_times(protocols, kind, sizes, ranks)
    least = times.min(axis=0)
    return np.asarray(least * ((times / least) ** -SHARPNESS).sum(axis=0) ** (-1 / SHARPNESS))


def _fitted_eager(protocols: tuple[Protocol, ...], points: Points) -> tuple[float, float, float]:
    """(least time, what a launch adds, copy rate) outside of CUDA graphs."""
    fitted = [(n, *points.fitted(n)) for n in points.ranks]
    graph = [fastest(protocols, "all_reduce", sizes, n) for n, sizes, _ in fitted]

    def errors(values: Floats) -> Floats:
        floor, added, copy = np.exp(values)
        found = [
            np.log(np.maximum(floor, inside + added + sizes / copy / 1e3) / times)
            for inside, (_, sizes, times) in zip(graph, fitted, strict=True)
        ]
        return np.concatenate(found)

    start = np.log([float(np.median([times[0] for _, _, times in fitted])), 3.0, 1500.0])
    spread = np.array([1.0, 3.0, 4.0])
    floor, added, copy = np.exp(_least(errors, start - spread, start + spread))
    return digits(floor), digits(added), digits(copy)


def digits(value: float) -> float:
    """Four digits: more than the measurements have."""
    return float(f"{value:.4g}")


def _rounded(protocol: Protocol) -> Protocol:
    rates = tuple((n, digits(rate)) for n, rate in protocol.gb_per_s)
    return replace(
        protocol,
        floor_us=digits(protocol.floor_us),
        step_us=digits(protocol.step_us),
        gb_per_s=rates,
        copy_gb_per_s=digits(protocol.copy_gb_per_s),
        fill_us=digits(protocol.fill_us),
    )


def _as_json(machine: Machine) -> dict[str, object]:
    """The file of a machine; what is unlimited is left out."""

    def row(protocol: Protocol) -> dict[str, object]:
        fields = asdict(protocol) | {"gb_per_s": {str(n): rate for n, rate in protocol.gb_per_s}}
        return {name: value for name, value in fields.items() if value != inf}

    return {
        "source": "evaluation/nccl_constants.py on every second size that aiconfigurator-core has",
        "link_gb_per_s": machine.link_gb_per_s,
        "nccl": {kind: [row(one) for one in rows] for kind, rows in machine.kinds.items()},
        "vllm_all_reduce": {
            "protocols": [row(one) for one in machine.custom],
            "eager_floor_us": machine.eager_floor_us,
            "eager_us": machine.eager_us,
            "eager_copy_gb_per_s": machine.eager_copy_gb_per_s,
        },
    }


def held_out_errors(system: str) -> dict[str, Floats]:
    """Relative errors of the written constants on the held-out sizes, by kind."""
    machine = measured_machine(system)
    found = {}
    for kind, points in nccl_points(system).items():
        parts = []
        for n in points.ranks:
            sizes, times = points.held_out(n)
            parts.append(np.abs(fastest(machine.kinds[kind], kind, sizes, n) / times - 1))
        found[kind] = np.concatenate(parts)
    graph, eager = vllm_points(system)
    for name, points in (("vLLM, CUDA graph", graph), ("vLLM, eager", eager)):
        parts = []
        for n in points.ranks:
            sizes, times = points.held_out(n)
            told = fastest(machine.custom, "all_reduce", sizes, n)
            told = machine.eager(told, sizes) if points is eager else told
            parts.append(np.abs(told / times - 1))
        found[name] = np.concatenate(parts)
    return found


def errors_table() -> str:
    """Median and 90th percentile of the errors in per cent, by machine and kind, as Markdown."""
    by_system = {system: held_out_errors(system) for system in CARDS}
    kinds = list(next(iter(by_system.values())))
    lines = [f"| machine | {' | '.join(kinds)} |", "|" + " --- |" * (len(kinds) + 1)]
    for system, errors in by_system.items():
        lines.append(f"| {system} | {' | '.join(_cell(errors[kind]) for kind in kinds)} |")
    together = [np.concatenate([errors[kind] for errors in by_system.values()]) for kind in kinds]
    lines.append(f"| all | {' | '.join(_cell(one) for one in together)} |")
    return "\n".join(lines)


def between_servers() -> str:
    """Bus bandwidths of 1 GiB over servers of eight H100 with eight NDR rails, and of 128 MB over
    three of eight A100 with four HDR cards, as Markdown.
    """
    h100, a100 = measured_machine("h100_sxm"), measured_machine("a100_sxm")
    cases = [
        (kind, h100, 1 << 30, Place(servers * 8, servers, 8, 50.0, 2.0))
        for kind in ("all_reduce", "all_gather", "all_to_all")
        for servers in (1, 2, 8, 32)
    ]
    cases.append(("all_reduce", a100, 128 << 20, Place(24, 3, 8, 12.5, 2.0)))
    lines = ["| collective | machine | MiB | ranks | bus GB/s by plan, the fastest first |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for kind, machine, size, place in cases:
        factor = PHASES[kind] * (place.ranks - 1) / place.ranks
        times = plans(machine, kind, np.array([float(size)]), place)
        rates = {name: size / us[0] / 1e3 * factor for name, us in times.items()}
        ordered = sorted(rates.items(), key=lambda item: -item[1])[:3]
        cell = ", ".join(f"{name} {rate:.0f}" for name, rate in ordered)
        lines.append(f"| {kind} | {machine.name} | {size >> 20} | {place.ranks} | {cell} |")
    return "\n".join(lines)


def _cell(errors: Floats) -> str:
    return f"{np.median(errors) * 100:.1f}, {np.quantile(errors, 0.9) * 100:.1f}"


if __name__ == "__main__":
    main()
