"""The memory of an instance's devices: what the cluster file says of it, and a data sheet for what
it leaves out.
"""

from collections.abc import Callable

from llmsim.config.cluster_file.cluster import Cluster
from llmsim.config.cluster_file.devices import NpuMemory
from llmsim.config.cluster_file.instance import Instance
from llmsim.config.cluster_file.json_positions import Location
from llmsim.config.deployment import MemorySpec
from llmsim.config.errors import InputError
from llmsim.config.units import gb_per_s_to_bytes_per_s, gib_to_bytes, ns_to_ps

SheetMemory = Callable[[str], MemorySpec]
"""The memory of a device by its name in the cluster file, from its data sheet; InputError where
there is none.
"""


def device_memory(
    cluster: Cluster, location: Location, instance: Instance, sheet: SheetMemory | None
) -> tuple[MemorySpec, tuple[str, ...]]:
    """The memory of each device of an instance, and the keys of `npu_mem` that its data sheet
    stands in for.

    Raises InputError where a key is missing and no data sheet is known (`sheet` None: none is
    asked).
    """
    given = instance.npu_mem
    latency_ps = 0 if given is None else ns_to_ps(given.latency_ns)
    size, rate = _stated(given)
    missing = tuple(key for key, value in (("mem_size", size), ("mem_bw", rate)) if value is None)
    if not missing:
        assert size is not None and rate is not None
        return MemorySpec(size, rate, latency_ps), ()
    found = _from_sheet(
        cluster,
        (*location, "npu_mem", *missing[:1]) if given else (*location, "npu_mem"),
        instance,
        sheet,
    )
    memory = MemorySpec(
        found.capacity_bytes if size is None else size,
        found.bandwidth_bytes_per_s if rate is None else rate,
        latency_ps,
    )
    return memory, missing


def _stated(given: NpuMemory | None) -> tuple[int | None, int | None]:
    """Bytes and bytes per second of `npu_mem`; None for what it does not state."""
    if given is None:
        return None, None
    size = None if given.size_gib is None else gib_to_bytes(given.size_gib)
    gb_per_s = given.bandwidth_gb_per_s
    return size, None if gb_per_s is None else gb_per_s_to_bytes_per_s(gb_per_s)


def _from_sheet(
    cluster: Cluster, missing: Location, instance: Instance, sheet: SheetMemory | None
) -> MemorySpec:
    if sheet is None:
        raise InputError(
            f"{cluster.position(missing)} is missing; give mem_size and mem_bw in npu_mem"
        )
    try:
        return sheet(instance.hardware.strip())
    except InputError as error:
        raise InputError(
            f"{cluster.position(missing)} is missing, and {error}, or give mem_size and mem_bw in "
            "npu_mem"
        ) from None
