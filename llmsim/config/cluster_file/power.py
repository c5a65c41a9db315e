"""What nodes draw, in integers: microwatts and attojoules per bit, so that power times picoseconds
is attojoules.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from llmsim.config.cluster_file.cluster import Cluster, Node
from llmsim.config.cluster_file.devices import CxlMemory, NodePower, NpuPower
from llmsim.config.errors import InputError
from llmsim.config.units import pj_to_aj, s_to_ps, w_to_uw


class AcceleratorPower(Struct, frozen=True):
    """One device in its three states; standby lasts `standby_ps` after work, then the device is
    idle.
    """

    idle_uw: int
    standby_uw: int
    active_uw: int
    """Under the power cap, if there is one."""
    standby_ps: int
    memory_aj_per_bit: int
    """Of the device's own memory; 0: contained in the power of the active state."""
    uncapped_uw: int
    """Power of the active state without a cap."""


class NodePowerSpec(Struct, frozen=True):
    """What one node draws: constant powers, and energies per bit moved."""

    accelerators: Mapping[str, AcceleratorPower]
    """By the `hardware` of the instances."""
    base_uw: int
    cpu_uw: int
    dram_uw: int
    dram_aj_per_bit: int
    link_uw: int
    """Links and switches."""
    link_aj_per_bit: int
    nic_uw: int
    nic_aj_per_bit: int
    storage_uw: int
    storage_aj_per_bit: int
    cpu_working_uw: int = 0
    """Of the processors above `cpu_uw`, while all of their cores run operators of instances."""


class PoolPowerSpec(Struct, frozen=True):
    """What the CXL pool of the cluster draws."""

    idle_uw: int
    aj_per_bit: int


def resolve_node_power(cluster: Cluster, index: int) -> NodePowerSpec | None:
    """The node's power, or None where the file does not give it. InputError names a device that has
    none.
    """
    node = cluster.nodes[index]
    if node.power is None:
        return None
    for number, instance in enumerate(node.instances):
        if instance.hardware.strip() not in node.power.npu:
            known = ", ".join(f'"{name}"' for name in node.power.npu) or "nothing"
            raise InputError(
                f"{cluster.position(('nodes', index, 'power', 'npu'))} has no "
                f'"{instance.hardware.strip()}", the '
                f"hardware of nodes[{index}].instances[{number}]; it has {known}"
            )
    return _spec(node, node.power)


def _spec(node: Node, power: NodePower) -> NodePowerSpec:
    cpu, dram, link, switch = power.cpu, power.dram, power.link, power.switch
    dimms = 0
    if dram is not None:
        assert node.cpu_mem is not None, "a rule of the node"
        dimms = -int(-node.cpu_mem.size_gib // dram.dimm_size_gib)
    nic, storage = power.nic, power.storage
    polling_uw = 0
    if (
        cpu is not None
    ):  # one mean load, as in the paper: a serving host polls whether it has work or not
        idle_uw = w_to_uw(cpu.idle_power_w)
        polling_uw = idle_uw + round((w_to_uw(cpu.active_power_w) - idle_uw) * cpu.utilization)
    return NodePowerSpec(
        accelerators=MappingProxyType({name: _accelerator(npu) for name, npu in power.npu.items()}),
        base_uw=w_to_uw(power.base_node_power_w),
        cpu_uw=polling_uw,
        cpu_working_uw=0 if cpu is None else w_to_uw(cpu.active_power_w) - polling_uw,
        dram_uw=0 if dram is None else dimms * w_to_uw(dram.idle_power_w),
        dram_aj_per_bit=0 if dram is None else pj_to_aj(dram.energy_pj_per_bit),
        link_uw=(0 if link is None else link.num_links * w_to_uw(link.idle_power_w))
        + (0 if switch is None else switch.num_switches * w_to_uw(switch.idle_power_w)),
        link_aj_per_bit=(0 if link is None else pj_to_aj(link.energy_pj_per_bit))
        + (0 if switch is None else pj_to_aj(switch.energy_pj_per_bit)),
        nic_uw=0 if nic is None else nic.num_nics * w_to_uw(nic.idle_power_w),
        nic_aj_per_bit=0 if nic is None else pj_to_aj(nic.energy_pj_per_bit),
        storage_uw=0 if storage is None else storage.num_devices * w_to_uw(storage.idle_power_w),
        storage_aj_per_bit=0 if storage is None else pj_to_aj(storage.energy_pj_per_bit),
    )


def _accelerator(power: NpuPower) -> AcceleratorPower:
    active = w_to_uw(power.active_power_w)
    return AcceleratorPower(
        idle_uw=w_to_uw(power.idle_power_w),
        standby_uw=w_to_uw(power.standby_power_w),
        active_uw=active if power.power_cap_w is None else min(active, w_to_uw(power.power_cap_w)),
        standby_ps=s_to_ps(power.standby_duration_s),
        memory_aj_per_bit=pj_to_aj(power.memory_energy_pj_per_bit),
        uncapped_uw=active,
    )


def resolve_pool_power(pool: CxlMemory | None) -> PoolPowerSpec | None:
    """The pool's power; None where the file gives none."""
    if pool is None or (pool.idle_power_w == 0 and pool.energy_pj_per_bit == 0):
        return None
    return PoolPowerSpec(
        pool.num_devices * w_to_uw(pool.idle_power_w), pj_to_aj(pool.energy_pj_per_bit)
    )
