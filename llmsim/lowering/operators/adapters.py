"""LoRA adapters of a group: their slots, and what they add to its operators."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.config import Deployment, EngineArgs, Group
from llmsim.lowering.parallel_layout import stages_of, untimed_layout
from llmsim.model import AdapterCopy, CopyRate, Dtypes, Hardware, Layout, Moe, Operator
from llmsim.model.memory.lora_slots import DEFAULT_RANK, LoraSlots, adapter_bytes
from llmsim.model.operators.lora import copies_of_adapter, touched_experts, with_lora
from llmsim.model.types import ModelConfig

LAUNCHES_PER_MATRIX = 2
"""vLLM clears the slot's matrix, and copies the adapter's (`lora/layers/base_linear.py`)."""


def lora_slots(engine: EngineArgs) -> LoraSlots | None:
    """The slots on each device; None: the engine takes no adapters."""
    if engine.max_loras is None:
        return None
    rank = engine.max_lora_rank or DEFAULT_RANK
    return LoraSlots(engine.max_loras, rank, fully_sharded=engine.fully_sharded_loras)


def untimed_adapters(group: Group, layout: Layout, hardware: Hardware | None) -> str:
    """With what the time of a group's adapters is not modelled; "": it is, or there are none."""
    if group.engine.max_loras is None:
        return ""
    reason = untimed_layout(group, layout)
    if not reason and hardware is None and group.memory.bandwidth_bytes_per_s <= 0:
        reason = "devices whose memory's bandwidth is not known"
    return reason


def most_adapters(engine: EngineArgs) -> int:
    """Adapters of a step at most."""
    return min(engine.max_loras or 0, engine.max_num_seqs)


class AdapterLayout(Struct, frozen=True):
    """Where the adapters of a group run."""

    group: Group
    deployment: Deployment
    model: ModelConfig
    layout: Layout
    dtypes: Dtypes
    slots: LoraSlots

    def stages(self, stages: Sequence[Sequence[Operator]]) -> tuple[tuple[Operator, ...], ...]:
        """The operators of each stage, its adapters' among them."""
        return tuple(
            (*self.copies(layout, stage), *self.added(stage))
            for layout, stage in zip(stages_of(self.layout), stages, strict=True)
        )

    def distinct(
        self, stages: Sequence[Sequence[Operator]], operators: Sequence[Operator]
    ) -> tuple[Operator, ...]:
        """What must be priced, from the operators of the stages and of a replica in one stage, both
        without adapters.
        """
        copies = map(self.copies, stages_of(self.layout), stages)
        return (*(one for of_stage in copies for one in of_stage), *self.added(operators))

    def added(self, program: Sequence[Operator]) -> tuple[Operator, ...]:
        """The operators with what adapters add to each."""
        return with_lora(
            program, self.model, self.dtypes, self.slots.rank, self.slots.ranks(self.layout)
        )

    def copies(self, layout: Layout, stage: Sequence[Operator]) -> list[AdapterCopy]:
        """What a stage does before a step with an adapter that is not in a slot: each rank copies
        its part over the node's link, and each has read the whole file before.
        """
        number = f"_{layout.stage}" if layout.pp > 1 else ""
        rank, ranks = self.slots.rank, self.slots.ranks(layout)
        load = AdapterCopy(
            name=f"lora_load{number}",
            repeat=1,
            feature="adapter_loads",
            part="prologue",
            adapter_bytes=adapter_bytes(self.model, layout, self.dtypes, rank, ranks),
            launches=LAUNCHES_PER_MATRIX * copies_of_adapter(stage, self.model),
            rate=_rate_to_devices(self.group, self.deployment, layout),
        )
        whole = adapter_bytes(self.model, Layout(), self.dtypes, rank)
        files = _rate_of_files(self.group, self.deployment)
        if files is None:
            return [load]
        read = replace(
            load,
            name=f"lora_read{number}",
            feature="adapter_reads",
            adapter_bytes=whole,
            launches=0,
            rate=files,
        )
        return [read, load]


def _rate_to_devices(group: Group, deployment: Deployment, layout: Layout) -> CopyRate:
    """Of one rank, while all ranks of its stage copy."""
    port = deployment.host_links.port(group.index, layout.stage_ranks)
    key = "host_link" if deployment.host_links.apart(group.nodes) else "link_bw"
    memory = deployment.nodes[group.node].host_memory
    if memory is None:
        return CopyRate(port.bandwidth_bytes_per_s, port.latency_ps, f"{key} of the cluster file")
    shared = memory.bandwidth_bytes_per_s // layout.stage_ranks
    return CopyRate(
        min(port.bandwidth_bytes_per_s, shared),
        port.latency_ps + memory.latency_ps,
        f"{key} and cpu_mem of the cluster file",
    )


def _rate_of_files(group: Group, deployment: Deployment) -> CopyRate | None:
    """Of a file that comes from the node's storage, or from the part of host memory that keeps
    files; None: the cluster file has neither.
    """
    node = deployment.nodes[group.node]
    if node.storage is not None:
        storage = node.storage
        whence = "storage of the cluster file"
        return CopyRate(storage.read_bytes_per_s, storage.read_latency_ps, whence)
    if node.host_memory is None:
        return None
    memory = node.host_memory
    return CopyRate(memory.bandwidth_bytes_per_s, memory.latency_ps, "cpu_mem of the cluster file")


def experts_of_adapters(operators: Sequence[Operator]) -> list[int]:
    """`LoraSlotsConfig.experts` of a program; empty: it has no experts."""
    return next((touched_experts(op) for op in operators if isinstance(op, Moe)), [])


def lora_config(engine: EngineArgs, operators: Sequence[Operator]) -> "_native.LoraSlotsConfig":
    """The core's slots, for a group whose adapters take time."""
    native = _native.LoraSlotsConfig()
    if engine.max_loras is not None and any(isinstance(op, AdapterCopy) for op in operators):
        native.slots = engine.max_loras
        native.host_slots = engine.max_cpu_loras or engine.max_loras
        native.experts = experts_of_adapters(operators)
    return native
