"""Memories and power figures of the cluster file, in the file's units; the names of the fields carry them."""

from pydantic import Field

from llmsim.config.fields import (
    BandwidthGbPerS,
    EnergyPjPerBit,
    FolderName,
    Fraction01,
    Name,
    PositiveCount,
    PowerW,
    Section,
    SizeGib,
    TimeNs,
    TimeS,
    Utilization,
)


class Memory(Section):
    """One memory: how much it holds, how fast it streams, how long an access waits."""

    size_gib: SizeGib = Field(alias="mem_size", description="Capacity.")
    bandwidth_gb_per_s: BandwidthGbPerS = Field(alias="mem_bw", description="Bandwidth.")
    latency_ns: TimeNs = Field(default=0.0, alias="mem_latency", description="Latency of one access.")


class NpuMemory(Memory):
    """The memory of each device of an instance."""

    utilization: Utilization | None = Field(
        default=None,
        alias="mem_util",
        description="Share of the memory that the engine may use; the same as gpu_memory_utilization.",
    )


class CpuMemory(Memory):
    """The host memory of a node."""

    pim_config: Name | None = Field(
        default=None, description="Processing-in-memory part of the host DIMMs: stem of its ini file."
    )


class CxlMemory(Memory):
    """A pool of CXL memory devices that every node reaches."""

    num_devices: PositiveCount = Field(default=1, description="Number of devices in the pool.")


class NpuPower(Section):
    """Power of one accelerator in its three states."""

    idle_power_w: PowerW = Field(alias="idle_power", description="Power after standby_duration without work.")
    standby_power_w: PowerW = Field(alias="standby_power", description="Power between two pieces of work.")
    active_power_w: PowerW = Field(alias="active_power", description="Power while computing.")
    standby_duration_s: TimeS = Field(alias="standby_duration", description="How long standby lasts before idle.")


class CpuPower(Section):
    """Power of the host processors of a node."""

    idle_power_w: PowerW = Field(alias="idle_power", description="Power without load.")
    active_power_w: PowerW = Field(alias="active_power", description="Power under full load.")
    utilization: Fraction01 = Field(alias="util", description="Mean load.")


class DramPower(Section):
    """Power of the host DIMMs of a node."""

    dimm_size_gib: SizeGib = Field(alias="dimm_size", description="Capacity of one DIMM.")
    idle_power_w: PowerW = Field(alias="idle_power", description="Idle power of one DIMM.")
    energy_pj_per_bit: EnergyPjPerBit = Field(alias="energy_per_bit", description="Energy of moving one bit.")


class LinkPower(Section):
    """Power of the links of a node."""

    num_links: PositiveCount = Field(description="Number of links.")
    idle_power_w: PowerW = Field(alias="idle_power", description="Idle power of one link.")
    energy_pj_per_bit: EnergyPjPerBit = Field(alias="energy_per_bit", description="Energy of moving one bit.")


class NicPower(Section):
    """Power of the network cards of a node."""

    num_nics: PositiveCount = Field(description="Number of network cards.")
    idle_power_w: PowerW = Field(alias="idle_power", description="Idle power of one card.")


class StoragePower(Section):
    """Power of the storage devices of a node."""

    num_devices: PositiveCount = Field(description="Number of storage devices.")
    idle_power_w: PowerW = Field(alias="idle_power", description="Idle power of one device.")


class NodePower(Section):
    """What a node draws, by component."""

    base_node_power_w: PowerW = Field(alias="base_node_power", description="Power of all that no other key counts.")
    npu: dict[FolderName, NpuPower] = Field(default_factory=dict, description="Accelerators, by `hardware` name.")
    cpu: CpuPower | None = Field(default=None, description="Host processors.")
    dram: DramPower | None = Field(default=None, description="Host memory.")
    link: LinkPower | None = Field(default=None, description="Links.")
    nic: NicPower | None = Field(default=None, description="Network cards.")
    storage: StoragePower | None = Field(default=None, description="Storage devices.")
