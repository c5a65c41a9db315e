"""Bus bandwidths of a collective on a network, as nccl-tests prints them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmsim._native import engine
from llmsim.config.errors import InputError, nearest
from llmsim.config.topology.file import TopologySpec, network_of
from llmsim.core import Int64
from llmsim.costs.nccl.constants import machine_of
from llmsim.costs.nccl.plans import Place, choose_vllm, plans
from llmsim.costs.nccl.protocols import PHASES, Floats, Machine
from llmsim.costs.sources.silicon.collectives import measured_times
from llmsim.costs.sources.silicon.database import database_of
from llmsim.lowering.network.algorithms import KINDS, RING, described, parsed_algorithm
from llmsim.lowering.network.base import NETWORKS
from llmsim.lowering.network.nccl import alike_and_fast, servers_of
from llmsim.model import Hardware
from llmsim.model.hardware import data_sheet

VLLM = "vllm_all_reduce"
COLLECTIVES = (*PHASES, VLLM)
FEWEST_BYTES, MOST_BYTES = 1, 1 << 40
MOST_ROWS = 200
ENGINE_RING = "ring of the engine"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class BusRow:
    """One line of the table."""

    size_bytes: int
    time_us: float
    algbw_gb_per_s: float
    """The vector by the time."""
    busbw_gb_per_s: float
    """What crosses a device's links by the time: (n - 1) / n of the vector; of an all-reduce twice
    that.
    """
    plan: str
    measured_us: float | None = None
    measured_busbw_gb_per_s: float | None = None


@dataclass(frozen=True)
class BusTable:
    """The table of one collective on one network."""

    topology: str
    hardware: str | None
    collective: str
    devices: int
    servers: int
    model: str
    measured: str | None
    """The measured table beside it; None: there is none for these devices."""
    rows: list[BusRow] = field(default_factory=list)


@dataclass(frozen=True)
class BusRequest:
    """A network, a collective, its devices, and the sizes that nccl-tests' -b, -e and -f give."""

    topology: str
    collective: str = "all_reduce"
    devices: str | None = None
    hardware: str | None = None
    first_bytes: str = "1K"
    last_bytes: str = "1G"
    factor: int = 2
    plan: str | None = None
    algorithm: str | None = None


def bus_bandwidths(request: BusRequest) -> BusTable:
    """The table; InputError for a network, collective, device, size, plan or algorithm that
    cannot be.
    """
    kind = _kind(request.collective)
    spec = network_of(request.topology)
    group = _devices(request.devices, spec)
    native = spec.build(engine)
    name = request.hardware or spec.hardware or None
    try:
        hardware = None if name is None else data_sheet(name)
    except InputError as error:
        field_ = "--hardware" if request.hardware else f"{request.topology}: hardware"
        raise InputError(f"{field_}: {error}") from None
    sizes = _sizes(request)
    bench = _Bench(spec, native, group, hardware, _algorithm(request, kind))
    times = bench.plans(request.collective, kind, sizes)
    if request.plan is not None:
        times = _asked_plans(times, request.plan)
    stacked = np.array(list(times.values()))
    which = stacked.argmin(axis=0)
    us = stacked.min(axis=0)
    label, measured = bench.measured(request.collective, sizes)
    factor = PHASES[kind] * (len(group) - 1) / len(group)
    names = list(times)
    rows = [
        _row(size, float(time), names[plan], factor, measured.get(size))
        for size, time, plan in zip(sizes.tolist(), us, which.tolist(), strict=True)
    ]
    return BusTable(
        topology=spec.name,
        hardware=None if hardware is None else hardware.name,
        collective=request.collective,
        devices=len(group),
        servers=bench.place.nodes,
        model=bench.model,
        measured=label,
        rows=rows,
    )


class _Bench:
    """Devices of a network, and who knows what a collective among them takes."""

    def __init__(
        self,
        spec: TopologySpec,
        native: "engine.Topology",
        group: Sequence[int],
        hardware: Hardware | None,
        algorithm: "engine.AlgorithmChoice | None",
    ) -> None:
        self._native, self._group, self._hardware = native, group, hardware
        self._algorithm = RING if algorithm is None else algorithm
        servers = servers_of(spec, native)
        self.place = Place(len(group), 1, len(group))
        self._machine: Machine | None = None
        self._fits = False
        if servers is not None:
            self.place = servers.place(group, [group])
        if algorithm is not None:
            self.model = f"{self._messages}, as --collective-costs links takes it"
            return
        if hardware is None:
            self.model = f"{ENGINE_RING}, since the network names no hardware"
            return
        rate = hardware.intra_node_link_bytes_per_s
        machine = machine_of(hardware)
        if servers is not None:
            inside = servers.inside_bytes_per_s(group) * machine.pair_links
            machine = machine.scaled(min(inside, rate) / 1e9, machine.name)
        pair = rate // machine.pair_links
        self._fits = self.place.nodes == 1 and alike_and_fast(native, group, pair)
        if self._fits or self.place.nodes > 1:
            self._machine = machine
            self.model = f"NCCL on {machine.name}"
        else:
            self.model = f"{ENGINE_RING}, since its links are not those of the {hardware.name}"

    @property
    def _messages(self) -> str:
        return f"{described(self._algorithm)} of the engine"

    def plans(self, name: str, kind: str, sizes: Int64) -> dict[str, Floats]:
        """Microseconds by size of every plan."""
        vectors = sizes.astype(np.float64)
        if self._machine is None:
            durations = engine.ConcurrentDurations(
                self._native,
                NETWORKS["fair-share"],
                [list(self._group)],
                KINDS[kind],  # type: ignore[index]
                self._algorithm,
            )
            return {self._messages: np.asarray(durations.durations_ps(sizes), np.float64) / 1e6}
        if name != VLLM:
            return plans(self._machine, kind, vectors, self.place)
        if self.place.nodes > 1:
            raise InputError(
                f"{VLLM} runs inside a server, and these {len(self._group)} devices are on "
                f"{self.place.nodes}; use all_reduce"
            )
        chosen = choose_vllm(self._machine, vectors, len(self._group), eager=False)
        return {
            plan: np.where(chosen.which == at, chosen.us, np.inf)
            for at, plan in enumerate(chosen.names)
        }

    def measured(self, name: str, sizes: Int64) -> tuple[str | None, dict[int, float]]:
        """(label, microseconds by size) of the measured table of the devices, where it fits."""
        hardware = self._hardware
        if hardware is None or hardware.silicon_system is None or not self._fits:
            return None, {}
        database = database_of(hardware.silicon_system)
        table = "vllm_graph" if name == VLLM else name
        found = None if database is None else measured_times(database, table, len(self._group))
        if found is None:
            return None, {}
        label, points, times = found
        wanted = set(sizes.tolist())
        known = zip(points.tolist(), times.tolist(), strict=True)
        return label, {int(size): time for size, time in known if int(size) in wanted}


