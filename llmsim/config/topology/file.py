"""Reads and writes topology files (JSON) for the engine.

`TopologyFile` and docs/reference/engine/topology_files.md describe the format.

A file has one of three forms:

    {"dimensions": [{"kind": "ring" | "switch" | "fully_connected", "size": 8, "bandwidth_gb_per_s":
    450,
                     "latency_ns": 500, "bisection_gb_per_s": 0}, ...]}                dimension 0
                     varies fastest
    {"devices": 16, "switches": [...], "links": [...], "routes": [...], "groups": {...}}      an
    explicit network {"preset": "rails" | "fat_tree" | "pcie" | "islands", "parameters": {...}}
    a generator; see topology_presets
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from llmsim.config.cluster_file.loading import Document, parse_text, read_text
from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files
from llmsim.config.problems import input_error
from llmsim.config.topology.presets import GENERATORS, Network
from llmsim.config.units import gb_per_s_to_bytes_per_s, ns_to_ps
from llmsim.presets import PRESETS_DIR

PRESETS = PRESETS_DIR / "topologies"

CLUSTER_KEYS = frozenset(("nodes", "layouts"))
"""Top-level keys that a cluster file has and a topology file has not."""
MAX_DEVICES = 1 << 20
"""Of a network whose links are listed one by one."""
Positive = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class DimensionEntry(_Strict):
    """One dimension of a regular network; bandwidth and latency per link, GB of 1e9 bytes;
    bisection 0: unlimited.
    """

    kind: Literal["ring", "switch", "fully_connected"]
    size: Annotated[int, Field(ge=1)]
    bandwidth_gb_per_s: Positive
    latency_ns: NotNegative = 0
    bisection_gb_per_s: NotNegative = 0


class SwitchEntry(_Strict):
    """A switch; `bisection_gb_per_s` 0: does not block. `spread` > 0: choices by destination /
    spread, 0: by hash.
    """

    name: str
    bisection_gb_per_s: NotNegative = 0
    spread: Annotated[int, Field(ge=0)] = 0


class LinkEntry(_Strict):
    """`count` parallel full-duplex cables between two nodes; the bandwidth is each one's per
    direction.
    """

    a: str
    b: str
    bandwidth_gb_per_s: Positive
    latency_ns: NotNegative = 0
    count: Annotated[int, Field(ge=1, le=1024)] = 1


class TopologyFile(_Strict):
    """A topology file. Devices of an explicit network are `devices` names, or a count that names
    them "0", "1", ...
    """

    name: str = ""
    source: str = ""
    preset: str | None = None
    parameters: dict[str, Any] = {}
    dimensions: list[DimensionEntry] = []
    devices: Annotated[
        Annotated[int, Field(ge=1, le=MAX_DEVICES)] | list[str] | None,
        WithJsonSchema({"expected": "the number of devices, or a list of their names"}),
    ] = None
    devices_relay: bool = False
    switches: list[SwitchEntry] = []
    links: list[LinkEntry] = []
    routes: list[list[str]] = []
    groups: dict[str, list[str]] = {}
    hardware: str = ""
    """Name of the devices' data sheet, for `llmsim topology busbw`."""
    reducing_network: bool = False
    """Whether the switches between nodes reduce, as SHARP does."""


