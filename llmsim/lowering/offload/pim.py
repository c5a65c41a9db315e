"""Decodes that attend in the node's memory: a group's channels, and what goes there and back."""

from pathlib import Path

from msgspec import Struct

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.errors import InfeasibleError, InputError, NotYetError
from llmsim.costs.sources.pim_part import PimPart, load_pim_part, pim_attention, read_pim_table
from llmsim.model import Attention, ModelConfig, Operator


class PimPlan(Struct, frozen=True, eq=False):
    """One rank's channels."""

    native: "_native.PimConfig"
    part: PimPart
    channels: int
    channels_per_set: int
    access_ps: int
    kv_bytes: int
    """What holds the rank's KV cache: its channels, but for what weights in the same memory take.
    """

    @property
    def note(self) -> str:
        """Where decodes attend."""
        part = self.part
        return (
            f"decodes attend in {self.channels} channels of {part.name} per rank "
            f"({part.inside_bytes_per_s / 1e9:.1f} GB/s inside each); the KV cache is there"
        )


def pim_plan(
    deployment: Deployment,
    group: Group,
    model: ModelConfig,
    operators: tuple[Operator, ...],
    max_model_len: int,
    kv_room: int,
) -> PimPlan:
    """`kv_room` is each rank's part of the memory, but for weights.

    Raises InputError without such a memory, InfeasibleError where it has too few channels or no
    room for KV, NotYetError for models whose layers do not all attend to everything.
    """
    part, share = _share(deployment, group)
    channels = share // group.num_devices
    if channels < 1:
        raise InfeasibleError(
            f"{part.name}: {share} channels do not give each of the {group.num_devices} ranks one"
        )
    room = min(channels * part.channel_bytes, kv_room)
    if room <= 0:
        raise InfeasibleError(
            f"cpu_mem: weights there leave no room for the KV cache ({room} B for each device)"
        )
    attention = [op for op in operators if isinstance(op, Attention)]
    if len(attention) != 1 or attention[0].window or model.latent is not None:
        raise NotYetError(
            "attention in memory runs for models whose layers all attend to everything, without "
            "latents"
        )
    op = attention[0]
    kv_bytes = op.kv_bytes_per_context_token
    cost = pim_attention(
        part, channels=channels, kv_bytes=kv_bytes, heads=op.heads, kv_heads=op.kv_heads
    )
    port = deployment.host_links.port(group.index, group.num_devices // group.pp)
    pim = _native.PimConfig()
    pim.context = [0, max_model_len]
    pim.ps = [cost.ps(0), cost.ps(max_model_len)]
    table = deployment.nodes[group.node].pim_table
    if table is not None:
        pim.context, pim.ps = read_pim_table(Path(deployment.cluster_path).parent / table)
    pim.sets = max(1, channels // cost.channels)
    pim.latency_ps = port.latency_ps + part.access_ps
    pim.bytes_per_s = min(port.bandwidth_bytes_per_s, channels * part.bus_bytes_per_s)
    pim.query_bytes = op.read_bytes_per_token
    pim.output_bytes = max(1, op.write_bytes_per_token - kv_bytes)
    pim.kv_bytes = kv_bytes
    pim.concurrent = part.concurrent
    return PimPlan(pim, part, channels, cost.channels, part.access_ps, room)


def _share(deployment: Deployment, group: Group) -> tuple[PimPart, int]:
    """The node's part, and how many of its channels are the group's: groups share them by their
    devices.
    """
    node = deployment.nodes[group.node]
    if node.pim is None or node.host_memory is None:
        raise InputError(
            "enable_attn_offloading needs memory that computes: give the node's cpu_mem a "
            "pim_config"
        )
    part = load_pim_part(node.pim, Path(deployment.cluster_path).parent)
    channels = node.host_memory.capacity_bytes // part.channel_bytes
    users = [
        other
        for other in deployment.groups
        if other.node == group.node and attends_in_memory(other)
    ]
    return part, channels * group.num_devices // sum(other.num_devices for other in users)


def attends_in_memory(group: Group) -> bool:
    """Whether decodes of the group attend in memory; an instance that only prefills
    never decodes.
    """
    return group.offloading.attention and group.pd_type != "prefill"