def _row(size: int, time_us: float, plan: str, factor: float, measured_us: float | None) -> BusRow:
    algbw = size / time_us / 1e3
    bus = None if measured_us is None else size / measured_us / 1e3 * factor
    return BusRow(size, time_us, algbw, algbw * factor, plan, measured_us, bus)


def _algorithm(request: BusRequest, kind: str) -> "engine.AlgorithmChoice | None":
    """The engine's algorithm that was asked for; None: nobody asked."""
    if request.algorithm is None:
        return None
    if request.plan is not None:
        raise InputError("--algorithm and --plan exclude each other; give one of them")
    if request.collective == VLLM:
        raise InputError(f"{VLLM} is one kernel and takes no --algorithm; use all_reduce")
    return parsed_algorithm("--algorithm", request.algorithm, KINDS[kind])  # type: ignore[index]


def _kind(collective: str) -> str:
    if collective not in COLLECTIVES:
        raise InputError(
            f'--collective is "{collective}"{nearest(collective, COLLECTIVES)}; one of '
            f"{', '.join(COLLECTIVES)} was expected"
        )
    return "all_reduce" if collective == VLLM else collective


def _devices(text: str | None, spec: TopologySpec) -> list[int]:
    """A count of devices from the first on, or their numbers; all without a word."""
    count = spec.num_devices()
    if text is None:
        found = list(range(count))
    elif re.fullmatch(r"\d{1,7}", text.strip()):
        found = list(range(int(text)))
    elif re.fullmatch(r"\d{1,7}(\s*,\s*\d{1,7})+", text.strip()):
        found = [int(one) for one in text.split(",")]
    else:
        raise InputError(
            f'--devices is "{text}"; a count such as 8, or numbers such as 0,1,4,5 were expected'
        )
    beyond = next((one for one in found if one >= count), None)
    if beyond is not None:
        raise InputError(
            f'--devices is "{text}"; {spec.name} has {count} devices, 0 to {count - 1}'
        )
    if len(found) < 2 or len(set(found)) < len(found):
        raise InputError(
            f'--devices is "{text}"; a collective needs two different devices at least'
            if text is not None
            else f"{spec.name} has {count} devices; a collective needs two at least"
        )
    return found


def _sizes(request: BusRequest) -> Int64:
    first = _bytes("--min-bytes", request.first_bytes)
    last = _bytes("--max-bytes", request.last_bytes)
    if last < first:
        raise InputError(
            f"--max-bytes is {request.last_bytes}, below --min-bytes {request.first_bytes}; give a "
            "larger one"
        )
    if request.factor < 2:
        raise InputError(f"--factor is {request.factor}; a whole number from 2 on was expected")
    sizes = [first]
    while sizes[-1] * request.factor <= last and len(sizes) < MOST_ROWS:
        sizes.append(sizes[-1] * request.factor)
    return np.array(sizes, np.int64)


def _bytes(option: str, text: str) -> int:
    found = re.fullmatch(r"(\d{1,13})\s*([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    number = int(found[1]) * UNITS[found[2].upper()] if found else 0
    if not FEWEST_BYTES <= number <= MOST_BYTES:
        raise InputError(
            f'{option} is "{text}"; bytes such as 8, 64K, 128M or 1G were expected, at most 1024G'
        )
    return number


def _asked_plans(times: dict[str, Floats], wanted: str) -> dict[str, Floats]:
    """The plans whose names begin as asked, as with NCCL_ALGO; InputError where there is none."""
    found = {
        name: us for name, us in times.items() if name.lower().startswith(wanted.lower().strip())
    }
    if not found or not wanted.strip():
        raise InputError(
            f'--plan is "{wanted}"; these devices have {", ".join(times)}: give one, or how some '
            "begin"
        )
    return found


def as_json(table: BusTable) -> dict[str, Any]:
    """The table for scripts."""
    from dataclasses import asdict

    return asdict(table)