class TopologySpec(Struct, frozen=True):
    """A network in the engine's units: one of `dimensions` (kind, size, bytes/s, ps, bytes/s) and
    `network`.
    """

    name: str
    source: str
    dimensions: tuple[tuple[str, int, int, int, int], ...]
    network: Network | None
    groups: Mapping[str, tuple[int, ...]]
    hardware: str = ""
    reducing_network: bool = False

    def build(self, engine: ModuleType) -> Any:
        """The sealed `Topology` of the engine's bindings (llmsim._native.engine); InputError when
        it cannot exist.
        """
        try:
            if self.network is None:
                kinds = engine.TopologyKind
                return engine.Topology.grid(
                    [(getattr(kinds, kind.upper()), *rest) for kind, *rest in self.dimensions]
                )
            builder = engine.TopologyBuilder(self.network.num_devices, self.network.devices_relay)
            for bisection, spread in self.network.switches:
                builder.add_switch(bisection, spread)
            for a, b, bandwidth, latency in self.network.links:
                builder.add_link(a, b, bandwidth, latency)
            for route in self.network.routes:
                builder.add_route(list(route))
            return builder.build()
        except engine.EngineError as error:
            raise InputError(f"{self.name}: {error}") from None

    def num_devices(self) -> int:
        """Devices of the network."""
        return (
            self.network.num_devices
            if self.network
            else prod(size for _, size, *_ in self.dimensions)
        )

    def as_file(self) -> dict[str, Any]:
        """The network link by link (or by dimensions), as a topology file that the command
        `astra-sim` reads.
        """
        head: dict[str, Any] = {"name": self.name, "source": self.source}
        if self.hardware:
            head["hardware"] = self.hardware
        if self.reducing_network:
            head["reducing_network"] = True
        if self.network is None:
            keys = ("kind", "size", "bandwidth_gb_per_s", "latency_ns", "bisection_gb_per_s")
            return head | {
                "dimensions": [
                    dict(
                        zip(keys, (kind, size, rate / 1e9, latency / 1e3, limit / 1e9), strict=True)
                    )
                    for kind, size, rate, latency, limit in self.dimensions
                ]
            }
        devices = self.network.num_devices
        names = [str(i) for i in range(devices)] + [
            f"switch{i}" for i in range(len(self.network.switches))
        ]
        links: dict[tuple[int, int, int, int], int] = {}
        for link in self.network.links:
            links[link] = links.get(link, 0) + 1
        return head | {
            "devices": devices,
            "devices_relay": self.network.devices_relay,
            "switches": [
                {"name": names[devices + i], "bisection_gb_per_s": limit / 1e9, "spread": spread}
                for i, (limit, spread) in enumerate(self.network.switches)
            ],
            "links": [
                {
                    "a": names[a],
                    "b": names[b],
                    "bandwidth_gb_per_s": rate / 1e9,
                    "latency_ns": latency / 1e3,
                    "count": count,
                }
                for (a, b, rate, latency), count in links.items()
            ],
            "routes": [[names[vertex] for vertex in route] for route in self.network.routes],
            "groups": {
                name: [names[device] for device in members] for name, members in self.groups.items()
            },
        }


def load_topology(path_or_preset: str | Path) -> TopologySpec:
    """A topology file, or one of the bundled networks by name (`dgx_h100`); InputError says what is
    wrong and where.
    """
    return parse_topology(_document(path_or_preset))


def network_of(source: str | Path) -> TopologySpec:
    """As `load_topology`; of a cluster file the topology that it names."""
    document = _document(source)
    if not _is_cluster(document):
        return parse_topology(document)
    named = document.data.get("topology")
    if not isinstance(named, str):
        raise InputError(
            f"{document.name} is a cluster file that names no topology; expected one that does, a "
            f"topology file, or one of {', '.join(preset_names())}"
        )
    return load_topology(beside_cluster(named, document.name))


def beside_cluster(name: str, cluster_path: str) -> str:
    """The topology that a cluster file names: a file beside it comes before one under the working
    directory and before a bundled network.
    """
    beside = Path(cluster_path).parent / name
    return str(beside) if input_files.is_file(beside) else name


def _document(path_or_preset: str | Path) -> Document:
    path = Path(path_or_preset)
    input_files.note(path)
    if not path.suffix and not path.exists():
        known = preset_names()
        if path.name not in known:
            raise InputError(
                (
                    f'there is no topology "{path_or_preset}"{nearest(path.name, known)}; give a '
                    "file or one of "
                )
                + ", ".join(known)
            )
        path = PRESETS / f"{path.name}.json"
    return parse_text(read_text(path), str(path))


def _is_cluster(document: Document) -> bool:
    return isinstance(document.data, dict) and not CLUSTER_KEYS.isdisjoint(document.data)


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True, mode="validation")


