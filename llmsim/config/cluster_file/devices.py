"""Memories and power figures of the cluster file, in the file's units; the names of the fields
carry them.
"""

from itertools import pairwise
from typing import Self

from pydantic import Field, model_validator

from llmsim.config.constraints import broken_rule, shown
from llmsim.config.fields import (
    BandwidthGbPerS,
    EnergyPjPerBit,
    FolderName,
    Fraction01,
    Name,
    PositiveCount,
    PowerW,
    PricePerHour,
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
    latency_ns: TimeNs = Field(
        default=0.0, alias="mem_latency", description="Latency of one access."
    )


class NpuMemory(Section):
    """The memory of each device of an instance; size and bandwidth that are not given are the data
    sheet's.
    """

    size_gib: SizeGib | None = Field(
        default=None, alias="mem_size", description="Capacity; the data sheet's if not given."
    )
    bandwidth_gb_per_s: BandwidthGbPerS | None = Field(
        default=None, alias="mem_bw", description="Bandwidth; the data sheet's if not given."
    )
    latency_ns: TimeNs = Field(
        default=0.0, alias="mem_latency", description="Latency of one access."
    )
    utilization: Utilization | None = Field(
        default=None,
        alias="mem_util",
        description=(
            "Share of the memory that the engine may use; the same as gpu_memory_utilization."
        ),
    )


class CpuMemory(Memory):
    """The host memory of a node."""

    pim_config: Name | None = Field(
        default=None,
        description="Processing-in-memory part of the host DIMMs: stem of its ini file.",
    )
    pim_table: Name | None = Field(
        default=None,
        description="Times of attention in memory from elsewhere: a CSV file beside this one with "
        "context_tokens and time_us of one sequence in one layer.",
    )


class Processors(Section):
    """What a node computes with beside its accelerators."""

    hardware: FolderName = Field(
        description="Data sheet of one socket: a preset's name, or a file beside this one."
    )
    sockets: PositiveCount = Field(default=1, description="How many there are.")


class CxlMemory(Memory):
    """A pool of CXL memory devices that every node reaches: `mem_size` of all, `mem_bw` and
    `mem_latency` of each.
    """

    num_devices: PositiveCount = Field(default=1, description="Number of devices in the pool.")
    idle_power_w: PowerW = Field(
        default=0.0, alias="idle_power", description="Idle power of one device."
    )
    energy_pj_per_bit: EnergyPjPerBit = Field(
        default=0.0, alias="energy_per_bit", description="Energy of moving one bit of the pool."
    )


class Storage(Section):
    """A storage device or an array of them, which keeps KV below the memories."""

    size_gib: SizeGib = Field(alias="mem_size", description="Capacity.")
    read_gb_per_s: BandwidthGbPerS = Field(alias="read_bw", description="Bandwidth of reads.")
    write_gb_per_s: BandwidthGbPerS = Field(alias="write_bw", description="Bandwidth of writes.")
    read_latency_ns: TimeNs = Field(
        default=0.0, alias="read_latency", description="Until a read's first byte."
    )
    write_latency_ns: TimeNs = Field(
        default=0.0, alias="write_latency", description="Until a write's first byte."
    )
    queue_depth: PositiveCount = Field(
        default=32, description="Reads and writes that are under way at once; others wait in order."
    )


class HostLink(Section):
    """The link between devices and their host, such as PCIe beside NVLink; both directions at
    once.
    """

    bandwidth_gb_per_s: BandwidthGbPerS = Field(description="Bandwidth in each direction.")
    latency_ns: TimeNs | None = Field(
        default=None, description="Latency; the second number of link_latency if not given."
    )
    devices_per_link: PositiveCount = Field(
        default=1,
        description="Devices behind one link, such as those of a PCIe switch, in the order of the "
        "node's devices.",
    )


class NpuPower(Section):
    """Power of one accelerator in its three states."""

    idle_power_w: PowerW = Field(
        alias="idle_power", description="Power after standby_duration without work."
    )
    standby_power_w: PowerW = Field(
        alias="standby_power", description="Power between two pieces of work."
    )
    active_power_w: PowerW = Field(alias="active_power", description="Power while computing.")
    standby_duration_s: TimeS = Field(
        alias="standby_duration", description="How long standby lasts before idle."
    )
    memory_energy_pj_per_bit: EnergyPjPerBit = Field(
        default=0.0,
        alias="memory_energy_per_bit",
        description=(
            "Energy of moving one bit of the device's own memory, where active_power leaves it out."
        ),
    )
    power_cap_w: PowerW | None = Field(
        default=None,
        alias="power_cap",
        description=(
            "Limit that clocks are lowered to: caps active_power, and slows what the clock limits."
        ),
    )

    @model_validator(mode="after")
    def _states_rise(self) -> Self:
        names = ("idle_power", "standby_power", "active_power")
        powers = (self.idle_power_w, self.standby_power_w, self.active_power_w)
        for (low, lower), (high, higher) in pairwise(zip(names, powers, strict=True)):
            if lower > higher:
                raise broken_rule(
                    high, f"is {shown(higher)}; it must be at least {low}, which is {shown(lower)}"
                )
        if self.power_cap_w is not None and self.power_cap_w <= self.standby_power_w:
            raise broken_rule(
                "power_cap",
                f"is {shown(self.power_cap_w)}; a device with that limit could not leave "
                f"standby_power, {shown(self.standby_power_w)}; give more",
            )
        return self


class CpuPower(Section):
    """Power of the host processors of a node."""

    idle_power_w: PowerW = Field(alias="idle_power", description="Power without load.")
    active_power_w: PowerW = Field(alias="active_power", description="Power under full load.")
    utilization: Fraction01 = Field(alias="util", description="Mean load.")

    @model_validator(mode="after")
    def _states_rise(self) -> Self:
        if self.idle_power_w > self.active_power_w:
            raise broken_rule(
                "active_power",
                (
                    f"is {shown(self.active_power_w)}; it must be at least idle_power, which is "
                    f"{shown(self.idle_power_w)}"
                ),
            )
        return self


class DramPower(Section):
    """Power of the host DIMMs of a node."""

    dimm_size_gib: SizeGib = Field(alias="dimm_size", description="Capacity of one DIMM.")
    idle_power_w: PowerW = Field(alias="idle_power", description="Idle power of one DIMM.")
    energy_pj_per_bit: EnergyPjPerBit = Field(
        alias="energy_per_bit", description="Energy of moving one bit."
    )


class LinkPower(Section):
    """Power of the links of a node."""

    num_links: PositiveCount = Field(description="Number of links.")
    idle_power_w: PowerW = Field(alias="idle_power", description="Idle power of one link.")
    energy_pj_per_bit: EnergyPjPerBit = Field(
        alias="energy_per_bit", description="Energy of moving one bit."
    )


class SwitchPower(Section):
    """Power of the switches between the devices of a node."""

    num_switches: PositiveCount = Field(description="Number of switches.")
    idle_power_w: PowerW = Field(alias="idle_power", description="Idle power of one switch.")
    energy_pj_per_bit: EnergyPjPerBit = Field(
        alias="energy_per_bit", description="Energy of one bit passing through."
    )


class NicPower(Section):
    """Power of the network cards of a node."""

    num_nics: PositiveCount = Field(description="Number of network cards.")
    idle_power_w: PowerW = Field(alias="idle_power", description="Idle power of one card.")
    energy_pj_per_bit: EnergyPjPerBit = Field(
        default=0.0,
        alias="energy_per_bit",
        description="Energy of one bit that leaves or enters the node.",
    )


class StoragePower(Section):
    """Power of the storage devices of a node."""

    num_devices: PositiveCount = Field(description="Number of storage devices.")
    idle_power_w: PowerW = Field(alias="idle_power", description="Idle power of one device.")
    energy_pj_per_bit: EnergyPjPerBit = Field(
        default=0.0,
        alias="energy_per_bit",
        description="Energy of one bit that is read or written.",
    )


class NodePower(Section):
    """What a node draws, by component."""

    base_node_power_w: PowerW = Field(
        alias="base_node_power", description="Power of all that no other key counts."
    )
    npu: dict[FolderName, NpuPower] = Field(
        default_factory=dict, description="Accelerators, by `hardware` name."
    )
    cpu: CpuPower | None = Field(default=None, description="Host processors.")
    dram: DramPower | None = Field(default=None, description="Host memory.")
    link: LinkPower | None = Field(default=None, description="Links.")
    switch: SwitchPower | None = Field(
        default=None, description="Switches; counted among the links."
    )
    nic: NicPower | None = Field(default=None, description="Network cards.")
    storage: StoragePower | None = Field(default=None, description="Storage devices.")


class Host(Section):
    """What a host has beside its accelerators."""

    cpu_mem: CpuMemory | None = Field(default=None, description="Host memory.")
    storage: Storage | None = Field(
        default=None, description="The node's own storage, on its switch."
    )
    host_link: HostLink | None = Field(
        default=None,
        description="Link between devices and the host: KV, weights and activations below the "
        "devices take it; the cluster's if not given, else the second number of link_bw.",
    )
    cpu: Processors | None = Field(
        default=None,
        description="The node's processors, which operators may run on (operator_devices).",
    )
    power: NodePower | None = Field(default=None, description="What the node draws.")
    price_per_hour: PricePerHour = Field(
        default=0.0,
        description="Price of the node beside its devices, where devices are priced without it.",
    )

    @model_validator(mode="after")
    def _dimms_have_a_memory(self) -> Self:
        if self.power is not None and self.power.dram is not None and self.cpu_mem is None:
            raise broken_rule(
                ("power", "dram"),
                "is given, but the node has no cpu_mem to count its DIMMs by; add it",
            )
        return self
