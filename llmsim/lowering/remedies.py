"""What would hold a model that does not fit its devices, found by planning its group again."""

import math
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from llmsim.config import Group
from llmsim.config.engine.args import with_memory
from llmsim.config.errors import DoesNotFit, LlmsimError, WiderSplit

GIB = 1 << 30
MOST_DEVICES = 256
"""How many devices an instance may have at most in a remedy."""
USUAL_UTILIZATION = 0.92
"""vLLM's default of gpu_memory_utilization: more leaves other processes little."""
DEVICE_CLASSES = 4
"""How often a device may grow into a class with other batch defaults."""


def with_remedies(error: DoesNotFit, group: Group, plan: Callable[[Group], object]) -> DoesNotFit:
    """The error with the smallest device, the next wider split, and the share of the present
    memory, that `plan` takes.
    """
    least_gib = _least_gib(error, group, plan)
    wider, share = wider_split(group, plan), _utilization(error, group, plan)
    return DoesNotFit(error.problem, error.arithmetic, least_gib, wider, share)


def _utilization(error: DoesNotFit, group: Group, plan: Callable[[Group], object]) -> float | None:
    """The gpu_memory_utilization with which the group fits its devices, at most the usual one; None
    where it does not.
    """
    needed = error.least_gib * group.engine.gpu_memory_utilization * GIB
    share = math.ceil(needed / group.memory.capacity_bytes * 100) / 100
    if share > USUAL_UTILIZATION:
        return None
    try:
        plan(replace(group, engine=replace(group.engine, gpu_memory_utilization=share)))
    except LlmsimError:
        return None
    return share


def _least_gib(error: DoesNotFit, group: Group, plan: Callable[[Group], object]) -> float:
    """The memory of a device that would do with the batch defaults that the engine has on it."""
    least = error.least_gib
    for _ in range(DEVICE_CLASSES):
        memory = replace(group.memory, capacity_bytes=int(least * GIB))
        engine = with_memory(group.engine, group.hardware, memory.capacity_bytes)
        try:
            plan(replace(group, memory=memory, engine=engine))
        except DoesNotFit as again:
            least = again.least_gib
        except LlmsimError:
            break
    return least


def wider_split(
    group: Group, plan: Callable[[Group], object], most_stages: int = MOST_DEVICES
) -> WiderSplit | None:
    """The split with the fewest devices, and of these the one with the fewest pipeline stages, for
    which `plan` raises nothing; None: there is none.
    """
    for candidate in _candidates(group, most_stages):
        try:
            plan(candidate)
        except LlmsimError:
            continue
        experts = candidate.ep if candidate.ep != group.ep else None
        return WiderSplit(candidate.tp, candidate.pp, experts, group.tp, group.pp)
    return None


def _candidates(group: Group, most_stages: int) -> Iterator[Group]:
    """The group with twice as many devices, four times as many and so on.

    A group that lays out attention and FFN apart has sizes that depend on each other: it has none.
    """
    if group.ffn_tp is not None or group.afd is not None:
        return
    factor = 2
    while group.num_devices * factor <= MOST_DEVICES:
        stages = 1
        while stages <= min(factor, most_stages if group.pp_layers is None else 1):
            yield _split(group, factor // stages, stages)
            stages *= 2
        factor *= 2


def _split(group: Group, ranks: int, stages: int) -> Group:
    """The group with so many times its ranks and stages; experts stay spread over all ranks."""
    spread = group.ep is not None and group.ep == group.tp * group.pcp * group.dp > 1
    return replace(
        group,
        tp=group.tp * ranks,
        pp=group.pp * stages,
        ep=group.ep * ranks if spread and group.ep is not None else group.ep,
        num_devices=group.num_devices * ranks * stages,
    )
