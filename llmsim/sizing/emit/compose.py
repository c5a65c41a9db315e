"""Docker compose: the servers of one host, with the GPUs that each of them has."""

from typing import Any

import yaml

from llmsim.sizing.emit.arguments import vllm_arguments
from llmsim.sizing.emit.servers import FIRST_PORT, placed
from llmsim.sizing.plan import Plan

IMAGE = "vllm/vllm-openai:v0.24.0"
MODELS = "/models"
"""Where the container has the host's cache of models."""


def compose(plan: Plan) -> str:
    """One service for each instance; a profile for each node, as compose starts one host."""
    services: dict[str, Any] = {}
    for node, gpu, number, pool in placed(plan):
        role = pool.role or "server"
        services[f"{role}-{number}"] = {
            "image": IMAGE,
            "profiles": [f"node{node}"],
            "command": [*vllm_arguments(plan, pool), "--port", str(FIRST_PORT + number)],
            "network_mode": "host",
            "ipc": "host",
            "environment": ["HF_TOKEN", f"HF_HOME={MODELS}"],
            "volumes": [f"~/.cache/huggingface:{MODELS}"],
            "deploy": {
                "resources": {
                    "reservations": {
                        "devices": [
                            {
                                "driver": "nvidia",
                                "device_ids": [str(gpu + i) for i in range(pool.shape.devices)],
                                "capabilities": ["gpu"],
                            }
                        ]
                    }
                }
            },
        }
    head = (
        f"# {plan.label} of {plan.model} on {plan.devices} {plan.device}.\n"
        "# On host N: docker compose --profile nodeN up\n"
    )
    return head + str(yaml.safe_dump({"services": services}, sort_keys=False))
