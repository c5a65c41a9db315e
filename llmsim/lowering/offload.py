"""What a group keeps outside of its devices: weights that steps copy in, and KV that decodes attend to in memory.

A copy takes latency + bytes / rate, the rate being the smaller one of the device's port and its part of the memory's
bandwidth: all devices that stream from one memory share it evenly, at all times.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.deployment import MemorySpec
from llmsim.config.errors import InfeasibleError, InputError, NotYetError, nearest
from llmsim.core import PS_PER_S, Int64
from llmsim.costs import OpCost
from llmsim.costs.pim import PimPart, load_pim_part, pim_attention, read_pim_table
from llmsim.costs.source import AttentionCost
from llmsim.lowering.network import BETWEEN_GROUPS
from llmsim.model import Layout, ModelConfig, Operator
from llmsim.power.traffic import weight_bytes as bytes_touched

DEVICE = "npu"


@dataclass(frozen=True)
class Copies:
    """Bytes of one step of one rank by where they come from, whatever the batch; and by tokens."""

    fixed: dict[str, int]
    by_tokens: dict[str, Int64]


@dataclass(frozen=True, eq=False)
class Streams:
    """Copies by operator of the model, in its order: see the core's WeightStreaming."""

    ahead: list[list[int]]
    by_tokens: list[list[int]]
    demand: list[bool]
    buffers: int


@dataclass(frozen=True, eq=False)
class OffloadPlan:
    """What the core, the memory ledger and the energy account need to know."""

    native: "_native.OffloadConfig"
    """Complete once `place_copies` has been called."""
    streams: "Streams"
    weights_elsewhere: int
    """Bytes of a rank's weights that are not on its device."""
    buffers: int
    """Bytes of the device that copies go to."""
    kv_bytes: int | None
    """Bytes of the memory that holds a rank's KV; None: the device."""
    copies: Copies
    part: PimPart | None
    channels_per_set: int
    notes: tuple[str, ...]


def offload_plan(
    deployment: Deployment,
    group: Group,
    model: ModelConfig,
    layout: Layout,
    operators: tuple[Operator, ...],
    max_model_len: int,
    table_tokens: int,
) -> OffloadPlan | None:
    """The plan of a group; None where everything is on its devices. Raises InputError, InfeasibleError, NotYetError."""
    where = Where(deployment, group, operators)
    if not where.elsewhere and not group.offloading.attention:
        return None
    if group.pp > 1 or group.dp_group is not None or group.pd_type is not None:
        raise NotYetError(
            "weights or attention outside of the devices, together with pp_size above 1, a dp_group or a pd_type, "
            "does not run in this version; leave one of them out"
        )
    config = _native.OffloadConfig()
    plan = _Weights(where, layout.tp, table_tokens)
    plan.check_capacity(deployment)
    streams = plan.streams()
    notes = list(plan.notes)
    kv_bytes, part, per_set = None, None, 1
    if group.offloading.attention:
        part, share = _pim_share(deployment, group)
        channels = share // layout.tp
        if channels < 1:
            raise InfeasibleError(f"{part.name}: {share} channels do not give each of the {layout.tp} ranks one")
        kv_bytes = channels * part.channel_bytes
        per_set = _fill_pim(config, part, channels, where, model, max_model_len)
        notes.append(
            f"decodes attend in {channels} channels of {part.name} per rank ({part.inside_bytes_per_s / 1e9:.1f} GB/s "
            "inside each); the KV cache is there"
        )
    return OffloadPlan(
        native=config,
        streams=streams,
        weights_elsewhere=plan.elsewhere_bytes,
        buffers=plan.buffer_bytes,
        kv_bytes=kv_bytes,
        copies=plan.copies,
        part=part,
        channels_per_set=per_set,
        notes=tuple(notes),
    )


def evicted_notes(deployment: Deployment) -> tuple[str, ...]:
    """What a placement says about evicted KV has no effect without a second tier of the prefix cache."""
    for group in deployment.groups:
        placement = group.offloading.placement
        if placement and any(entry.kv_evict_loc not in (None, DEVICE) for entry in placement.entries):
            return (
                "placement.kv_evict_loc says where a second tier of the prefix cache is; without it, nothing is there",
            )
    return ()


