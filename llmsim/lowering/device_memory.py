"""Memories of devices from their data sheets, for cluster files that do not give them."""

from llmsim.config import Deployment, MemorySpec
from llmsim.config.machine.device_memory import SheetMemory
from llmsim.lowering.offload.host_memory import located
from llmsim.model.hardware import data_sheet


def sheet_memory(cluster_path: str) -> SheetMemory:
    """What `resolve` asks for devices whose npu_mem is not in this cluster file, or not whole."""

    def memory(hardware: str) -> MemorySpec:
        sheet = data_sheet(located(hardware, cluster_path))
        return MemorySpec(sheet.memory_bytes, sheet.memory_bandwidth_bytes_per_s, 0)

    return memory


def sheet_memory_notes(deployment: Deployment) -> tuple[str, ...]:
    """One sentence for each device whose memory is its data sheet's, with the figures."""
    notes = []
    for group in deployment.groups:
        memory, keys = group.memory, group.memory_from_sheet
        figures = {
            "mem_size": f"{memory.capacity_bytes / (1 << 30):.6g} GiB",
            "mem_bw": f"{memory.bandwidth_bytes_per_s / 1e9:.6g} GB/s",
        }
        less = "; the driver of a device reports a little less memory" if "mem_size" in keys else ""
        if keys:
            said = " and ".join(f"{key} {figures[key]}" for key in keys)
            notes.append(
                f"npu_mem of {group.hardware}: {said} from its data sheet, the cluster file does "
                f"not say{less}"
            )
    return tuple(dict.fromkeys(notes))
