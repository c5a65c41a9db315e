"""Where the weights of a group are, and the memories beside its devices: what they hold, and who
uses them.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from llmsim.config import Deployment, Group
from llmsim.config.deployment import MemorySpec
from llmsim.config.errors import InputError, nearest
from llmsim.model import Layout, ModelConfig, Moe, Operator

DEVICE, HOST = "npu", "cpu"


def memory_at(deployment: Deployment, node: int, place: str) -> MemorySpec:
    """The memory that "cpu" means on a node, or the device of the pool. InputError where the file
    declares none.
    """
    if place == HOST:
        memory = deployment.nodes[node].host_memory
        if memory is None:
            raise InputError('weights are placed at "cpu", but the node has no cpu_mem; declare it')
        return memory
    assert deployment.pool is not None, "the file's reader checks it"
    return deployment.pool.device


class Execution(Struct, frozen=True):
    """One execution of one operator of a stage; `layer` counts all layers of the model."""

    stage: int
    position: int
    op: Operator
    number: int
    layer: int


class Where:
    """Where each execution of each operator has its weights: layers before blocks before default.

    `hosted` are the operators that the node's processors run: their weights are in its memory, and
    stay there.
    """

    def __init__(
        self,
        group: Group,
        model: ModelConfig,
        layout: Layout,
        stages: Sequence[Sequence[Operator]],
        hosted: frozenset[str] = frozenset(),
    ) -> None:
        self.group, self.model, self.stages, self.hosted = group, model, stages, hosted
        self.placement = group.offloading.placement
        ends = list(accumulate(layout.stage_layers or (model.num_layers,)))
        self.layers = [range(first, last) for first, last in zip([0, *ends], ends, strict=False)]
        names = [op.name for operators in stages for op in operators]
        for name in self.placement.layers if self.placement is not None else ():
            if name not in names:
                known = ", ".join(dict.fromkeys(names))
                raise InputError(
                    f'placement.layers has "{name}", which is no operator{nearest(name, names)}: '
                    f"{known}"
                )
        for index, block in enumerate(self.placement.blocks if self.placement is not None else ()):
            if (last := max(block.numbers)) >= model.num_layers:
                raise InputError(
                    f"placement.blocks[{index}] names block {last}, but the model has blocks 0 to "
                    f"{model.num_layers - 1}"
                )

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
                if op.weight_bytes:
                    for number, layer in enumerate(self._layers_of(op, stage)):
                        yield Execution(stage, position, op, number, layer)

    def _layers_of(self, op: Operator, stage: int) -> Sequence[int]:
        """Which layers of the model the executions of a stage's operator belong to."""
        layers = self.layers[stage]
        if op.part != "layer" or not op.in_layers:
            return range(layers.start, layers.start + op.repeat)
        return [layers.start + number for number in op.in_layers]

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
        if not isinstance(op, Moe) or op.name in self.hosted:
            return op.weight_bytes
        return op.weight_bytes - int(op.weight_bytes * self.group.offloading.expert_cache)
