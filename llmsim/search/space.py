"""The file of a search: what stays, what varies, what is wanted (docs/tutorial/sizing.md)."""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from llmsim.config.errors import InputError
from llmsim.search.rates import RATE
from llmsim.search.reading import Form, converted, read_json_or_yaml
from llmsim.search.templates import AFD_KEYS, DEPLOYMENT, Template, plans_of
from llmsim.sizing.plan import Plan

MANAGED = (
    "--cluster-config",
    "--output",
    "--run-dir",
    "--run-id",
    "--timeline",
    "--json",
    "--input-files",
    "--allow-plugins",
    "--no-allow-plugins",
)
"""Options of a run that the search gives itself, whose files would be those of many runs, or that
are the user's.
"""
OPTION = re.compile(r"--[A-Za-z0-9][A-Za-z0-9_-]*")
"""How an option is written, without its value."""

SHAPING = ("architecture", "split_step", "tp", "pp", *AFD_KEYS)
"""What chooses among the deployments of a model."""
OF_A_MODEL = ("model", "hardware", "gpus")
"""What stands in place of a cluster file."""
REQUESTS = "--num-reqs"
"""The option with which the rungs of a search run fewer requests."""
MOST = 1e15
"""Largest number of a range."""
Point = Mapping[str, Any]
"""A value for every name of `vary`."""


class Range(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}
):
    """Numbers from `first` to `last`, both included: in steps, by a factor, or any between (`step`
    and `factor` 0).
    """

    first: int | float
    last: int | float
    step: int | float = 0
    factor: int | float = 0


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a figure of the run must be."""

    at_least: float = -math.inf
    at_most: float = math.inf


class Halving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Successive halving: every point runs with few requests, those near the front with more."""

    requests: list[int]
    """Requests of each rung, ascending."""
    margin: float = 0.35
    """A point stays while no other is better by this share in all that is wanted."""
    bounds: bool = True
    """Whether points are left out that their bounds rule out; else every point of a rung runs."""


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The highest rate of requests at which figures of the run are within bounds."""

    rate: Range
    until: dict[str, float | Bound] | str
    """Bounds; a number alone is the least that a figure may be; "vidur": p99 queueing within 5 s.
    """
    precision: float = 0.02


class SearchFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as it is written: a cluster file that varies, or a model on devices."""

    dataset: str
    vary: dict[str, list[Any] | Range] = {}
    cluster: str = ""
    model: str = ""
    hardware: str | list[str] = ""
    gpus: int | list[int] = []
    architecture: str | list[str] = []
    split_step: int = 0
    tp: list[int] = []
    pp: list[int] = []
    ffn: list[int] = []
    attention_instances: list[int] = []
    ffn_instances: list[int] = []
    afd_micro_batches: list[int] = []
    halving: Halving | None = None
    load: Load | None = None
    minimise: list[str] = []
    maximise: list[str] = []
    require: dict[str, Bound] = {}
    options: dict[str, Any] = {}
    devices_per_node: int = 8
    description: str = ""


SPELLINGS = {
    "minimize": "minimise",
    "maximize": "maximise",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
}
"""Fields of a search file by other names: in American spelling, and as vLLM calls them."""
FIGURES = "a list of figures, such as [devices, p99_ttft_ms]"
NUMBERS = "a list of whole numbers, such as [1, 2, 4]"
FORM = Form(
    sections={
        "": SearchFile,
        "halving": Halving,
        "load": Load,
        "load.rate": Range,
        "load.until.*": Bound,
        "require.*": Bound,
        "vary.*": Range,
    },
    examples={
        "dataset": "a trace file, or a generator such as synthetic:n=100,rate=10",
        "vary": "a mapping from fields and options to values, such as replicas: [1, 2]",
        "vary.*": "a list of values, such as [16, 64], or a range, such as {from: 1, to: 8}",
        "require": "a mapping from figures to bounds, such as p99_ttft_ms: {at_most: 500}",
        "require.*": "a bound, such as {at_most: 500} or {at_least: 0.9}",
        "minimise": FIGURES,
        "maximise": FIGURES,
        "options": "a mapping from options of `llmsim run` to values, such as --seed: 1",
        "gpus": "a whole number or a list of whole numbers, such as [8, 16]",
        "hardware": "a device or a list of devices, such as [H100, H200]",
        "architecture": "an architecture or a list of them, such as [colocated, pd]",
        **dict.fromkeys(("tp", "pp", *AFD_KEYS), NUMBERS),
        "halving": "a mapping, such as {requests: [250, 1000]}",
        "halving.requests": "a list of whole numbers, such as [250, 1000]",
        "load": "a mapping, such as {rate: {from: 1, to: 100}, until: {goodput.share: 0.9}}",
        "load.rate": "two rates, such as {from: 1, to: 100}",
        "load.until": "bounds, such as {goodput.share: 0.9}, or vidur",
        "load.until.*": "the least that the figure may be, or a bound such as {at_most: 500}",
    },
    mappings=("vary", "require", "options", "load.until"),
    page="docs/tutorial/sizing.md has a whole file",
)


