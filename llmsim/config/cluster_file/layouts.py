"""Layouts over the same devices, when to switch between them, and what a switch costs."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from llmsim.config.cluster_file.devices import Host
from llmsim.config.cluster_file.instance import Instance
from llmsim.config.constraints import broken_rule
from llmsim.config.fields import BandwidthGbPerS, Name, PositiveCount, Section, TimeS

OpenShare = Annotated[float, Field(gt=0, lt=1)]
TRIGGERS = ("active_share_below", "at_s", "queue_empty", "waiting_below", "tail")


class LayoutInstance(Instance):
    """Equal instances of a layout, on one device after the other."""

    count: PositiveCount = Field(default=1, description="How many equal instances there are.")


LayoutInstances = Annotated[tuple[LayoutInstance, ...], Field(strict=False, max_length=1 << 16)]


class LayoutNode(Host):
    """What every host of the layouts is; their devices lie on hosts in order."""

    devices: PositiveCount = Field(default=8, description="Devices of each host.")


class Tail(Section):
    """The end of a batch of requests."""

    finished_share_above: OpenShare = Field(
        description="Share of all requests that have finished or left."
    )


class When(Section):
    """What a switch waits for; exactly one key. All but `at_s` are looked at when a step ends."""

    active_share_below: OpenShare | None = Field(
        default=None,
        description="Share of all requests that have not finished or left; those that are still "
        "to arrive count.",
    )
    at_s: TimeS | None = Field(default=None, description="Time since the start of the run.")
    queue_empty: Literal[True] | None = Field(
        default=None, description="No request waits in any instance."
    )
    waiting_below: PositiveCount | None = Field(
        default=None, description="Fewer requests than this wait in the instances."
    )
    tail: Tail | None = Field(default=None, description="Only the tail of the batch is left.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in TRIGGERS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "nothing"
            raise broken_rule((), f"gives {found}; give exactly one of {', '.join(TRIGGERS)}")
        return self


class Switch(Section):
    """One switch; the next one in the list waits until it has happened."""

    to: Name = Field(description="The layout that serves from then on.")
    when: When = Field(description="What the switch waits for.")


class Reconfiguration(Section):
    """What a switch costs, in the order drain, weights, KV, process."""

    weights: Literal["links", "host", "cached"] = Field(
        default="links",
        description="Whether devices get what they lack from other devices, load their shards "
        "from the host, or hold the shards of all layouts all the time.",
    )
    kv: Literal["move", "recompute", "drop"] = Field(
        default="recompute",
        description="Whether KV moves to the instance that takes a request, is computed again "
        "there, or requests begin anew.",
    )
    host_gb_per_s: BandwidthGbPerS | None = Field(
        default=None,
        description="How fast each device loads weights from its host; its part of the host_link "
        "if not given, and 50 without one.",
    )
    process_s: TimeS = Field(
        default=0.0, description="Restart of processes and capture of CUDA graphs."
    )
    fixed_s: TimeS | None = Field(
        default=None, description="Replaces weights, KV and process: the whole cost but the drain."
    )

    @model_validator(mode="after")
    def _fixed_is_all(self) -> Self:
        if self.fixed_s is not None and self.process_s:
            raise broken_rule(
                "process_s", f"is {self.process_s:g}, but fixed_s is the whole cost; keep one"
            )
        return self


def check_layouts(
    layouts: Mapping[str, Sequence[LayoutInstance]], initial: str | None, switches: Sequence[Switch]
) -> None:
    """Raises where names or devices do not agree."""
    if not layouts:
        raise broken_rule("layouts", "is empty; name at least one layout")
    known = ", ".join(layouts)
    if initial is not None and initial not in layouts:
        raise broken_rule("initial", f'is "{initial}", which is no layout; it may be {known}')
    before = initial or next(iter(layouts))
    for i, switch in enumerate(switches):
        if switch.to not in layouts:
            raise broken_rule(
                ("switch", i, "to"), f'is "{switch.to}", which is no layout; it may be {known}'
            )
        if switch.to == before:
            raise broken_rule(
                ("switch", i, "to"), f'is "{switch.to}", which serves already at that point'
            )
        before = switch.to
    first, devices = None, {}
    for name, instances in layouts.items():
        if not instances:
            raise broken_rule(("layouts", name), "has no instances; give at least one")
        for i, instance in enumerate(instances):
            _check_instance(("layouts", name, i), instance)
        devices[name] = sum(one.count * devices_of(one) for one in instances)
        first = first or name
        if devices[name] != devices[first]:
            raise broken_rule(
                ("layouts", name),
                f"has {devices[name]} devices, but {first} has {devices[first]}; layouts share "
                "the same devices",
            )
        kinds = {one.hardware for one in (*layouts[first], *instances)}
        if len(kinds) > 1:
            raise broken_rule(
                ("layouts", name), f"has {' and '.join(sorted(kinds))}; layouts share equal devices"
            )


def devices_of(instance: LayoutInstance) -> int:
    """Devices of all its data-parallel ranks."""
    return instance.layout.num_devices * instance.layout.replicas


def _check_instance(place: tuple[str | int, ...], instance: LayoutInstance) -> None:
    if instance.nnodes is not None:
        raise broken_rule(
            (*place, "nnodes"),
            "is given, but devices of layouts lie on nodes in order (node.devices); remove it",
        )
    for key in ("topology_devices", "topology_group"):
        if getattr(instance, key) is not None:
            raise broken_rule(
                (*place, key),
                "is given, but instances of layouts take the devices of a topology in order; "
                "remove it",
            )
