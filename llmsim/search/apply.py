"""From a point of the space to the cluster file and the options of one run."""

import copy
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsim.config import Cluster, load_cluster, parse_cluster
from llmsim.config.cluster_file.same_field import Keys, name_in, names_of
from llmsim.config.errors import InputError, UnknownKeyError
from llmsim.config.overridden import field_of, refuse_without_effect
from llmsim.search.rates import RATE, at_rate
from llmsim.search.space import Dimension, Point, Space
from llmsim.search.templates import DEPLOYMENT

COPIES = "copies of "
FILES = (".json", ".csv", ".yml", ".yaml", ".ini", ".parquet")
Json = dict[str, Any]


@dataclass(frozen=True)
class Base:
    """What is varied: a cluster file, or nothing but the file of a search over a model's
    deployments.
    """

    space: Space
    path: Path
    document: Json
    texts: dict[str, str] = field(default_factory=dict)
    """Cluster files of a model's deployments that were asked for."""

    @property
    def name(self) -> str:
        """For messages."""
        return str(self.path)


@dataclass(frozen=True)
class Run:
    """One run: the text of its cluster file, its devices, and the words of its command line but for
    that file.
    """

    cluster: str
    devices: int
    words: tuple[str, ...]


def load_base(space: Space) -> Base:
    """Reads the cluster file, beside the search's file or under the working directory, and checks
    every name of `vary` against it; InputError says which does not fit.
    """
    if space.plans:
        base = Base(space, space.path, {})
        _check_effects(base)
        return base
    beside = space.path.parent / space.file.cluster
    path = beside if os.path.exists(beside) else Path(space.file.cluster)
    base = Base(space, path, load_cluster(path).plain())
    _keep_paths_apart(base)
    for dimension in space.dimensions:
        if not dimension.name.startswith("--") and dimension.name != RATE:
            value = dimension.values[0] if dimension.values else dimension.low
            changed = _changed(copy.deepcopy(base.document), base, {dimension.name: value})
            _check_key(changed, base, dimension.name)
            if dimension.name.endswith(".hardware") and len(dimension.values) > 1:
                _keep_devices_apart(base, dimension.name)
    _check_effects(base)
    return base


def _check_effects(base: Base) -> None:
    """Raises InputError for an option that varies, and that no instance of any point takes."""
    for dimension in base.space.dimensions:
        if dimension.name.startswith("--"):
            refuse_without_effect(
                _clusters(base),
                field_of(dimension.name),
                where=f"{base.space.path}: vary names {dimension.name}, which",
                field=f"vary.{dimension.name}",
            )


def _clusters(base: Base) -> Iterator[Cluster]:
    """The clusters whose instances may take options: those of a model's deployments, or the one
    where fields that may be null are.
    """
    if base.space.plans:
        for plan in base.space.plans.values():
            yield parse_cluster(json.dumps(plan.fields()), base.name)
        return
    point = {
        one.name: _least(one)
        for one in base.space.dimensions
        if not one.name.startswith(("--", COPIES)) and one.name != "replicas"
    }
    try:
        yield parse_cluster(json.dumps(_changed(copy.deepcopy(base.document), base, point)))
    except InputError:  # a value that does not fit is the affair of its points
        return


def _least(dimension: Dimension) -> Any:
    """A value of a dimension: null if it has that one."""
    if None in dimension.values or not dimension.values:
        return None if dimension.values else dimension.low
    return dimension.values[0]


def _check_key(document: Json, base: Base, path: str) -> None:
    """Raises InputError where the path ends in a key that no cluster file has; a value that does
    not fit is a point's own affair.
    """
    try:
        parse_cluster(json.dumps(document), base.name)
    except UnknownKeyError as error:
        named = error.field or ""
        if re.sub(r"\[.+?\]", "[]", named) == re.sub(r"\[.+?\]", "[]", path):
            _, _, problem = str(error).partition(f"{named} ")
            raise InputError(
                f"{base.space.path}: vary names {path}, which {problem}", field=f"vary.{path}"
            ) from None
    except InputError:
        return


def run_of(base: Base, point: Point) -> Run:
    """The run of a point; InputError where its cluster file is none."""
    text, devices = _cluster_of(base, point)
    beside = base.space.path.parent / base.space.file.dataset
    # os.path says no, and raises nothing, for a text that cannot be a path: one of a generator, or
    # of any length.
    dataset = str(beside) if os.path.isfile(beside) else None
    options = {"--dataset": dataset or base.space.file.dataset, **base.space.file.options}
    options |= {name: value for name, value in point.items() if name.startswith("--")}
    if RATE in point:
        options["--dataset"] = at_rate(str(options["--dataset"]), point[RATE])
    return Run(
        text,
        devices,
        tuple(word for name, value in options.items() for word in _words(name, value)),
    )