@dataclass(frozen=True)
class Dimension:
    """One name that varies: its values in order, or, without any, all numbers between two."""

    name: str
    values: tuple[Any, ...]
    low: float = 0.0
    high: float = 0.0

    @property
    def ordered(self) -> bool:
        """Whether neighbours are alike: ascending numbers."""
        numbers = [
            one for one in self.values if isinstance(one, int | float) and not isinstance(one, bool)
        ]
        return len(numbers) == len(self.values) and numbers == sorted(numbers)


@dataclass(frozen=True)
class Space:
    """A search, checked; immutable."""

    path: Path
    file: SearchFile
    dimensions: tuple[Dimension, ...]
    plans: Mapping[str, Plan] = field(default_factory=dict)
    """The deployments of a model by label; none where a cluster file varies."""

    @property
    def halves(self) -> bool:
        """Whether points are drawn and pruned, and run with few requests first."""
        return bool(self.plans) or self.file.halving is not None

    @property
    def size(self) -> int | None:
        """How many points there are; None: a range without steps has any number."""
        counts = [len(one.values) for one in self.dimensions]
        return math.prod(counts) if all(counts) else None

    def grid(self) -> Iterator[dict[str, Any]]:
        """All points, the last name varying fastest."""
        names = [one.name for one in self.dimensions]
        for values in itertools.product(*(one.values for one in self.dimensions)):
            yield dict(zip(names, values, strict=True))

    def at(self, place: int) -> dict[str, Any]:
        """The point at a place in the grid, from 0."""
        values = []
        for one in reversed(self.dimensions):
            place, step = divmod(place, len(one.values))
            values.append(one.values[step])
        names = [one.name for one in self.dimensions]
        return dict(zip(names, reversed(values), strict=True))

    @property
    def objectives(self) -> tuple[tuple[str, bool], ...]:
        """(figure, whether more is better), in the order of the file, what is minimised first."""
        return (
            *((name, False) for name in self.file.minimise),
            *((name, True) for name in self.file.maximise),
        )


def load_space(path: Path) -> Space:
    """Reads and checks a JSON or YAML file; InputError names the file, the field and what would
    have worked.
    """
    file = converted(path, _respelt(path, read_json_or_yaml(path)), SearchFile, FORM)
    plans = _plans(path, file)
    if not file.vary and not plans:
        raise InputError(
            f"{path}: vary is empty; name what varies, such as replicas: [2, 4, 8]", file=str(path)
        )
    _check_objectives(path, file)
    _check_names(path, file)
    if not 1 <= file.devices_per_node <= 1 << 16:
        raise InputError(
            f"{path}: devices_per_node is {file.devices_per_node}; it must be from 1 to {1 << 16}",
            file=str(path),
        )
    if file.halving is not None:
        _check_halving(path, file.halving)
    if file.load is not None:
        check_load(path, file.load, varied=RATE in file.vary)
    dimensions = [_dimension(path, name, given) for name, given in file.vary.items()]
    if plans:
        dimensions.insert(0, Dimension(DEPLOYMENT, tuple(plans)))
    return Space(path, file, tuple(dimensions), plans)


