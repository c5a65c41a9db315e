"""Where the weights of a group are, and the memories beside its devices: what they hold, and who uses them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmsim.config import Deployment, Group
from llmsim.config.deployment import MemorySpec
from llmsim.config.errors import InputError, nearest
from llmsim.lowering.network import BETWEEN_GROUPS
from llmsim.model import Layout, Operator

DEVICE, HOST = "npu", "cpu"


@dataclass(frozen=True)
class Port:
    """A device's link to the other memories of its node."""

    bandwidth_bytes_per_s: int
    latency_ps: int


def port_of(deployment: Deployment) -> Port:
    """The link between instances of a node: dimension 1, or the last one that is given."""
    link = deployment.link
    at = min(BETWEEN_GROUPS, len(link.bandwidth_bytes_per_s) - 1)
    return Port(link.bandwidth_bytes_per_s[at], link.latency_ps[at])


def memory_at(deployment: Deployment, node: int, place: str) -> MemorySpec:
    """The memory that "cpu" means on a node, or the device of the pool. InputError where the file declares none."""
    if place == HOST:
        memory = deployment.nodes[node].host_memory
        if memory is None:
            raise InputError('weights are placed at "cpu", but the node has no cpu_mem; declare it')
        return memory
    assert deployment.pool is not None, "the file's reader checks it"
    return deployment.pool.device


@dataclass(frozen=True)
class Execution:
    """One execution of one operator of a stage; `layer` counts all layers of the model."""

    stage: int
    position: int
    op: Operator
    number: int
    layer: int


class Where:
    """Where each execution of each operator has its weights: layers before blocks before default.

    `hosted` are the operators that the node's processors run: their weights are in its memory, and stay there.
    """

    def __init__(
        self, group: Group, layout: Layout, stages: Sequence[Sequence[Operator]], hosted: frozenset[str] = frozenset()
    ) -> None:
        self.group, self.stages, self.hosted = group, stages, hosted
        self.placement = group.offloading.placement
        self.first_layers = [sum(layout.stage_layers[:stage]) for stage in range(len(stages))]
        names = [op.name for operators in stages for op in operators]
        for name in self.placement.layers if self.placement is not None else ():
            if name not in names:
                known = ", ".join(dict.fromkeys(names))
                raise InputError(f'placement.layers has "{name}", which is no operator{nearest(name, names)}: {known}')

    def of(self, execution: Execution) -> str:
        """The memory of one execution's weights."""
        if execution.op.name in self.hosted:
            return HOST
        if self.placement is None:
            return DEVICE
        layer = self.placement.layers.get(execution.op.name)
        if layer is not None and layer.weights is not None:
            return layer.weights
        if execution.op.part == "layer":
            for block in self.placement.blocks:
                if execution.layer in block.numbers and block.weights is not None:
                    return block.weights
        return self.placement.default.weights or DEVICE

    def executions(self) -> Iterator[Execution]:
        """Every operator with weights, once per execution in a step."""
        for stage, operators in enumerate(self.stages):
            for position, op in enumerate(operators):
                for number in range(op.repeat if op.weight_bytes else 0):
                    yield Execution(stage, position, op, number, self.first_layers[stage] + number)

    def bytes_elsewhere(self, stage: int) -> dict[str, int]:
        """Bytes of one rank of a stage by memory, without the device."""
        found: dict[str, int] = {}
        for execution in self.executions():
            place = self.of(execution)
            if execution.stage == stage and place != DEVICE:
                found[place] = found.get(place, 0) + self.bytes_there(execution.op)
        return {place: size for place, size in found.items() if size}

    def bytes_there(self, op: Operator) -> int:
        """Of one execution: experts in the cache stay on the device."""
        if op.kind != "moe" or op.name in self.hosted:
            return op.weight_bytes
        return op.weight_bytes - int(op.weight_bytes * self.group.offloading.expert_cache)
