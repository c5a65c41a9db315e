"""Docker compose: the servers of one host, with the GPUs that each of them has."""

from typing import Any

import yaml

from llmsim.sizing.emit.accelerators import AMD, accelerator_of, vendor_of
from llmsim.sizing.emit.arguments import vllm_arguments, vllm_node_arguments
from llmsim.sizing.emit.servers import placed
from llmsim.sizing.plan import Plan

MODELS = "/models"
"""Where the container has the host's cache of models."""


def compose(plan: Plan) -> str:
    """A service for each instance on each of its nodes; a profile for each node, as compose starts
    one host.
    """
    services: dict[str, Any] = {}
    image = accelerator_of(plan).image
    devices_of = _amd_devices if vendor_of(plan) == AMD else _nvidia_devices
    for one in placed(plan):
        name = f"{one.pool.role or 'server'}-{one.number}" + (f"-{one.rank}" if one.rank else "")
        nodes = vllm_node_arguments(one.pool.shape, str(one.rank), one.head)
        port = [] if one.rank else ["--port", str(one.port)]
        services[name] = {
            "image": image,
            "profiles": [f"node{one.node}"],
            "command": [*vllm_arguments(plan, one.pool), *nodes, *port],
            "network_mode": "host",
            "ipc": "host",
            "environment": ["HF_TOKEN", f"HF_HOME={MODELS}", *one.side_channel],
            "volumes": [f"~/.cache/huggingface:{MODELS}"],
        }
        devices_of(services[name], one.gpus)
    head = (
        f"# {plan.label} of {plan.model} on {plan.devices} {plan.device}.\n"
        "# On host N: docker compose --profile nodeN up\n"
    )
    if plan.spans_nodes:
        head += "# Servers over several hosts find the first one by its name, such as node0.\n"
    return head + str(yaml.safe_dump({"services": services}, sort_keys=False))


def _nvidia_devices(service: dict[str, Any], numbers: list[str]) -> None:
    device = {"driver": "nvidia", "device_ids": numbers, "capabilities": ["gpu"]}
    service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}


def _amd_devices(service: dict[str, Any], numbers: list[str]) -> None:
    """ROCm sees all devices of a host, and its variable leaves a server those of its own."""
    service["devices"] = ["/dev/kfd", "/dev/dri"]
    service["group_add"] = ["video"]
    service["environment"] += [f"HIP_VISIBLE_DEVICES={','.join(numbers)}"]
