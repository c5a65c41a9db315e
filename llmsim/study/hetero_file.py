"""The file of a study of devices by role: roles, candidate devices, targets."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from llmsim.config.errors import InputError
from llmsim.config.files.reading import finite
from llmsim.model.hardware import data_sheet
from llmsim.search.reading import Form, converted, read_json_or_yaml

RoleName = Literal["colocated", "prefill", "decode", "attention", "ffn"]
LETTERS: dict[str, str] = {
    "colocated": "C",
    "prefill": "P",
    "decode": "D",
    "attention": "A",
    "ffn": "F",
}
MOST_INSTANCES = 1 << 16
WHERE = "docs/how-to/heterogeneous.md has a whole file"


class Role(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Equal instances with one role, and the devices that it may have; the first is the
    baseline's.
    """

    role: RoleName
    instance: dict[str, Any]
    devices: list[str]
    instances: int = 1


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies of gate 2; 0: no target."""

    p95_ttft_ms: float = 0.0
    p95_tpot_ms: float = 0.0


class HeteroFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as it is written."""

    workload: str
    roles: list[Role]
    sla: Targets
    splits: list[dict[str, int]] = []
    prices: dict[str, float] = {}
    min_ce: float = 1.08
    compute_share: float = 0.5
    devices_per_node: int = 8
    cluster: dict[str, Any] = {}
    options: dict[str, Any] = {}
    description: str = ""


FORM = Form(
    sections={"": HeteroFile, "roles": Role, "sla": Targets},
    examples={"workload": "a trace file, or a generator such as synthetic:n=100,rate=10"},
    mappings=("prices", "splits", "cluster", "options"),
    page=WHERE,
)


@dataclass(frozen=True)
class Question:
    """A file that was checked: its text, with the prices and the splits that hold."""

    path: Path
    file: HeteroFile
    splits: tuple[Mapping[str, int], ...]
    """Instances of every role; the first one is the baseline's."""
    usd_per_hour: Mapping[str, float]
    """Of every candidate device."""

    @property
    def workload(self) -> str:
        """A path is relative to the file."""
        beside = self.path.parent / self.file.workload
        return str(beside) if beside.is_file() else self.file.workload


def load_hetero(path: Path) -> Question:
    """Reads and checks a JSON or YAML file; InputError names the file, the field and what would
    have worked.
    """
    file = converted(path, read_json_or_yaml(path), HeteroFile, FORM)
    for problem in _problems(file):
        raise InputError(f"{path}: {problem}", file=str(path))
    splits = tuple(_split(path, file, i) for i in range(len(file.splits)))
    counts: dict[str, int] = {role.role: role.instances for role in file.roles}
    try:
        return Question(path, file, splits or (counts,), _prices(file))
    except InputError as error:
        raise InputError(f"{path}: {error}", file=str(path)) from None


def _problems(file: HeteroFile) -> Iterator[str]:
    """Sentences without the file's name, the most telling one first."""
    names: list[str] = [role.role for role in file.roles]
    if not names:
        yield f"roles is empty; name at least one; {WHERE}"
    for name in names:
        if names.count(name) > 1:
            yield f'roles has "{name}" twice; give its instances in one entry'
    if "colocated" in names and len(names) > 1:
        yield 'roles has "colocated" beside others; its instances do everything, so leave it alone'
    for i, role in enumerate(file.roles):
        yield from _role_problems(f"roles[{i}]", role)
    yield from _limit_problems(file)
    for key in ("nodes", "topology"):
        if key in file.cluster:
            yield f"cluster.{key} cannot be given here; the study makes the nodes from the roles"
    for name, price in file.prices.items():
        if finite(price) is None or not 0 < price <= 1e6:
            yield f"prices.{name} is {price}; it must be in USD per device and hour, above 0"


def _limit_problems(file: HeteroFile) -> Iterator[str]:
    for target in ("p95_ttft_ms", "p95_tpot_ms"):
        value = getattr(file.sla, target)
        if not math.isfinite(value) or value < 0:
            yield f"sla.{target} is {value}; it must be a number of milliseconds from 0 (no target)"
    if not math.isfinite(file.min_ce) or file.min_ce <= 0:
        yield f"min_ce is {file.min_ce}; it must be above 0, such as 1.08"
    if not 0 < file.compute_share < 1:
        yield f"compute_share is {file.compute_share}; it must be between 0 and 1, such as 0.5"
    if not 1 <= file.devices_per_node <= MOST_INSTANCES:
        yield f"devices_per_node is {file.devices_per_node}; it must be from 1 to {MOST_INSTANCES}"


def _role_problems(where: str, role: Role) -> Iterator[str]:
    if not role.devices:
        yield f'{where}.devices is empty; name devices, such as ["H800", "H20"]'
    for name in role.devices:
        if role.devices.count(name) > 1:
            yield f'{where}.devices has "{name}" twice; keep one'
    if not 1 <= role.instances <= MOST_INSTANCES:
        yield f"{where}.instances is {role.instances}; it must be from 1 to {MOST_INSTANCES}"
    for key in ("hardware", "pd_type", "price_per_device_hour", "replicas"):
        if key in role.instance:
            yield f"{where}.instance.{key} cannot be given here; the study sets it"
    if "model_name" not in role.instance:
        yield f"{where}.instance.model_name is missing; name a bundled model or a config.json"


def _split(path: Path, file: HeteroFile, index: int) -> Mapping[str, int]:
    given = file.splits[index]
    names: set[str] = {role.role for role in file.roles}
    if set(given) != names:
        raise InputError(
            f"{path}: splits[{index}] has {', '.join(sorted(given)) or 'nothing'}; it must give "
            f"instances of {', '.join(sorted(names))}",
            file=str(path),
        )
    for name, count in given.items():
        if not 1 <= count <= MOST_INSTANCES:
            raise InputError(
                f"{path}: splits[{index}].{name} is {count}; it must be from 1 to {MOST_INSTANCES}",
                file=str(path),
            )
    return given


def _prices(file: HeteroFile) -> dict[str, float]:
    from llmsim.lowering.energy.prices import price_of

    found = {}
    for name in dict.fromkeys(name for role in file.roles for name in role.devices):
        price = file.prices.get(name, price_of(data_sheet(name)).usd_per_device_hour)
        if price is None:
            raise InputError(f"{name} has no price; give prices.{name} in USD per device and hour")
        found[name] = float(price)
    return found
