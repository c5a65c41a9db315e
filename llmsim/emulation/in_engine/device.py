"""The device that vLLM believes to have."""

from typing import Any

from llmsim.emulation.in_engine.plugin import settings
from llmsim.scheduling.conformance.vllm.platform import simulated_gpu

_GPU: Any = simulated_gpu()


class VirtualDevice(_GPU):  # type: ignore[misc]
    """Answers vLLM's questions with the name and the memory of the cluster file's device."""

    device_control_env_var = "LLMSIM_VISIBLE_DEVICES"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """The name of the device."""
        return str(settings()["device_name"])

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Its memory in bytes."""
        return int(settings()["device_bytes"])

    @classmethod
    def set_device(cls, device: Any) -> None:
        """There is nothing to set."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """There is nothing to seed."""

    @classmethod
    def inference_mode(cls) -> Any:
        """Nothing is computed."""
        import torch

        return torch.no_grad()

    @classmethod
    def supports_fp8(cls) -> bool:
        """As on every device of today."""
        return True

    @classmethod
    def import_kernels(cls) -> None:
        """There are none."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """There are none."""
