"""One instance of the cluster file: a model on some devices, how it is split, placed and served."""

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from msgspec.structs import replace
from pydantic import Field, model_validator

from llmsim.config.cluster_file import vllm_names
from llmsim.config.cluster_file.devices import NpuMemory
from llmsim.config.cluster_file.dialect import LayoutKeys, ParallelLayout, infer_layout
from llmsim.config.constraints import broken_rule, shown
from llmsim.config.engine.options import SAME_OPTION, EngineOptions, require_equal
from llmsim.config.fields import (
    BlockRanges,
    FolderName,
    Fraction01,
    MemoryLocation,
    Name,
    PositiveCount,
    PricePerHour,
    Section,
)

AFD_ROLES = ("attention", "ffn")
"""Values of `pd_type` under attention-FFN disaggregation."""
DeviceNumber = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]


class Placement(Section):
    """Where weights, KV cache and evicted KV live."""

    weights: MemoryLocation | None = Field(default=None, description="Where the weights live.")
    kv_loc: MemoryLocation | None = Field(default=None, description="Where the KV cache lives.")
    kv_evict_loc: MemoryLocation | None = Field(default=None, description="Where evicted KV goes.")


class BlockPlacement(Placement):
    """The placement of some transformer blocks."""

    blocks: BlockRanges = Field(description="Transformer blocks, counted from 0, ends included.")

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The block numbers, in the order of the text."""
        numbers: list[int] = []
        for part in self.blocks.split(","):
            first, _, last = part.partition("-")
            numbers.extend(range(int(first), int(last or first) + 1))
        return tuple(numbers)

    @model_validator(mode="after")
    def _ranges_ascend(self) -> Self:
        for part in self.blocks.split(","):
            first, _, last = part.partition("-")
            if last and int(last) < int(first):
                raise broken_rule(
                    "blocks",
                    f"is {shown(self.blocks)}; the range {part.strip()} ends before it begins",
                )
        return self


class Placements(Section):
    """Priority: layers, then blocks, then default; what none of them names is on the devices
    ("npu").
    """

    default: Placement = Field(
        default_factory=Placement, description="Placement of what is not named below."
    )
    blocks: tuple[BlockPlacement, ...] = Field(
        default=(), strict=False, description="Placement of whole transformer blocks."
    )
    layers: dict[Name, Placement] = Field(
        default_factory=dict, description="Placement by operator name."
    )

    @property
    def entries(self) -> tuple[Placement, ...]:
        """All placements that are given, wherever."""
        return (self.default, *self.blocks, *self.layers.values())


class Instance(EngineOptions):
    """A model on the devices of a node, or of several; any engine option given here wins over the
    command line.
    """

    model_name: Name = Field(
        description="Hugging Face id of a known model, or the path of a config.json or its folder."
    )
    model: Name | None = Field(default=None, description="Sets model_name under vLLM's name.")
    hardware: FolderName = Field(
        description=(
            "Device: a preset's name, a folder of profile bundles, or a data sheet (.json, "
            "beside this file)."
        )
    )
    npu_mem: NpuMemory | None = Field(
        default=None,
        description=(
            "Memory of each device; what is not given comes from the hardware's data sheet."
        ),
    )
    num_npus: PositiveCount | None = Field(
        default=None, description="Devices: tp_size x pp_size (x prefill_context_parallel_size)."
    )
    tp_size: PositiveCount | None = Field(
        default=None, description="Tensor-parallel devices per pipeline stage."
    )
    pp_size: PositiveCount | None = Field(default=None, description="Pipeline stages.")
    tensor_parallel_size: PositiveCount | None = Field(
        default=None, description="Sets tp_size under vLLM's name."
    )
    pipeline_parallel_size: PositiveCount | None = Field(
        default=None, description="Sets pp_size under vLLM's name."
    )
    data_parallel_size: PositiveCount | None = Field(
        default=None,
        description=(
            "Data-parallel ranks of tp_size devices: engines of their own, which share the "
            "experts of a mixture of experts."
        ),
    )
    enable_expert_parallel: bool | None = Field(
        default=None,
        description="Spread whole experts over all ranks (true), or cut every expert over them "
        "(false). Without it experts are cut beside tensor_parallel_size or data_parallel_size, "
        "as in vLLM, and spread beside tp_size.",
    )
    peer_to_peer: bool | None = Field(
        default=None,
        description="Whether devices of a server read each other's memory; false: through the "
        "host's. Measured collectives are those of such a machine; of any if not given.",
    )
    prefill_context_parallel_size: PositiveCount | None = Field(
        default=None,
        description=(
            "Devices for each tensor-parallel rank that share the tokens of prompts; 1 if not "
            "given."
        ),
    )
    nnodes: PositiveCount | None = Field(
        default=None,
        description="Nodes that share the devices evenly in the order of the ranks: the instance's "
        "own and the next ones of the file; 1 if not given.",
    )
    ep_size: PositiveCount | None = Field(
        default=None, description="Expert-parallel ranks; with a dp_group, over all of its members."
    )
    dp_group: Name | None = Field(
        default=None, description="Data-parallel group that this instance belongs to."
    )
    attn_tp_size: PositiveCount | None = Field(
        default=None,
        description="Tensor-parallel ranks of the attention, where the FFN is laid out otherwise.",
    )
    attn_dp_size: PositiveCount | None = Field(
        default=None,
        description=(
            "Data-parallel ranks of the attention: engines of their own that share the FFN."
        ),
    )
    ffn_tp_size: PositiveCount | None = Field(
        default=None,
        description=(
            "Ranks over which an FFN, or one expert, is cut; x ffn_ep_size it spans the "
            "attention's devices."
        ),
    )
    ffn_ep_size: PositiveCount | None = Field(
        default=None,
        description="Expert-parallel ranks of the FFN; of a dense model, copies of it.",
    )
    pp_layers: tuple[PositiveCount, ...] | None = Field(
        default=None,
        strict=False,
        description="Layers of each pipeline stage; even shares if not given.",
    )
    npu_num: PositiveCount | None = Field(default=None, description="Devices (older dialect).")
    npu_group: PositiveCount | None = Field(
        default=None, description="Pipeline stages (older dialect)."
    )
    topology_devices: tuple[DeviceNumber, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1 << 16,
        strict=False,
        description=(
            "Devices of the cluster's topology, in the order of the ranks; the next free ones if "
            "not given."
        ),
    )
    topology_group: Name | None = Field(
        default=None,
        description="Group of the cluster's topology, whose first devices the ranks stand on.",
    )
    pd_type: Literal["prefill", "decode", "attention", "ffn"] | None = Field(
        default=None,
        description="Role under disaggregation: prompts, answers, or of the answers' layers the "
        "attention or the FFN; null: everything.",
    )
    afd_group: Name | None = Field(
        default=None,
        description="Attention and FFN instances that run every layer together (pd_type attention "
        "and ffn).",
    )
    afd_micro_batches: Annotated[int, Field(ge=1, le=16)] | None = Field(
        default=None,
        description="Parts of a batch that alternate between attention and FFN devices; 2 if not "
        "given.",
    )
    afd_dispatch: Literal["dense", "routed"] | None = Field(
        default=None,
        description="Rows from attention to FFN devices: each token once (dense, the default), or "
        "to the ranks of its experts (routed).",
    )
    placement: Placements | None = Field(
        default=None, description="Where weights and KV cache live."
    )
    price_per_device_hour: PricePerHour | None = Field(
        default=None, description="Price of one device; the data sheet's if not given."
    )
    enable_block_copy: bool | None = Field(
        default=None,
        description="Accepted without effect: identical layers are always evaluated once.",
    )
    enable_local_offloading: bool | None = Field(
        default=None, description="Charge weight reads from device memory."
    )
    enable_attn_offloading: bool | None = Field(
        default=None, description="Run decode attention in memory (PIM)."
    )
    enable_sub_batch_interleaving: bool | None = Field(
        default=None, description="Overlap two half batches, on devices and in memory."
    )

    operator_devices: dict[Name, Literal["npu", "cpu", "pim"]] = Field(
        default_factory=dict,
        description="Which class of device runs an operator or a class of them (attention, ffn, "
        "experts, norms, projections, head): the accelerators, the node's processors, or memory "
        "that computes.",
    )
    sub_batch_rule: Literal["shorter", "always"] | None = Field(
        default=None,
        description="When sub-batches are used: where the step gets shorter (default), or always.",
    )
    weight_buffers: Annotated[int, Field(ge=2, le=64)] | None = Field(
        default=None,
        description="Layers whose copied weights fit the device at once; 2 if not given.",
    )
    expert_prefetch: Literal["layer", "touched", "demand"] | None = Field(
        default=None,
        description="Offloaded experts: copy all of a layer ahead (default), those that the step "
        "will use as soon as it starts, or those after the gate has chosen them.",
    )
    expert_cache: Fraction01 | None = Field(
        default=None,
        description="Share of the offloaded experts that stays on the device; 0 if not given.",
    )

    @property
    def memory_utilization(self) -> float | None:
        """`npu_mem.mem_util`, if given."""
        return None if self.npu_mem is None else self.npu_mem.utilization

    @cached_property
    def layout(self) -> ParallelLayout:
        """Devices, tp, pp and ep, whichever dialect gave them."""
        keys = {name: getattr(self, name) for name in LayoutKeys.__struct_fields__}
        for name, vllm in vllm_names.SIZES.items():
            require_equal((name, vllm), (keys[name], getattr(self, vllm)))
            keys[name] = keys[name] if keys[name] is not None else getattr(self, vllm)
        given = LayoutKeys(**keys)
        vllm_names.check_experts(given, self.enable_expert_parallel)
        layout = infer_layout(vllm_names.data_parallel(given, self.data_parallel_size))
        cut = vllm_names.cuts_experts(self, given) and self.afd_group is None
        return replace(layout, ep=1) if cut else layout

    @model_validator(mode="before")
    @classmethod
    def _names_of_vllm(cls, given: Any) -> Any:
        return vllm_names.renamed(given)

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if self.model not in (None, self.model_name):
            raise broken_rule("model", "is given, and so is model_name; keep one of them")
        return self

    @model_validator(mode="after")
    def _layout_is_consistent(self) -> Self:
        _ = self.layout
        return self

    @model_validator(mode="after")
    def _afd_keys_have_a_role(self) -> Self:
        if self.pd_type in AFD_ROLES:
            if self.afd_group is None:
                raise broken_rule(
                    "pd_type",
                    f'is "{self.pd_type}", but the instance names no afd_group; give it the name '
                    "of those that it runs its layers with",
                )
            return self
        for name in ("afd_group", "afd_micro_batches", "afd_dispatch"):
            if getattr(self, name) is not None:
                raise broken_rule(
                    name,
                    f"is {shown(getattr(self, name))}, but pd_type is {shown(self.pd_type)}; it "
                    'goes with the pd_type "attention" or "ffn"',
                )
        return self

    @model_validator(mode="after")
    def _nodes_share_the_devices(self) -> Self:
        nodes, layout = self.nnodes or 1, self.layout
        if nodes == 1:
            return self
        for name in ("dp_group", "afd_group"):
            if getattr(self, name) is not None:
                raise broken_rule(
                    "nnodes",
                    f"is {nodes} beside {name}, whose instances are on one node each; give "
                    "attn_dp_size or data_parallel_size for ranks on several nodes",
                )
        each, left = divmod(layout.num_devices * layout.replicas, nodes)
        stage = layout.num_devices // layout.pp
        for size in (layout.num_devices, stage):
            if left or (each % size and size % each):
                raise broken_rule(
                    "nnodes",
                    f"is {nodes}, but {layout.replicas} data-parallel ranks of {layout.pp} stages "
                    f"of {stage} devices do not fill so many nodes evenly",
                )
        return self

    @model_validator(mode="after")
    def _one_position_in_the_topology(self) -> Self:
        if self.topology_devices is not None and self.topology_group is not None:
            raise broken_rule(
                "topology_group", "is given, and so is topology_devices; keep one of them"
            )
        devices = self.layout.num_devices * self.layout.replicas
        if self.topology_devices is not None and len(self.topology_devices) != devices:
            given = len(self.topology_devices)
            raise broken_rule(
                "topology_devices", f"has {given} entries, but there are {devices} devices"
            )
        return self

    @model_validator(mode="after")
    def _one_entry_per_stage(self) -> Self:
        if self.pp_layers is not None and len(self.pp_layers) != self.layout.pp:
            raise broken_rule(
                "pp_layers",
                f"has {len(self.pp_layers)} entries, but there are {self.layout.pp} stages",
            )
        return self

    @model_validator(mode="after")
    def _one_memory_utilization(self) -> Self:
        names = (*SAME_OPTION["gpu_memory_utilization"], "npu_mem.mem_util")
        require_equal(
            names,
            (self.gpu_memory_utilization, self.npu_memory_utilization, self.memory_utilization),
        )
        return self
