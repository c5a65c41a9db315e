"""Manifests: NVIDIA Dynamo, values of llm-d's model service, and LeaderWorkerSets."""

import re
from typing import Any

import yaml

from llmsim.sizing.emit.accelerators import accelerator_of
from llmsim.sizing.emit.arguments import vllm_arguments
from llmsim.sizing.plan import Plan, Pool

DYNAMO_IMAGE = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:latest"
PORT = 8000
SECRET = "hf-token-secret"


def dynamo(plan: Plan) -> str:
    """A DynamoGraphDeployment: a frontend, and a worker service for each pool."""
    services: dict[str, Any] = {
        "Frontend": {
            "componentType": "frontend",
            "replicas": 1,
            "extraPodSpec": {"mainContainer": {"image": DYNAMO_IMAGE}},
        }
    }
    for pool in plan.pools:
        model, *words = vllm_arguments(plan, pool)
        words = _without(words, "--kv-transfer-config")  # Dynamo's workers bring their own
        if pool.role == "prefill":
            words.append("--is-prefill-worker")
        worker: dict[str, Any] = {
            "componentType": "worker",
            "envFromSecret": SECRET,
            "replicas": pool.count,
            "resources": {"limits": {"gpu": str(pool.shape.devices)}},
            "extraPodSpec": {
                "mainContainer": {
                    "image": DYNAMO_IMAGE,
                    "command": ["python3", "-m", "dynamo.vllm"],
                    "args": ["--model", model, *words],
                }
            },
        }
        if pool.role:
            worker["subComponentType"] = pool.role
        services[f"Vllm{(pool.role or '').capitalize()}Worker"] = worker
    return _dumped(
        plan,
        [
            {
                "apiVersion": "nvidia.com/v1alpha1",
                "kind": "DynamoGraphDeployment",
                "metadata": {"name": _name(plan)},
                "spec": {"services": services},
            }
        ],
    )


def llm_d(plan: Plan) -> str:
    """Values for llm-d's chart `llm-d-modelservice`; colocated instances are its decode pods."""
    values: dict[str, Any] = {
        "modelArtifacts": {
            "name": plan.model,
            "uri": f"hf://{plan.model}",
            "authSecretName": SECRET,
        },
        "routing": {"servicePort": PORT},
        "prefill": {"create": False},
        "decode": {"create": False},
    }
    accelerator = accelerator_of(plan)
    for pool in plan.pools:
        shape = pool.shape
        values[pool.role or "decode"] = {
            "create": True,
            "replicas": pool.count,
            "parallelism": {"tensor": shape.tp // shape.dp, "data": shape.dp},
            "containers": [
                {
                    "name": "vllm",
                    "image": accelerator.image,
                    "modelCommand": "vllmServe",
                    "args": _without(
                        _without(vllm_arguments(plan, pool)[1:], "--tensor-parallel-size"),
                        "--data-parallel-size",
                    ),
                    "resources": {"limits": {accelerator.resource: str(shape.devices)}},
                }
            ],
        }
    return _dumped(plan, [values])


def leader_worker_sets(plan: Plan) -> str:
    """A LeaderWorkerSet for each pool; an instance is one pod, as it never spans two nodes."""
    return _dumped(plan, [_set(plan, pool) for pool in plan.pools])


def _set(plan: Plan, pool: Pool) -> dict[str, Any]:
    name = f"{_name(plan)}-{pool.role}" if pool.role else _name(plan)
    accelerator = accelerator_of(plan)
    container = {
        "name": "vllm",
        "image": accelerator.image,
        "args": [*vllm_arguments(plan, pool), "--port", str(PORT)],
        "envFrom": [{"secretRef": {"name": SECRET}}],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}},
        "resources": {"limits": {accelerator.resource: str(pool.shape.devices)}},
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": pool.count,
            "leaderWorkerTemplate": {
                "size": 1,
                "workerTemplate": {"spec": {"containers": [container]}},
            },
        },
    }


def _without(words: list[str], option: str) -> list[str]:
    """The words without an option and its value."""
    if option not in words:
        return words
    at = words.index(option)
    return words[:at] + words[at + 2 :]


def _name(plan: Plan) -> str:
    """A name that Kubernetes takes."""
    last = plan.model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40] or "model"


def _dumped(plan: Plan, documents: list[dict[str, Any]]) -> str:
    head = f"# {plan.label} of {plan.model} on {plan.devices} {plan.device}.\n"
    return head + str(yaml.safe_dump_all(documents, sort_keys=False))