def _cluster_of(base: Base, point: Point) -> tuple[str, int]:
    """The text of a point's cluster file, and its devices."""
    if base.space.plans:
        label = str(point[DEPLOYMENT])
        plan = base.space.plans[label]
        if label not in base.texts:
            base.texts[label] = json.dumps(plan.fields(), indent=2) + "\n"
        return base.texts[label], plan.devices
    document = _changed(copy.deepcopy(base.document), base, point)
    cluster = parse_cluster(json.dumps(document), f"the cluster of {shown(point)}")
    devices = sum(one.layout.num_devices * one.layout.replicas for _, one in cluster.instances())
    return json.dumps(_from_anywhere(document, base.path.parent), indent=2) + "\n", devices


def shown(point: Point) -> str:
    """A point as a person reads it."""
    return ", ".join(
        f"{name} {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in point.items()
    )


def _words(name: str, value: Any) -> list[str]:
    """An option on the command line: true alone, false and null not at all, of a list
    every entry.
    """
    if value is None or value is False:
        return []
    if value is True:
        return [name]
    values = value if isinstance(value, list) else [value]
    return [f"{name}={one if isinstance(one, str) else json.dumps(one)}" for one in values]


def _changed(document: Json, base: Base, point: Point) -> Json:
    """The document with the point's values: fields first, then copies of what they made."""
    copies = {}
    for name, value in point.items():
        if name == "replicas" or name.startswith(COPIES):
            copies[name] = value
        elif not name.startswith("--") and name != RATE:
            _set(document, base, name, value)
    for name in sorted(
        copies, key=lambda name: [int(one) for one in re.findall(r"\d+", name)], reverse=True
    ):
        count = copies[name]  # those of the last instances come first: the numbers of others stay
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 1 << 16:
            raise InputError(
                f"{base.space.path}: {name} is {count}; it must be a number from 1 to {1 << 16}"
            )
        document = (
            _replicas(document, base, count)
            if name == "replicas"
            else _copies(document, base, name, count)
        )
    return document


def _set(document: Json, base: Base, path: str, value: Any) -> None:
    """Sets the field, in every entry of a list where the path says [*]; what is missing on the way
    is made. A field that the file has under another name is set under that one.
    """
    steps = _steps(base, path)
    if given := name_in(steps):
        above = steps[: -len(given)]
        for container in _containers(document, above, base, path):
            if isinstance(container, dict):
                present = (name for name in names_of(steps) if _has(container, name))
                _set_at(container, [*next(present, given)], base, path, value)
        return
    _set_at(document, steps, base, path, value)


def _has(container: Json, name: Keys) -> bool:
    inside: Any = container
    for key in name:
        inside = inside.get(key) if isinstance(inside, dict) else None
    return inside is not None


def _set_at(document: Json, steps: list[str | int], base: Base, path: str, value: Any) -> None:
    *above, last = steps
    for container in _containers(document, above, base, path):
        if isinstance(container, dict) and isinstance(last, str) and last != "*":
            container[last] = copy.deepcopy(value)
        elif isinstance(container, list) and (
            last == "*" or (isinstance(last, int) and last < len(container))
        ):
            for at in range(len(container)) if last == "*" else (int(last),):
                container[at] = copy.deepcopy(value)
        else:
            raise InputError(
                f'{base.space.path}: vary names "{path}", which {base.name} does not have'
            )


def _containers(document: Json, steps: Sequence[str | int], base: Base, path: str) -> list[Any]:
    """All that the first steps of a path lead to."""
    containers: list[Any] = [document]
    for step in steps:
        containers = [
            found for container in containers for found in _below(container, step, base, path)
        ]
    return containers


def _keep_paths_apart(base: Base) -> None:
    """A path that a later one sets again, or that is a part of one, would vary without effect."""
    names = [one.name for one in base.space.dimensions]
    others = ("replicas", RATE)
    paths = [one for one in names if not one.startswith(("--", COPIES)) and one not in others]
    for i, first in enumerate(paths):
        for later in paths[i + 1 :]:
            steps = _one_name(_steps(base, first)), _one_name(_steps(base, later))
            if len(steps[0]) >= len(steps[1]) and all(map(_meet, *steps)):
                raise InputError(
                    f"{base.space.path}: vary names {first} and, after it, {later}, which sets the "
                    "same; remove one, or name the whole before its parts"
                )


def _one_name(steps: list[str | int]) -> list[str | int]:
    """The path with the first name of its field."""
    given = name_in(steps)
    return [*steps[: -len(given)], *names_of(steps)[0]] if given else steps


