"""Operators on other devices of the group's pool: which, what they cost there, and what travels
there and back.

The node's processors run whole operators. Their cores are divided among the accelerators that use
them (each rank's operators have the cores of its part for themselves), so that one of n takes n
times as long as the whole node. Weights of such operators are in the node's memory; attention there
keeps the KV cache there.
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.errors import InfeasibleError, InputError, nearest
from llmsim.config.files import input_files
from llmsim.costs import (
    AttentionCost,
    CompiledCosts,
    CostRequest,
    MixedAttention,
    OpCost,
    SplitAttention,
    compile_costs,
)
from llmsim.costs.hardware_limits import floor_of, peak_rates_of
from llmsim.costs.source import Floor, MixedGrid, SplitGrid
from llmsim.lowering.offload.placement import HOST, memory_at
from llmsim.lowering.offload.weight_streaming import positions_in_program
from llmsim.model import (
    Attention,
    Collective,
    Dtypes,
    Embedding,
    Hardware,
    ModelConfig,
    Moe,
    Operator,
    StateSpace,
    dtype_bytes,
    load_hardware,
)

CLASSES: dict[str, tuple[str, ...]] = {
    "attention": (
        "attention",
        "attention_sliding",
        "attention_chunked",
        "attention_sparse",
        "indexer",
    ),
    "norms": ("layernorm", "post_norm", "qk_norm", "final_layernorm"),
    "ffn": ("gate_up_proj", "up_proj", "act_fn", "down_proj"),
    "experts": ("moe",),
    "projections": ("qkv_proj", "o_proj"),
    "head": ("final_layernorm", "lm_head", "sampler"),
}
"""Names for several operators at once; an operator's own entry comes before its class."""
PIM = "pim"


class HostPlan(Struct, frozen=True):
    """What the node's processors run for a group."""

    hardware: Hardware
    """All sockets together."""
    names: frozenset[str]
    sharers: int
    """Accelerators among which the cores are divided."""
    kv_bytes: int | None
    """Of the node's memory, for a rank's KV cache; None: attention is on the device."""

    @property
    def note(self) -> str:
        """What runs where."""
        among = f", whose cores {self.sharers} devices share" if self.sharers > 1 else ""
        return f"{', '.join(sorted(self.names))} on {self.hardware.name}{among}"


def device_of(group: Group, op: Operator) -> str:
    """The class of device that runs an operator: its own entry, else its class, else the
    accelerator.
    """
    chosen = dict(group.offloading.operator_devices)
    if op.name in chosen:
        return chosen[op.name]
    for name, members in CLASSES.items():
        if name in chosen and op.name in members:
            return chosen[name]
    return "npu"


def check_devices(group: Group, operators: Sequence[Operator]) -> None:
    """InputError for an entry that names no operator, or a device that cannot run it."""
    names = {op.name for op in operators if not isinstance(op, Collective)}
    known = sorted(names | {name for name, members in CLASSES.items() if names & set(members)})
    for name, device in group.offloading.operator_devices:
        if name not in known:
            raise InputError(
                f'operator_devices has "{name}", which is no operator of the '
                f"model{nearest(name, known)}: "
                f"{', '.join(known)}"
            )
        if device == PIM and name != "attention":
            raise InputError(
                f'operator_devices.{name} is "pim", but memory that computes has units for the '
                "attention of decodes "
                'only; say "cpu" or "npu"'
            )


def host_plan(
    deployment: Deployment, group: Group, operators: Sequence[Operator], kv_room: int
) -> HostPlan | None:
    """None where the accelerators run everything. `kv_room` is each rank's part of the node's
    memory for KV.

    Raises InputError where the node does not say what its processors are, or they cannot do it.
    """
    check_devices(group, operators)
    names = frozenset(op.name for op in operators if device_of(group, op) == HOST)
    if not names:
        return None
    hardware = _all_sockets(deployment, group)
    if any(isinstance(op, StateSpace) and op.name in names for op in operators):
        raise InputError("linear attention keeps its state on the accelerator; leave it there")
    attends = _attends(operators, names)
    if attends and kv_room <= 0:
        raise InfeasibleError(
            f"cpu_mem: weights there leave no room for the KV cache ({kv_room} B for each device)"
        )
    users = [other for other in deployment.groups if other.node == group.node and _uses_host(other)]
    sharers = sum(other.num_devices for other in users)
    return HostPlan(hardware, names, sharers, kv_room if attends else None)


def _all_sockets(deployment: Deployment, group: Group) -> Hardware:
    """The processors of the group's node as one device, over the node's memory."""
    node = deployment.nodes[group.node]
    if node.processors is None or node.host_memory is None:
        raise InputError(
            'operator_devices says "cpu", but the node has no cpu (hardware, sockets) and '
            "cpu_mem; give both"
        )
    name, sockets = node.processors.hardware, node.processors.sockets
    sheet = load_hardware(_located(name, deployment))
    if sheet is None:
        raise InputError(f'the node\'s cpu.hardware "{name}" is not known; name a data sheet')
    return replace(
        sheet,
        flops={dtype: value * sockets for dtype, value in sheet.flops.items()},
        memory_bandwidth_bytes_per_s=node.host_memory.bandwidth_bytes_per_s,
        last_level_cache_bytes=sheet.last_level_cache_bytes * sockets,
    )


def _attends(operators: Sequence[Operator], names: frozenset[str]) -> bool:
    """Whether the processors run attention, which they do for all layers or for none."""
    attention = {op.name for op in operators if isinstance(op, Attention)}
    here = attention & names
    if here and here != attention:
        raise InputError(
            'operator_devices splits the layers\' attention; say "attention", which stands for '
            "all of it"
        )
    return bool(here)


