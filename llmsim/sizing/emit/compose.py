"""Docker compose: the servers of one host, with the GPUs that each of them has."""

from typing import Any

import yaml

from llmsim.sizing.emit.accelerators import AMD, accelerator_of, vendor_of
from llmsim.sizing.emit.arguments import vllm_arguments
from llmsim.sizing.emit.servers import FIRST_PORT, placed
from llmsim.sizing.plan import Plan

MODELS = "/models"
"""Where the container has the host's cache of models."""


def compose(plan: Plan) -> str:
    """One service for each instance; a profile for each node, as compose starts one host."""
    services: dict[str, Any] = {}
    image = accelerator_of(plan).image
    devices_of = _amd_devices if vendor_of(plan) == AMD else _nvidia_devices
    for node, gpu, number, pool in placed(plan):
        role = pool.role or "server"
        services[f"{role}-{number}"] = {
            "image": image,
            "profiles": [f"node{node}"],
            "command": [*vllm_arguments(plan, pool), "--port", str(FIRST_PORT + number)],
            "network_mode": "host",
            "ipc": "host",
            "environment": ["HF_TOKEN", f"HF_HOME={MODELS}"],
            "volumes": [f"~/.cache/huggingface:{MODELS}"],
        }
        devices_of(services[f"{role}-{number}"], [str(gpu + i) for i in range(pool.shape.devices)])
    head = (
        f"# {plan.label} of {plan.model} on {plan.devices} {plan.device}.\n"
        "# On host N: docker compose --profile nodeN up\n"
    )
    return head + str(yaml.safe_dump({"services": services}, sort_keys=False))


def _nvidia_devices(service: dict[str, Any], numbers: list[str]) -> None:
    device = {"driver": "nvidia", "device_ids": numbers, "capabilities": ["gpu"]}
    service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}


def _amd_devices(service: dict[str, Any], numbers: list[str]) -> None:
    """ROCm sees all devices of a host, and its variable leaves a server those of its own."""
    service["devices"] = ["/dev/kfd", "/dev/dri"]
    service["group_add"] = ["video"]
    service["environment"] += [f"HIP_VISIBLE_DEVICES={','.join(numbers)}"]