def preset_names() -> list[str]:
    """Names of the bundled topologies."""
    return sorted(path.stem for path in PRESETS.glob("*.json"))


def parse_topology(document: Document) -> TopologySpec:
    """The network that a document describes."""
    try:
        file = TopologyFile.model_validate(document.data)
    except ValidationError as error:
        if _is_cluster(document):
            raise InputError(f"{document.name} is a cluster file; expected a topology") from None
        raise input_error(error, document, _schema(TopologyFile)) from None
    forms = [file.preset is not None, bool(file.dimensions), file.devices is not None]
    if sum(forms) != 1:
        raise InputError(
            f"{document.name}: expected exactly one of preset, dimensions and devices at the top "
            "level"
        )
    name = file.name or document.name
    if file.dimensions:
        dimensions = tuple(
            (
                d.kind,
                d.size,
                gb_per_s_to_bytes_per_s(d.bandwidth_gb_per_s),
                ns_to_ps(d.latency_ns),
                gb_per_s_to_bytes_per_s(d.bisection_gb_per_s),
            )
            for d in file.dimensions
        )
        return TopologySpec(
            name, file.source, dimensions, None, {}, file.hardware, file.reducing_network
        )
    network, groups = _generated(file, document) if file.preset else _explicit(file, document)
    return TopologySpec(
        name, file.source, (), network, groups, file.hardware, file.reducing_network
    )


def _generated(
    file: TopologyFile, document: Document
) -> tuple[Network, dict[str, tuple[int, ...]]]:
    assert file.preset is not None
    if file.preset not in GENERATORS:
        raise InputError(
            (
                f"{document.position(('preset',))} is "
                f'"{file.preset}"{nearest(file.preset, GENERATORS)}; expected one of '
            )
            + ", ".join(GENERATORS)
        )
    parameters, make = GENERATORS[file.preset]
    try:
        checked = parameters.model_validate(file.parameters)
    except ValidationError as error:
        whole = {"properties": {"parameters": _schema(parameters)}}
        raise input_error(error, document, whole, ("parameters",)) from None
    network = make(checked)
    return network, dict(network.groups)


def _explicit(file: TopologyFile, document: Document) -> tuple[Network, dict[str, tuple[int, ...]]]:
    devices = (
        [str(i) for i in range(file.devices)]
        if isinstance(file.devices, int)
        else list(file.devices or [])
    )
    names = devices + [switch.name for switch in file.switches]
    number = {name: index for index, name in enumerate(names)}
    if len(number) != len(names):
        twice = next(name for index, name in enumerate(names) if number[name] != index)
        raise InputError(
            f'{document.name}: "{twice}" names two nodes; every device and switch needs its own '
            "name"
        )

    def find(name: str, *location: str | int) -> int:
        if name not in number:
            raise InputError(
                f'{document.position(location)} names "{name}", which does not '
                f"exist{nearest(name, number)}"
            )
        return number[name]

    links = []
    for i, link in enumerate(file.links):
        ends = find(link.a, "links", i, "a"), find(link.b, "links", i, "b")
        speed = gb_per_s_to_bytes_per_s(link.bandwidth_gb_per_s), ns_to_ps(link.latency_ns)
        links += [(*ends, *speed)] * link.count
    routes = tuple(
        tuple(find(p, "routes", i, j) for j, p in enumerate(route))
        for i, route in enumerate(file.routes)
    )
    groups = {
        g: tuple(find(d, "groups", g, j) for j, d in enumerate(ds)) for g, ds in file.groups.items()
    }
    for name, members in groups.items():
        if any(member >= len(devices) for member in members):
            raise InputError(
                f"{document.position(('groups', name))} holds a switch; groups are made of devices"
            )
    switches = tuple(
        (gb_per_s_to_bytes_per_s(s.bisection_gb_per_s), s.spread) for s in file.switches
    )
    return Network(len(devices), switches, tuple(links), routes, file.devices_relay), groups