def _meet(one: str | int, other: str | int) -> bool:
    return one == other or (
        "*" in (one, other) and all(isinstance(step, int) or step == "*" for step in (one, other))
    )


def _keep_devices_apart(base: Base, path: str) -> None:
    """Figures of one device in the cluster file would be those of every device that
    `vary` names.
    """
    others = [one.name for one in base.space.dimensions]
    stem = path.removesuffix("hardware")
    for container in _containers(copy.deepcopy(base.document), _steps(base, path)[:-1], base, path):
        memory = container.get("npu_mem") or {}
        given = [f"npu_mem.{key}" for key in ("mem_size", "mem_bw") if key in memory]
        given += ["price_per_device_hour"] if "price_per_device_hour" in container else []
        for key in given:
            if not any(name.startswith(f"{stem}{key.partition('.')[0]}") for name in others):
                raise InputError(
                    f"{base.space.path}: vary names {path}, but {base.name} gives {key}, which "
                    "would be the same for all of them; remove it there (the data sheets have it)"
                )


def _below(container: Any, step: str | int, base: Base, path: str) -> list[Any]:
    if isinstance(container, dict) and isinstance(step, str) and step != "*":
        if container.get(step) is None:
            container[step] = {}
        return [container[step]]
    if isinstance(container, list) and step == "*":
        return container
    if isinstance(container, list) and isinstance(step, int) and step < len(container):
        return [container[step]]
    raise InputError(f'{base.space.path}: vary names "{path}", which {base.name} does not have')


def _steps(base: Base, path: str) -> list[str | int]:
    """`nodes[0].instances[*].tp_size` as keys, indices and "*"."""
    if not re.fullmatch(r"[^.\[\]]+(\[(\d+|\*)\])*(\.[^.\[\]]+(\[(\d+|\*)\])*)*", path):
        raise InputError(
            f'{base.space.path}: vary names "{path}"; write a path such as '
            "nodes[*].instances[0].tp_size, an option of "
            "`llmsim run` such as --max-num-seqs, replicas, or copies of nodes[0].instances[0]"
        )
    parts = re.findall(r"[^.\[\]]+", path)
    return [int(part) if part.isdecimal() and len(part) < 10 else part for part in parts]


def _replicas(document: Json, base: Base, count: int) -> Json:
    """So many copies of the only instance, on as many nodes as they need."""
    nodes = document["nodes"]
    if len(nodes) != 1 or len(nodes[0]["instances"]) != 1:
        raise InputError(
            f"{base.space.path}: vary names replicas, but {base.name} has several instances; write "
            '"copies of nodes[0].instances[0]"'
        )
    (instance,) = nodes[0]["instances"]
    cluster = parse_cluster(json.dumps(document), base.name)
    each = next(one.layout.num_devices * one.layout.replicas for _, one in cluster.instances())
    per_node = base.space.file.devices_per_node // each
    if not per_node:
        raise InputError(
            f"an instance of {each} devices does not fit a node of "
            f"{base.space.file.devices_per_node}"
        )
    node = {key: value for key, value in nodes[0].items() if key != "num_instances"}
    left = range(0, count, per_node)
    made = [{**node, "instances": [instance] * min(per_node, count - i)} for i in left]
    return {**{key: value for key, value in document.items() if key != "num_nodes"}, "nodes": made}


def _copies(document: Json, base: Base, name: str, count: int) -> Json:
    """So many copies of one instance, on its node."""
    found = re.fullmatch(r"nodes\[(\d+)\]\.instances\[(\d+)\]", name.removeprefix(COPIES))
    if found is None or int(found[1]) >= len(document["nodes"]):
        raise InputError(
            f'{base.space.path}: vary names "{name}"; write "copies of nodes[0].instances[0]"'
        )
    node = document["nodes"][int(found[1])]
    node.pop("num_instances", None)
    at = int(found[2])
    if at >= len(node["instances"]):
        raise InputError(f'{base.space.path}: vary names "{name}", which {base.name} does not have')
    node["instances"][at : at + 1] = [node["instances"][at]] * count
    return document


def _from_anywhere(value: Any, folder: Path) -> Any:
    """The same with the files beside the cluster file named so that any folder finds
    them.
    """
    if isinstance(value, dict):
        return {key: _from_anywhere(one, folder) for key, one in value.items()}
    if isinstance(value, list):
        return [_from_anywhere(one, folder) for one in value]
    if not isinstance(value, str) or Path(value).is_absolute():
        return value
    for beside in (folder / value, Path(value)):
        if (beside.suffix in FILES and os.path.isfile(beside)) or os.path.isfile(
            beside / "config.json"
        ):
            return str(beside.resolve())
    return value
