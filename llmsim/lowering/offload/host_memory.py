"""How the memory of a node is shared: weights of all instances come first, KV that is attended
there has the rest.
"""

from collections.abc import Sequence
from pathlib import Path

from llmsim.config import Deployment, Group
from llmsim.config.errors import NotYetError
from llmsim.config.files import input_files
from llmsim.lowering.engine_dtype import with_narrow_floats
from llmsim.lowering.offload.host_operators import device_of
from llmsim.lowering.offload.pim import attends_in_memory
from llmsim.lowering.offload.placement import HOST, Where
from llmsim.lowering.parallel_layout import layout_of, stage_operators
from llmsim.model import Layout, ModelConfig, Operator, load_model, resolve_dtypes


def located(name: str, cluster_path: str) -> str:
    """A file beside the cluster file comes before one under the working directory and before a
    preset of that name.

    Only what can be read counts: a folder of results that happens to be called like a device is not
    a data sheet.
    """
    beside = Path(cluster_path).parent / name
    readable = (beside.suffix == ".json" and input_files.is_file(beside)) or input_files.is_file(
        beside / "config.json"
    )
    return str(beside) if readable and not Path(name).is_absolute() else name


def refuse_memories_of_several_nodes(deployment: Deployment) -> None:
    """Raises NotYetError for a group on several nodes that uses the memory of its node."""
    for group in deployment.groups:
        if group.nnodes > 1 and (what := _asked_of_the_node(group)):
            raise memory_of_several_nodes(deployment, group, what)


def memory_of_several_nodes(deployment: Deployment, group: Group, what: str) -> NotYetError:
    """What is said where a group on several nodes asks for something of one node's memory."""
    return NotYetError(
        f"{deployment.cluster_path}: {group.field_path} has nnodes {group.nnodes} and {what}, "
        "which needs the memory of one node: that does not run in this version; leave one of them "
        "out"
    )


def _asked_of_the_node(group: Group) -> str:
    """What of a group needs its node's memory; empty where nothing does."""
    placement, devices = group.offloading.placement, dict(group.offloading.operator_devices)
    entries = () if placement is None else placement.entries
    asked = {
        "weights in cpu": any(entry.weights == HOST for entry in entries),
        "operator_devices beside its accelerators": set(devices.values()) - {"npu"},
        "enable_attn_offloading": group.offloading.attention,
    }
    return next((what for what, wanted in asked.items() if wanted), "")


def where_of(
    group: Group, model: ModelConfig, layout: Layout, stages: Sequence[Sequence[Operator]]
) -> Where:
    """Where the weights of a group are."""
    names = (op.name for operators in stages for op in operators if device_of(group, op) == HOST)
    return Where(group, model, layout, stages, frozenset(names))


def kv_room_of(deployment: Deployment, node: int) -> int:
    """Bytes of the node's memory that each device has for KV whose attention runs there; 0 without
    such a memory.

    Equal parts of what the weights of all the node's instances leave.
    """
    memory = deployment.nodes[node].host_memory
    groups = [group for group in deployment.groups if group.node == node]
    devices = sum(group.num_devices for group in groups if _attends_there(group))
    if memory is None or not devices:
        return 0
    return (
        memory.capacity_bytes - sum(_weights_there(deployment, group) for group in groups)
    ) // devices


def _attends_there(group: Group) -> bool:
    return attends_in_memory(group) or ("attention", HOST) in group.offloading.operator_devices


def _weights_there(deployment: Deployment, group: Group) -> int:
    """Bytes of all ranks of a group in the node's memory."""
    if group.offloading.placement is None and not group.offloading.operator_devices:
        return 0
    model = load_model(located(group.model_name, deployment.cluster_path))
    layout = layout_of(group, model)
    engine = with_narrow_floats(group.engine, model)
    dtypes = resolve_dtypes(model, engine.dtype, engine.kv_cache_dtype)
    where = where_of(group, model, layout, stage_operators(model, layout, dtypes))
    return sum(where.bytes_elsewhere(stage).get(HOST, 0) * group.tp for stage in range(group.pp))
