"""What the cluster file says and nothing of the run reads: a note for each field, none is passed
over in silence.

`cpu_mem`, `npu_mem.mem_bw`, `link_bw` and `link_latency` belong to every cluster file; what they
change depends on the deployment, and no note is due.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from llmsim.lowering.offload.host_links import moves_below
from llmsim.lowering.offload.placement import DEVICE
from llmsim.model import Collective, Moe

if TYPE_CHECKING:
    from llmsim.config.cluster_file.cluster import Cluster
    from llmsim.config.cluster_file.cluster import Node as NodeFields
    from llmsim.config.cluster_file.instance import Instance
    from llmsim.config.deployment import Deployment, Group, Node
    from llmsim.lowering import LoweredDeployment
    from llmsim.lowering.offload.plan import OffloadPlan
    from llmsim.lowering.types import LoweredGroup


def unused_fields(
    cluster: "Cluster",
    deployment: "Deployment",
    lowered: "LoweredDeployment",
    media: Collection[str],
) -> tuple[str, ...]:
    """One sentence for each field; `media` are those that KV tiers are on."""
    files = _nodes_with_files(deployment)
    far = any(deployment.nodes[node].storage is None for node in files)
    found = list(_of_cluster(cluster, deployment, [*media, *(["NVMEOF"] if far else [])]))
    for fields, node in zip(cluster.nodes, deployment.nodes, strict=True):
        groups = [lowered.groups[index] for index in node.groups]
        near = ["SSD"] if node.index in files else []
        found += _of_node(fields, node, groups, [*media, *near])
    found += _of_host_links(cluster, deployment, lowered, media)
    instances = [
        instance for _, instance in cluster.instances() for _ in range(instance.layout.replicas)
    ]
    for instance, group in zip(instances, deployment.groups, strict=True):
        found += [
            f"{group.field_path}.{one}"
            for one in _of_instance(instance, group, lowered.groups[group.index])
        ]
    return tuple(dict.fromkeys(found))


def _nodes_with_files(deployment: "Deployment") -> set[int]:
    """Nodes with a group whose HiCache keeps files in storage."""
    return {
        group.node
        for group in deployment.groups
        if group.engine.hicache_storage_backend is not None
    }


def _of_cluster(
    cluster: "Cluster", deployment: "Deployment", media: Collection[str]
) -> Iterator[str]:
    if cluster.storage is not None and "NVMEOF" not in media:
        yield "storage of the cluster holds nothing: --prefix-storage NVMEOF is not given"
    if deployment.disaggregation is None:
        for key in ("kv_transfer", "kv_transfer_mode"):
            if (value := getattr(cluster, key)) is not None:
                yield f'{key} "{value}" changes nothing: no instance has a pd_type'
    if all(node.power is None for node in deployment.nodes):
        for key, value in (
            ("grid_gco2_per_kwh", cluster.grid_g_per_kwh),
            ("electricity_price_per_kwh", cluster.electricity_price_per_kwh),
        ):
            if value is not None:
                yield f"{key} changes nothing: no node has a power section, so no energy is known"


def _of_node(
    fields: "NodeFields", node: "Node", groups: "list[LoweredGroup]", media: Collection[str]
) -> Iterator[str]:
    here = f"nodes[{node.index}]"
    plans = [group.offload for group in groups if group.offload is not None]
    yield from _of_memory(fields, here, plans, media)
    present = {instance.hardware.strip() for instance in fields.instances}
    powered = () if fields.power is None else fields.power.npu
    for name in powered:
        if name not in present:
            yield (
                f"{here}.power.npu.{name} changes nothing: no instance of the node has that "
                "hardware"
            )


def _of_host_links(
    cluster: "Cluster",
    deployment: "Deployment",
    lowered: "LoweredDeployment",
    media: Collection[str],
) -> Iterator[str]:
    """Links to hosts over which nothing goes; switches of layouts load weights over them."""
    if cluster.layouts is not None:
        return
    used: set[int] = set()
    for group, one in zip(deployment.groups, lowered.groups, strict=True):
        used |= set(group.nodes) if moves_below(one, media) else set()
    given = {f"nodes[{i}].host_link": {i} for i, one in enumerate(cluster.nodes) if one.host_link}
    others = {i for i, one in enumerate(cluster.nodes) if one.host_link is None}
    given |= {} if cluster.host_link is None else {"host_link": others}
    for path, nodes in given.items():
        if used.isdisjoint(nodes):
            yield (
                f"{path} carries nothing: no instance behind it has KV, weights, operators or "
                "adapters below its devices"
            )


def _of_memory(
    fields: "NodeFields", here: str, plans: "list[OffloadPlan]", media: Collection[str]
) -> Iterator[str]:
    """Processors, storage and memory that computes."""
    if fields.cpu is not None and not any(plan.host for plan in plans):
        yield (
            f"{here}.cpu runs nothing: no instance of the node has operators there "
            "(operator_devices)"
        )
    if fields.storage is not None and "SSD" not in media:
        yield f"{here}.storage holds nothing: --prefix-storage SSD is not given"
    computing = any(plan.pim for plan in plans)
    given = () if fields.cpu_mem is None or computing else ("pim_config", "pim_table")
    for key in given:
        if getattr(fields.cpu_mem, key) is not None:
            yield (
                f"{here}.cpu_mem.{key} changes nothing: no decodes attend there "
                "(enable_attn_offloading)"
            )


def _of_instance(instance: "Instance", group: "Group", lowered: "LoweredGroup") -> Iterator[str]:
    plan, how = lowered.offload, group.offloading
    if how.attention and group.pd_type == "prefill":
        named = instance.operator_devices.get("attention") == "pim"
        key = "operator_devices.attention" if named else "enable_attn_offloading"
        yield f"{key} changes nothing: an instance of pd_type prefill never decodes"
    if instance.dp_group is not None and group.dp == 1:
        yield f'dp_group "{instance.dp_group}" changes nothing: it has no other member'
    if instance.peer_to_peer is not None and not _takes_measured_collectives(lowered):
        yield (
            "peer_to_peer changes no time: no collective of the instance takes times that such a "
            "machine was measured with"
        )
    if instance.sub_batch_rule is not None and how.sub_batches == "never":
        yield "sub_batch_rule changes nothing: enable_sub_batch_interleaving is off"
    if instance.weight_buffers is not None and (plan is None or not plan.copies.places):
        yield "weight_buffers changes nothing: no weights are copied"
    yield from _of_experts(instance, group, lowered)


def _of_experts(instance: "Instance", group: "Group", lowered: "LoweredGroup") -> Iterator[str]:
    how = group.offloading
    placed = how.placement is not None and lowered.model.num_moe_layers
    all_cached = placed and how.expert_cache == 1.0
    if all_cached or _experts_elsewhere(lowered):
        return
    for name in ("expert_prefetch", "expert_cache"):
        if getattr(instance, name) is not None:
            yield f"{name} changes nothing: no experts are in another memory (placement)"


def _takes_measured_collectives(lowered: "LoweredGroup") -> bool:
    on_links = lowered.costs.link_collectives
    return any(isinstance(op, Collective) and op.name not in on_links for op in lowered.operators)


def _experts_elsewhere(lowered: "LoweredGroup") -> bool:
    if lowered.offload is None:
        return False
    where = lowered.offload.where
    return any(
        isinstance(one.op, Moe) and one.op.name not in where.hosted and where.of(one) != DEVICE
        for one in where.executions()
    )