def _respelt(path: Path, data: Any) -> Any:
    """The file with its own names of fields and options; InputError where it has one twice."""
    if not isinstance(data, dict):
        return data
    renamed = _renamed(path, data, lambda name: SPELLINGS.get(name, name))
    for part in ("vary", "options"):
        if isinstance(renamed.get(part), dict):
            renamed[part] = _renamed(path, renamed[part], _dashed)
    return renamed


def _dashed(name: str) -> str:
    """An option that is written with underscores, as vLLM allows, in its own spelling."""
    return name.replace("_", "-") if name.startswith("--") else name


def _renamed(path: Path, data: dict[Any, Any], named: Callable[[str], str]) -> dict[Any, Any]:
    """The data by other keys; raises InputError where two keys become one."""
    renamed: dict[Any, Any] = {}
    before: dict[Any, Any] = {}
    for key, value in data.items():
        ours = named(key) if isinstance(key, str) else key
        if ours in renamed:
            raise InputError(
                f"{path}: {key} is given, and so is {before[ours]}, which means the same; keep one "
                "of them",
                file=str(path),
                field=str(key),
            )
        renamed[ours] = value
        before[ours] = key
    return renamed


def _plans(path: Path, file: SearchFile) -> dict[str, Plan]:
    """The deployments of a file that names a model; none for one that names a cluster file."""
    given = [name for name in OF_A_MODEL if getattr(file, name) not in ("", [])]
    if bool(file.cluster) == bool(given) or (given and len(given) < len(OF_A_MODEL)):
        named = " and ".join(["cluster"] * bool(file.cluster) + given) or "nothing"
        raise InputError(
            f"{path}: it names {named}; give either cluster, or model, hardware and gpus",
            file=str(path),
        )
    if file.cluster:
        extra = [name for name in SHAPING if getattr(file, name)]
        if extra:
            raise InputError(
                f"{path}: {extra[0]} goes with model, hardware and gpus; remove it", file=str(path)
            )
        return {}
    template = Template(
        file.model,
        file.hardware,
        file.gpus,
        file.architecture,
        file.split_step,
        file.tp,
        file.pp,
        file.ffn,
        file.attention_instances,
        file.ffn_instances,
        file.afd_micro_batches,
    )
    for name in file.vary:
        if not name.startswith("--") and name != RATE:
            raise InputError(
                f"{path}: vary names {name}; beside a model, options of `llmsim run` and rate vary",
                file=str(path),
            )
    return plans_of(str(path), template, file.devices_per_node)


def _check_objectives(path: Path, file: SearchFile) -> None:
    if not (file.minimise or file.maximise):
        raise InputError(
            f"{path}: nothing to minimise or maximise; name figures such as devices or p95_ttft_ms",
            file=str(path),
        )
    if twice := sorted(set(file.minimise) & set(file.maximise)):
        raise InputError(
            f"{path}: {twice[0]} is to be minimised and maximised; keep one of them", file=str(path)
        )
    for name, bound in file.require.items():
        if bound == Bound():
            raise InputError(
                f"{path}: require.{name} says nothing; give at_least or at_most", file=str(path)
            )


def _check_names(path: Path, file: SearchFile) -> None:
    """Options are options, and no value is what neither a cluster file nor a command line has."""
    for name in (*file.options, *file.vary):
        if name in MANAGED or (name in file.options and not name.startswith("--")):
            raise InputError(
                f"{path}: {name} cannot be given here; options are those of `llmsim run` for one "
                "run's result",
                file=str(path),
            )
        if name.startswith("--") and not OPTION.fullmatch(name):
            raise InputError(
                f"{path}: {name!r:.80} is no name of an option; write --name, and its value "
                "behind the colon",
                file=str(path),
            )
    for name, value in (
        *file.options.items(),
        *((f"vary.{name}", given) for name, given in file.vary.items()),
    ):
        _check_json(f"{path}: {name}", value)


VIDUR = {"p99_queueing_delay_ms": Bound(at_most=5000.0)}
"""The rule of Vidur-Search: requests wait at most 5 s to be scheduled, at the 99th percentile."""