def place_copies(plan: OffloadPlan, operators: Sequence[Operator], costs: Sequence[OpCost | AttentionCost]) -> None:
    """Gives the core the copies by operator of the program, whose costs are `costs`; those of one name come in turn."""
    streams, native = plan.streams, _native.WeightStreaming()
    ahead: list[list[int]] = [[] for _ in costs]
    by_tokens: list[list[int]] = [[] for _ in costs]
    demand = [False] * len(costs)
    free = list(range(len(costs)))
    for number, op in enumerate(operators):
        place = next(index for index in free if costs[index].name == op.name)
        free.remove(place)
        ahead[place], by_tokens[place] = streams.ahead[number], streams.by_tokens[number]
        demand[place] = streams.demand[number]
    native.ahead, native.by_tokens, native.demand, native.buffers = ahead, by_tokens, demand, streams.buffers
    plan.native.weights = native


class Where:
    """Where each execution of each operator of one group has its weights: layers before blocks before default."""

    def __init__(self, deployment: Deployment, group: Group, operators: tuple[Operator, ...]) -> None:
        self.deployment, self.group, self.operators = deployment, group, operators
        self.placement = group.offloading.placement
        names = [op.name for op in operators]
        for name in self.placement.layers if self.placement is not None else ():
            if name not in names:
                known = ", ".join(dict.fromkeys(names))
                raise InputError(f'placement.layers has "{name}", which is no operator{nearest(name, names)}: {known}')

    def of(self, op: Operator, execution: int) -> str:
        """The memory of one execution's weights."""
        if self.placement is None:
            return DEVICE
        layer = self.placement.layers.get(op.name)
        if layer is not None and layer.weights is not None:
            return layer.weights
        if op.part == "layer":
            for block in self.placement.blocks:
                if execution in block.numbers and block.weights is not None:
                    return block.weights
        return self.placement.default.weights or DEVICE

    @property
    def elsewhere(self) -> dict[str, int]:
        """Bytes of one rank by memory, without the device."""
        found: dict[str, int] = {}
        for op, execution in self.executions():
            place = self.of(op, execution)
            if place != DEVICE:
                found[place] = found.get(place, 0) + self.streamed_bytes(op)
        return {place: size for place, size in found.items() if size}

    def executions(self) -> Iterator[tuple[Operator, int]]:
        """Every operator with weights, once per execution in a step."""
        for op in self.operators:
            if op.weight_bytes:
                for execution in range(op.repeat):
                    yield op, execution

    def streamed_bytes(self, op: Operator) -> int:
        """Of one execution: experts in the cache stay on the device."""
        if op.kind != "moe":
            return op.weight_bytes
        return op.weight_bytes - int(op.weight_bytes * self.group.offloading.expert_cache)


def sharers(deployment: Deployment) -> dict[tuple[int, str], int]:
    """(node, "cpu") or (-1, "cxl:<id>") -> devices of all groups that stream weights from there."""
    count: dict[tuple[int, str], int] = {}
    for group in deployment.groups:
        placement = group.offloading.placement
        if placement is None:
            continue
        for place in {entry.weights for entry in placement.entries} - {None, DEVICE}:
            key = (group.node if place == "cpu" else -1, str(place))
            count[key] = count.get(key, 0) + group.num_devices
    return count


