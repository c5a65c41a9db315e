"""Options given beside a cluster file that no instance takes, since each has a value of its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from msgspec import Struct

from llmsim.config.cluster_file.cluster import Cluster, places_of
from llmsim.config.cluster_file.disaggregation import HANDS_OVER
from llmsim.config.cluster_file.instance import Instance
from llmsim.config.cluster_file.json_positions import Location, field_path
from llmsim.config.constraints import shown
from llmsim.config.engine.options import (
    SAME_OPTION,
    EngineOptions,
    command_line_options,
    given,
    name_used,
)
from llmsim.config.errors import InputError

DECODE_ROUTER = "decode_routing_policy"
PROFILE = "engine_profile"
MEMORY = "gpu_memory_utilization"


class OwnValue(Struct, frozen=True):
    """What an instance of the file gives for an option."""

    value: Any
    place: Location
    """Where the file gives it; its line takes a search of the whole text."""


class Overridden(Struct, frozen=True):
    """An option that every instance of the file gives a value of its own."""

    name: str
    """The field of `EngineOptions`, or the offloading key of an instance."""
    asked: Any
    own: tuple[OwnValue, ...]
    """In the order of the file."""

    @property
    def words(self) -> str:
        """The option as the command line has it."""
        dashed = self.name.replace("_", "-")
        if isinstance(self.asked, bool):
            return f"--{dashed}" if self.asked else f"--no-{dashed}"
        value = self.asked if isinstance(self.asked, str) else shown(self.asked)
        return f"--{dashed} {value}"

    @property
    def other(self) -> OwnValue | None:
        """The first value of the file that is not what was asked for; None: all are."""
        return next((one for one in self.own if one.value != self.asked), None)


def overridden(
    cluster: Cluster, options: Mapping[str, Any], switches: Set[str] = frozenset()
) -> list[Overridden]:
    """The engine options and the switches that no instance of any layout takes, in order.

    Raises pydantic's ValidationError for options that `resolve` refuses.
    """
    asked: dict[str, Any] = {}
    if options:  # a schema that is not needed is not built
        asked = _options(EngineOptions.model_validate(dict(options)))
    asked |= dict.fromkeys(sorted(switches), True)
    found = {name: own_values(cluster, name) for name in asked}
    return [Overridden(name, asked[name], own) for name, own in found.items() if own]


def own_values(cluster: Cluster, option: str) -> tuple[OwnValue, ...]:
    """The value of every instance of every layout; none where an instance takes the option."""
    name = first_name(option)
    found = []
    for location, instance in _instances(cluster):
        own = {**_options(instance), **_switches(instance)}
        if name not in own:
            return ()
        found.append(OwnValue(own[name], (*location, *_keys(instance, name))))
    return tuple(found)


def refuse_without_effect(
    clusters: Iterable[Cluster], option: str, *, where: str, field: str
) -> None:
    """Raises InputError for an option that varies, and that no instance of any cluster takes.

    `option` is its field, `where` begins the sentence, and `field` is the culprit's name for
    programs.
    """
    why = ""
    for cluster in clusters:
        why = _REASONS.get(option, _own_everywhere)(cluster, option)
        if not why:
            return
    if why:
        raise InputError(f"{where} changes nothing: {why}", field=field)


def _own_everywhere(cluster: Cluster, option: str) -> str:
    """Why no instance takes an option of the engine; empty where one does."""
    own = own_values(cluster, option)
    if not own:
        return ""
    value = f"{field_path(own[0].place)} is {shown(own[0].value)}"
    return f"every instance has a value of its own, and {value}; remove it there"


def _no_decodes(cluster: Cluster, _: str) -> str:
    """Why nothing chooses among decode instances; empty where there are some."""
    if hands_over(cluster):
        return ""
    return (
        'no instance has the pd_type decode; give instances the pd_type "prefill" and "decode", or '
        "leave it out"
    )


_REASONS: Mapping[str, Callable[[Cluster, str], str]] = {DECODE_ROUTER: _no_decodes}
"""Of options that are no instance's."""


def field_of(option: str) -> str:
    """The field of an option of the command line, such as `--max-num-seqs` or
    `--no-enable-prefix-caching`.
    """
    declared = {
        word: name
        for name, (mark, _) in command_line_options().items()
        for one in mark.declarations(name)
        for word in one.split("/")
    }
    return declared.get(option, option.removeprefix("--").replace("-", "_"))


def first_name(option: str) -> str:
    """The first of the names of an engine option."""
    return next((first for first, names in SAME_OPTION.items() if option in names), option)


def hands_over(cluster: Cluster) -> bool:
    """Whether any instance of any layout computes prompts or answers alone."""
    return any(one.pd_type in HANDS_OVER for _, one in _instances(cluster))


def _instances(cluster: Cluster) -> Iterator[tuple[Location, Instance]]:
    """Every instance of every layout, where the file describes it."""
    if cluster.layouts is None:
        yield from cluster.instances()
        return
    for layout in cluster.layouts:
        yield from places_of(cluster, layout)


def _options(options: EngineOptions) -> dict[str, Any]:
    """The engine options that were given, the profile and an instance's `mem_util` among them."""
    values = given(options)
    if isinstance(options, Instance) and options.memory_utilization is not None:
        values[MEMORY] = options.memory_utilization
    return values if options.engine_profile is None else {PROFILE: options.engine_profile, **values}


def _switches(instance: Instance) -> dict[str, Any]:
    return {
        name: value
        for name in Instance.model_fields
        if name not in EngineOptions.model_fields
        and isinstance(value := getattr(instance, name), bool)
    }


def _keys(instance: Instance, name: str) -> tuple[str, ...]:
    """Where an instance has its value of an option."""
    if name == MEMORY and instance.memory_utilization is not None:
        return ("npu_mem", "mem_util")
    return (name_used(instance, name),)