def _uses_host(group: Group) -> bool:
    return any(device == HOST for _, device in group.offloading.operator_devices)


def _located(name: str, deployment: Deployment) -> str:
    """A data sheet beside the cluster file comes before a preset."""
    beside = Path(deployment.cluster_path).parent / name
    return str(beside) if beside.suffix == ".json" and input_files.is_file(beside) else name


def with_host_costs(costs: CompiledCosts, request: CostRequest, plan: HostPlan) -> CompiledCosts:
    """The tables with what the node's processors run at what it costs there; light's floor is of
    the rest.
    """
    there = _costs_on_host(request, plan.hardware)
    left = {name: [cost for cost in there.ops if cost.name == name] for name in plan.names}
    ops = tuple(
        _shared(left[cost.name].pop(0), plan) if left.get(cost.name) else cost for cost in costs.ops
    )
    attentions = {cost.name: cost for cost in there.attentions if cost.name in plan.names}
    first, *more = (
        _shared_attention(attentions[cost.name], plan) if cost.name in attentions else cost
        for cost in costs.attentions
    )
    floor = _floor_of_rest(costs, request, plan.names)
    return replace(costs, ops=ops, attention=first, more_attention=tuple(more), floor=floor)


def _costs_on_host(request: CostRequest, hardware: Hardware) -> CompiledCosts:
    """What all operators take on the node's processors, which the silicon database lacks."""
    return compile_costs(
        replace(
            request,
            hardware_name=hardware.name,
            hardware=hardware,
            group_memory_bandwidth_bytes_per_s=hardware.memory_bandwidth_bytes_per_s,
            source="auto" if request.source == "silicon" else request.source,
            collectives="links",
            plugin="",
        )
    )


def _floor_of_rest(costs: CompiledCosts, request: CostRequest, names: frozenset[str]) -> Floor:
    """Light's floor of what the accelerators still run."""
    rest = tuple(op for op in request.operators if op.name not in names)
    return replace(
        floor_of(
            replace(request, operators=rest), peak_rates_of(request), enforce=costs.floor.enforce
        ),
        memory_bandwidth_bytes_per_s=costs.floor.memory_bandwidth_bytes_per_s,
        peak_flops_per_s=costs.floor.peak_flops_per_s,
    )


def _shared(cost: OpCost, plan: HostPlan) -> OpCost:
    return replace(cost, ps=cost.ps * plan.sharers, source=_label(cost.source, plan))


def _shared_attention(cost: AttentionCost, plan: HostPlan) -> AttentionCost:
    times, source = plan.sharers, _label(cost.source, plan)
    skew = cost.skew_ps_per_token_q20 * times
    if isinstance(cost, MixedAttention):
        mixed: MixedGrid = replace(cost.grid, ps=cost.grid.ps * times)
        return replace(cost, grid=mixed, skew_ps_per_token_q20=skew, source=source)
    assert isinstance(cost, SplitAttention), "attention has one of two shapes"
    split: SplitGrid = replace(
        cost.grid.with_prompts(lambda ps: ps * times),
        decode_ps=cost.grid.decode_ps * times,
        mixed_decode_ps_per_kv_token_q20=cost.grid.mixed_decode_ps_per_kv_token_q20 * times,
    )
    return replace(cost, grid=split, skew_ps_per_token_q20=skew, source=source)


def _label(source: str, plan: HostPlan) -> str:
    return source if plan.sharers == 1 else f"{source}, 1/{plan.sharers} of the cores"


def host_operators(
    deployment: Deployment,
    group: Group,
    plan: HostPlan,
    model: ModelConfig,
    dtypes: Dtypes,
    stages: Sequence[Sequence[Operator]],
    costs: Sequence[OpCost | AttentionCost],
    ranks: int,
) -> "_native.HostOperators":
    """The core's view; `ranks` send and receive at once."""
    native = _native.HostOperators()
    port = deployment.host_links.port(group.index, ranks)
    memory = memory_at(deployment, group.node, HOST)
    runs, inputs, outputs = [], [], []
    for one in positions_in_program(stages, costs):
        op = None if one is None else stages[one[0]][one[1]]
        runs.append(op is not None and op.name in plan.names)
        size = (0, 0) if op is None else activation_bytes(op, model, dtypes)
        inputs.append(size[0])
        outputs.append(size[1])
    native.runs, native.input_bytes, native.output_bytes = runs, inputs, outputs
    native.latency_ps = memory.latency_ps + port.latency_ps
    shared_q16 = (memory.bandwidth_bytes_per_s << 16) // ranks
    native.rate_q16 = min(port.rate_q16, shared_q16)
    native.before_ps = port.latency_ps
    return native


def activation_bytes(op: Operator, model: ModelConfig, dtypes: Dtypes) -> tuple[int, int]:
    """What an operator takes and gives, per unit of its feature: without weights, KV and what it
    keeps for itself.
    """
    hidden = model.hidden_size * int(dtype_bytes(dtypes.activation))
    if isinstance(op, Moe):
        return hidden, hidden
    if isinstance(op, Embedding):
        return 4, op.write_bytes_per_token
    if isinstance(op, Attention):
        return op.read_bytes_per_token, max(
            1, op.write_bytes_per_token - op.kv_bytes_per_context_token
        )
    return op.read_bytes_per_token, op.write_bytes_per_token
