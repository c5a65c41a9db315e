"""The deployments of a model on a number of devices: every architecture, layout and split."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from llmsim.config.errors import InputError, nearest
from llmsim.sizing.plan import Plan, Pool, Shape
from llmsim.sizing.shapes import AFD, ARCHITECTURES, KNOWN, afd_shapes, shapes

DEPLOYMENT = "deployment"
"""The name of the dimension whose values are the deployments."""
STEPS = 32
"""Splits of the devices between prefill and decode instances, unless `split_step` says otherwise.
"""
STAGES = (1, 2, 4)
AFD_KEYS = ("ffn", "attention_instances", "ffn_instances", "afd_micro_batches")
MOST = {"attention_instances": 1024, "ffn_instances": 1024, "afd_micro_batches": 16}
Given = TypeVar("Given", str, int)


@dataclass(frozen=True)
class Template:
    """What a search file says in place of a cluster file."""

    model: str
    hardware: str | list[str]
    gpus: int | list[int]
    architecture: str | list[str]
    split_step: int
    tp: list[int]
    pp: list[int]
    ffn: list[int]
    attention_instances: list[int]
    ffn_instances: list[int]
    afd_micro_batches: list[int]


def plans_of(where: str, template: Template, devices_per_node: int) -> dict[str, Plan]:
    """Every deployment by its label; only layouts that the rules allow are among them.

    Raises InputError that begins with `where`.
    """
    from llmsim.model import load_model
    from llmsim.model.hardware import data_sheet

    load_model(template.model)
    devices = _listed(template.hardware)
    counts = _listed(template.gpus)
    for i, count in enumerate(counts):
        if not 1 <= count <= 1 << 16:
            field = f"gpus[{i}]" if isinstance(template.gpus, list) else "gpus"
            raise InputError(
                f"{where}: {field} is {count}; it must be from 1 to {1 << 16}", field=field
            )
    found: dict[str, Plan] = {}
    for device, count in itertools.product(devices, counts):
        data_sheet(device)
        for architecture in _architectures(where, template):
            for plan in _plans(template, device, count, architecture, devices_per_node):
                name = f"{device}: " if len(devices) > 1 else ""
                found[f"{name}{plan.label}"] = plan
    if not found:
        raise InputError(
            f"{where}: no layout of {template.model} has exactly {template.gpus} devices; give "
            f"other gpus, tp{', ffn' if template.ffn else ''} or pp"
        )
    return found


def _listed(given: Given | list[Given]) -> list[Given]:
    return given if isinstance(given, list) else [given]


def _architectures(where: str, template: Template) -> Iterator[str]:
    names = list(_listed(template.architecture) or ARCHITECTURES)
    for name in names:
        if name not in KNOWN:
            raise InputError(
                f'{where}: architecture is "{name}"{nearest(name, KNOWN)}; give {", ".join(KNOWN)}'
            )
        yield name
    for key in AFD_KEYS:
        given = getattr(template, key)
        if given and AFD not in names:
            raise InputError(
                f"{where}: {key} goes with the architecture {AFD}, which is not among "
                f"{', '.join(names)}; remove {key}, or add {AFD}"
            )
        for count in given if key in MOST else ():
            if not 1 <= count <= MOST[key]:
                raise InputError(f"{where}: {key} has {count}; give 1 to {MOST[key]}")


def _plans(
    template: Template, device: str, gpus: int, architecture: str, devices_per_node: int
) -> Iterator[Plan]:
    allowed = [
        shape
        for shape in shapes(template.model, devices_per_node, STAGES)
        if (not template.tp or shape.tp in template.tp)
        and (not template.pp or shape.pp in template.pp)
    ]
    if architecture == "colocated":
        for shape in allowed:
            if gpus % shape.devices == 0:
                pools: tuple[Pool, ...] = (Pool(shape, gpus // shape.devices),)
                yield Plan(template.model, device, pools, devices_per_node=devices_per_node)
        return
    tensor_parallel = [shape for shape in allowed if shape.pp == shape.dp == 1]
    decodes = tensor_parallel
    if architecture == AFD:
        decodes = _apart(template, devices_per_node)
        for shape in decodes:
            if gpus % shape.devices == 0:
                pools = (Pool(shape, gpus // shape.devices),)
                yield Plan(template.model, device, pools, devices_per_node=devices_per_node)
    step = template.split_step or max(1, gpus // STEPS)
    for pools in _splits(tensor_parallel, decodes, gpus, step):
        yield Plan(template.model, device, pools, devices_per_node=devices_per_node)


def _apart(template: Template, devices_per_node: int) -> list[Shape]:
    """Attention on `tp` devices, FFN on `ffn` ones; neither has stages."""
    if template.pp and 1 not in template.pp:
        return []
    return [
        shape
        for shape in afd_shapes(template.model, devices_per_node, *_together(template))
        if (not template.tp or shape.tp in template.tp)
        and (not template.ffn or shape.ffn in template.ffn)
    ]


def _together(template: Template) -> tuple[Sequence[int], ...]:
    """Attention instances, and FFN instances, that may run their layers together, and lanes."""
    return (
        template.attention_instances or (1,),
        template.ffn_instances or (1,),
        template.afd_micro_batches or (0,),
    )


def _splits(
    prefills: Sequence[Shape], decodes: Sequence[Shape], gpus: int, step: int
) -> Iterator[tuple[Pool, ...]]:
    """Prefill and decode instances of any two layouts, for every split of the devices in steps."""
    for one, other in itertools.product(prefills, decodes):
        for prefill in range(step, gpus, step):
            decode = gpus - prefill
            if prefill % one.devices == 0 and decode % other.devices == 0:
                yield (
                    Pool(one, prefill // one.devices, "prefill"),
                    Pool(other, decode // other.devices, "decode"),
                )