class _Weights:
    """The copies of one rank."""

    def __init__(self, where: Where, ranks: int, table_tokens: int) -> None:
        self.where, self.ranks, self.table_tokens = where, ranks, table_tokens
        self.group, self.deployment = where.group, where.deployment
        self.shared = sharers(self.deployment)
        self.elsewhere_bytes = sum(where.elsewhere.values())
        self.copies = Copies({}, {})
        self.buffer_bytes = 0
        self.notes: list[str] = []

    def check_capacity(self, deployment: Deployment) -> None:
        """InfeasibleError where a memory cannot hold what all groups put into it."""
        for place, size in self.where.elsewhere.items():
            capacity = self._memory(place)[1]
            total = size * self.group.num_devices
            if total > capacity:
                raise InfeasibleError(
                    f"weights at {place}: {total / (1 << 30):.2f} GiB do not fit its {capacity / (1 << 30):.2f} GiB"
                )

    def _memory(self, place: str) -> tuple[MemorySpec, int]:
        """The memory and the capacity of one device of it."""
        if place == "cpu":
            memory = self.deployment.nodes[self.group.node].host_memory
            if memory is None:
                raise InputError('weights are placed at "cpu", but the node has no cpu_mem; declare it')
            return memory, memory.capacity_bytes
        pool = self.deployment.pool
        assert pool is not None, "the file's reader checks it"
        return pool.device, pool.device.capacity_bytes

    def time(self, place: str) -> Callable[[Int64], Int64]:
        """Picoseconds of a copy of so many bytes; 0 for none."""
        memory, _ = self._memory(place)
        link = self.deployment.link
        at = min(BETWEEN_GROUPS, len(link.bandwidth_bytes_per_s) - 1)
        devices = self.shared[(self.group.node if place == "cpu" else -1, place)]
        rate = min(link.bandwidth_bytes_per_s[at], memory.bandwidth_bytes_per_s // devices)
        latency = memory.latency_ps + link.latency_ps[at]
        note = f"weights are copied from {place} at {rate / 1e9:g} GB/s to each device"
        note += f": {devices} devices share it evenly" if devices > 1 else ""
        if note not in self.notes:
            self.notes.append(note)

        def ps(size: Int64) -> Int64:
            times = [latency - (-int(one) * PS_PER_S // rate) if one else 0 for one in size.tolist()]
            return np.array(times, np.int64)

        return ps

    def streams(self) -> Streams:
        """The copies of every operator, and on the way their bytes and the buffers that they need."""
        count = len(self.where.operators)
        ahead: list[list[int]] = [[] for _ in range(count)]
        by_tokens: list[list[int]] = [[] for _ in range(count)]
        demand = [False] * count
        policy = self.group.offloading.expert_prefetch
        places: dict[int, int] = {}  # bytes that one place of the step copies
        for position, op in enumerate(self.where.operators):
            for execution in range(op.repeat if op.weight_bytes else 0):
                place = self.where.of(op, execution)
                if place == DEVICE:
                    continue
                size = self.where.streamed_bytes(op)
                number = {"prologue": -1, "layer": execution}.get(op.part, 1 << 20)
                if op.kind == "embedding" or (op.kind == "moe" and policy != "layer"):
                    rows = self._by_tokens(op)
                    self._need_one_place(op, place)
                    by_tokens[position] = self.time(place)(rows).tolist()
                    demand[position] = policy == "demand" and op.kind == "moe"
                    self._add(self.copies.by_tokens, place, rows)
                    size = int(rows.max(initial=0))
                else:
                    times = self.time(place)(np.array([size], np.int64))
                    ahead[position] = ahead[position] or [0] * op.repeat
                    ahead[position][execution] = int(times[0])
                    self.copies.fixed[place] = self.copies.fixed.get(place, 0) + size
                places[number] = places.get(number, 0) + size
        depth = self.group.offloading.weight_buffers
        sizes = [places[number] for number in sorted(places)]
        around = sizes + sizes[: depth - 1]  # the first layers of the next step follow the last of this one
        windows = [sum(around[first : first + min(depth, len(sizes))]) for first in range(len(sizes))]
        self.buffer_bytes = max(windows, default=0)
        return Streams(ahead, by_tokens, demand, depth)

    def _by_tokens(self, op: Operator) -> Int64:
        """Bytes that an execution copies at each token count: rows of a table, experts that the tokens touch."""
        tokens = np.arange(self.table_tokens + 1, dtype=np.int64)
        if op.kind == "embedding":
            return tokens * (op.write_bytes_per_token)
        share = 1.0 - self.group.offloading.expert_cache
        return np.ceil(bytes_touched(op, tokens) * share).astype(np.int64)

    def _need_one_place(self, op: Operator, place: str) -> None:
        for execution in range(op.repeat):
            if self.where.of(op, execution) != place:
                raise NotYetError(
                    f"the weights of {op.name} are in several memories, which runs only with expert_prefetch layer"
                )

    def _add(self, table: dict[str, Int64], place: str, rows: Int64) -> None:
        table[place] = table.get(place, np.zeros(len(rows), np.int64)) + rows


def local_reads(costs: tuple[OpCost, ...], operators: tuple[Operator, ...], memory: MemorySpec) -> tuple[OpCost, ...]:
    """`enable_local_offloading`: an execution takes at least what its weights take from the device's memory as the file
    states it (latency + bytes / mem_bw). Times of kernels contain their own reads, so nothing is added twice."""
    by_name = {op.name: op for op in operators}
    changed = []
    for cost in costs:
        op = by_name.get(cost.name)
        if op is None or not op.weight_bytes:
            changed.append(cost)
            continue
        size = np.ceil(bytes_touched(op, np.arange(len(cost.ps)))).astype(np.int64)
        least = [
            memory.latency_ps - (-one * PS_PER_S // memory.bandwidth_bytes_per_s) if one else 0 for one in size.tolist()
        ]
        fields = {**vars(cost), "ps": np.maximum(cost.ps, np.array(least, np.int64))}
        changed.append(OpCost(**fields))
    return tuple(changed)


def _pim_share(deployment: Deployment, group: Group) -> tuple[PimPart, int]:
    """The node's part, and how many of its channels are the group's: groups share them by their devices."""
    node = deployment.nodes[group.node]
    if node.pim is None or node.host_memory is None:
        raise InputError("enable_attn_offloading needs memory that computes: give the node's cpu_mem a pim_config")
    part = load_pim_part(node.pim, Path(deployment.cluster_path).parent)
    channels = node.host_memory.capacity_bytes // part.channel_bytes
    users = [other for other in deployment.groups if other.node == group.node and other.offloading.attention]
    return part, channels * group.num_devices // sum(other.num_devices for other in users)


def _fill_pim(
    config: "_native.OffloadConfig",
    part: PimPart,
    channels: int,
    where: Where,
    model: ModelConfig,
    max_model_len: int,
) -> int:
    """Gives the core one rank's channels; returns how many of them hold one sequence."""
    attention = [op for op in where.operators if op.kind == "attention"]
    if len(attention) != 1 or attention[0].window or model.latent is not None:
        raise NotYetError("attention in memory runs for models whose layers all attend to everything, without latents")
    op = attention[0]
    kv_bytes = op.kv_bytes_per_context_token
    cost = pim_attention(part, channels=channels, kv_bytes=kv_bytes, heads=op.heads, kv_heads=op.kv_heads)
    link = where.deployment.link
    at = min(BETWEEN_GROUPS, len(link.bandwidth_bytes_per_s) - 1)
    pim = _native.PimConfig()
    pim.context = [0, max_model_len]
    pim.ps = [cost.ps(0), cost.ps(max_model_len)]
    table = where.deployment.nodes[where.group.node].pim_table
    if table is not None:
        pim.context, pim.ps = read_pim_table(Path(where.deployment.cluster_path).parent / table)
    pim.sets = max(1, channels // cost.channels)
    pim.latency_ps = link.latency_ps[at] + part.access_ps
    pim.bytes_per_s = min(link.bandwidth_bytes_per_s[at], channels * part.bus_bytes_per_s)
    wide = op.read_bytes_per_token
    pim.query_bytes = wide
    pim.output_bytes = max(1, op.write_bytes_per_token - kv_bytes)
    pim.kv_bytes = kv_bytes
    pim.concurrent = part.concurrent
    pim.interleaving = {
        "never": _native.Interleaving.NEVER,
        "shorter": _native.Interleaving.WHEN_SHORTER,
        "always": _native.Interleaving.ALWAYS,
    }[where.group.offloading.sub_batches]
    config.pim = pim
    return cost.channels