def bounds_of(load: Load) -> dict[str, Bound]:
    """The bounds within which a rate is sustained."""
    if isinstance(load.until, str):
        return dict(VIDUR)
    return {
        name: bound if isinstance(bound, Bound) else Bound(at_least=bound)
        for name, bound in load.until.items()
    }


def check_load(path: Path, load: Load, *, varied: bool) -> None:
    """Raises InputError for a load that has no range, no bounds, or a rate that varies too."""
    if varied:
        raise InputError(f"{path}: vary and load both name rate; keep one of them", file=str(path))
    if not 0 < load.rate.first < load.rate.last <= MOST or load.rate.step or load.rate.factor:
        raise InputError(
            f"{path}: load.rate is from {load.rate.first} to {load.rate.last}; give two rates "
            "above 0 in ascending order, without a step or factor",
            file=str(path),
        )
    if isinstance(load.until, str) and load.until != "vidur":
        raise InputError(
            f'{path}: load.until is "{load.until}"; give bounds, or vidur', file=str(path)
        )
    if not load.until or any(bound == Bound() for bound in bounds_of(load).values()):
        raise InputError(
            f"{path}: load.until says nothing; give bounds, such as goodput.share: 0.9",
            file=str(path),
        )
    if not 1e-4 <= load.precision <= 1:
        raise InputError(
            f"{path}: load.precision is {load.precision}; it must be 0.0001 to 1", file=str(path)
        )


def _check_halving(path: Path, halving: Halving) -> None:
    counts = halving.requests
    if not counts or counts[0] < 1 or sorted(set(counts)) != counts:
        raise InputError(
            f"{path}: halving.requests is {counts}; give ascending numbers of requests, such as "
            "[250, 1000, 2000]",
            file=str(path),
        )
    if not 0 <= halving.margin <= 10:
        raise InputError(
            f"{path}: halving.margin is {halving.margin}; it must be from 0 to 10", file=str(path)
        )


def _check_json(where: str, value: Any) -> None:
    """Dates, NaN and the like, which YAML has and neither a cluster file nor a command line, and
    half characters.
    """
    try:
        plain = msgspec.to_builtins(value) if isinstance(value, Range) else value
        json.dumps(plain, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        raise InputError(
            f"{where} holds something that JSON has not; write dates as text, and finite numbers"
        ) from None


def _dimension(path: Path, name: str, given: list[Any] | Range) -> Dimension:
    where = f"{path}: vary.{name}"
    if isinstance(given, list):
        return Dimension(name, tuple(_distinct(where, given)))
    _check_range(where, given)
    whole = isinstance(given.first, int) and isinstance(given.last, int)
    if whole or given.step or given.factor:
        return Dimension(name, tuple(_numbers(where, given)))
    return Dimension(name, (), float(given.first), float(given.last))


def _distinct(where: str, given: list[Any]) -> list[Any]:
    """The values of a list, each once."""
    if not given:
        raise InputError(f"{where} has no values; give at least one")
    return [one for i, one in enumerate(given) if not any(_same(one, other) for other in given[:i])]


def _check_range(where: str, given: Range) -> None:
    """Raises InputError for a range that does not end, or steps that do not lead to its end."""
    first, last = given.first, given.last
    if not -MOST <= first <= last <= MOST:
        raise InputError(
            f"{where} is from {first} to {last}; from must not be above to, and neither beyond "
            f"{MOST:g}"
        )
    if given.step and given.factor:
        raise InputError(f"{where} has a step and a factor; keep one of them")
    grows = given.factor > 1 and first > 0
    if given.step < 0 or (given.factor and not grows):
        raise InputError(
            f"{where}: a step must be above 0, a factor above 1, and from above 0 with a factor"
        )


def _numbers(where: str, given: Range) -> Iterator[int | float]:
    """The numbers of a range, whole where all that was given is."""
    whole = all(isinstance(one, int) for one in (given.first, given.last, given.step, given.factor))
    step = given.step or (0 if given.factor else 1)
    for i in range(100_001):
        value = given.first * given.factor**i if given.factor else given.first + i * step
        if value > given.last + abs(given.last) * 1e-12:
            return
        yield int(value) if whole else float(f"{value:.12g}")
    raise InputError(f"{where} has more than 100000 values; give a larger step")


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
