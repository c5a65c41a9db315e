"""What engines, containers and Kubernetes call the devices of each vendor."""

from dataclasses import dataclass

from llmsim.sizing.plan import Plan

VLLM_RELEASE = "v0.24.0"


@dataclass(frozen=True)
class Accelerator:
    """The devices of one vendor."""

    visible: str
    """Environment variable that lists the devices of a process; empty where there is none."""
    resource: str = ""
    """Kubernetes' name of the resource."""
    image: str = ""
    """Container of vLLM's server; without one, only its script is written."""


NVIDIA, AMD = "NVIDIA", "AMD"
BY_VENDOR = {
    NVIDIA: Accelerator(
        "CUDA_VISIBLE_DEVICES", "nvidia.com/gpu", f"vllm/vllm-openai:{VLLM_RELEASE}"
    ),
    AMD: Accelerator("HIP_VISIBLE_DEVICES", "amd.com/gpu", f"vllm/vllm-openai-rocm:{VLLM_RELEASE}"),
    "Google": Accelerator("TPU_VISIBLE_CHIPS"),
    "Huawei": Accelerator("ASCEND_RT_VISIBLE_DEVICES"),
    "Intel": Accelerator("HABANA_VISIBLE_MODULES"),
    "AWS": Accelerator("NEURON_RT_VISIBLE_CORES"),
}


PROCESSOR = "Xeon"
"""What the names of Intel's sheets of processors begin with, whose servers find their cores."""


def vendor_of(plan: Plan) -> str:
    """The vendor of a plan's devices, as their data sheet has it."""
    from llmsim.model.hardware import data_sheet

    return data_sheet(plan.device).vendor


def accelerator_of(plan: Plan) -> Accelerator:
    """The devices of a plan; those of an unknown vendor are taken for NVIDIA's."""
    from llmsim.model.hardware import data_sheet

    if data_sheet(plan.device).name.startswith(PROCESSOR):
        return Accelerator("")
    return BY_VENDOR.get(vendor_of(plan), BY_VENDOR[NVIDIA])
