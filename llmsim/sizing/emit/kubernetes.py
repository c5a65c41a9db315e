"""Manifests: NVIDIA Dynamo, values of llm-d's model service, and LeaderWorkerSets."""

import re
import shlex
from typing import Any

import yaml

from llmsim.sizing.emit.accelerators import accelerator_of
from llmsim.sizing.emit.arguments import (
    SIDE_CHANNEL_HOST,
    vllm_arguments,
    vllm_node_arguments,
)
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
            "resources": {"limits": {"gpu": str(pool.shape.devices // pool.shape.nodes)}},
            "extraPodSpec": {
                "mainContainer": {
                    "image": DYNAMO_IMAGE,
                    "command": ["python3", "-m", "dynamo.vllm"],
                    "args": ["--model", model, *words],
                }
            },
        }
        if pool.shape.nodes > 1:  # the operator tells each node its rank
            worker["multinode"] = {"nodeCount": pool.shape.nodes}
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
    if plan.spans_nodes:
        values["multinode"] = True
    for pool in plan.pools:
        values[pool.role or "decode"] = {
            "create": True,
            "replicas": pool.count,
            "parallelism": _parallelism(pool),
            "containers": [{"name": "vllm", **_llm_d_container(plan, pool)}],
        }
    return _dumped(plan, [values])


def _parallelism(pool: Pool) -> dict[str, int]:
    """Ranks as llm-d's chart counts them; `workers` are the pods of an instance."""
    shape = pool.shape
    sizes = {"tensor": shape.tp // shape.dp, "data": shape.dp}
    if shape.nodes == 1:
        return sizes
    return {**sizes, "dataLocal": max(1, shape.dp // shape.nodes), "workers": shape.nodes}


def _llm_d_container(plan: Plan, pool: Pool) -> dict[str, Any]:
    """The chart writes the sizes of a server on one node; servers over nodes join by themselves."""
    accelerator = accelerator_of(plan)
    devices = str(pool.shape.devices // pool.shape.nodes)
    common = {"image": accelerator.image, **_side_channel(pool)}
    limits = {"resources": {"limits": {accelerator.resource: devices}}}
    if pool.shape.nodes > 1:
        leader, worker = (_joined(plan, pool, leads=leads) for leads in (True, False))
        script = f'if [ "$LWS_WORKER_INDEX" -gt 0 ]; then {worker}; fi; {leader}'
        own = {"modelCommand": "custom", "command": ["sh", "-c"], "args": [script]}
        return {**common, **own, **limits}
    words = _without(vllm_arguments(plan, pool)[1:], "--tensor-parallel-size")
    args = _without(words, "--data-parallel-size")
    return {**common, "modelCommand": "vllmServe", "args": args, **limits}


def _joined(plan: Plan, pool: Pool, *, leads: bool) -> str:
    """The command of a pod of an instance over several nodes, in variables of LeaderWorkerSets."""
    rank = "0" if leads else "$LWS_WORKER_INDEX"
    nodes = vllm_node_arguments(pool.shape, rank, "$LWS_LEADER_ADDRESS")
    port = ["--port", str(PORT)] if leads else []
    return " ".join(["exec vllm serve", shlex.join(vllm_arguments(plan, pool)), *nodes, *port])


def leader_worker_sets(plan: Plan) -> str:
    """A LeaderWorkerSet for each pool; an instance has a pod on each of its nodes."""
    return _dumped(plan, [_set(plan, pool) for pool in plan.pools])


def _set(plan: Plan, pool: Pool) -> dict[str, Any]:
    name = f"{_name(plan)}-{pool.role}" if pool.role else _name(plan)
    template: dict[str, Any] = {"size": pool.shape.nodes}
    if pool.shape.nodes > 1:
        template["restartPolicy"] = "RecreateGroupOnPodRestart"
        template["leaderTemplate"] = _pod(plan, pool, leads=True)
    template["workerTemplate"] = _pod(plan, pool, leads=pool.shape.nodes == 1)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": pool.count, "leaderWorkerTemplate": template},
    }


def _pod(plan: Plan, pool: Pool, *, leads: bool) -> dict[str, Any]:
    """A pod of an instance; the one that leads answers HTTP."""
    accelerator, shape = accelerator_of(plan), pool.shape
    container: dict[str, Any] = {"name": "vllm", "image": accelerator.image}
    if shape.nodes > 1:
        container["command"] = ["sh", "-c"]
        container["args"] = [_joined(plan, pool, leads=leads)]
    else:
        container["args"] = [*vllm_arguments(plan, pool), "--port", str(PORT)]
    container |= _side_channel(pool)
    container["envFrom"] = [{"secretRef": {"name": SECRET}}]
    if leads:
        container["ports"] = [{"containerPort": PORT}]
        container["readinessProbe"] = {"httpGet": {"path": "/health", "port": PORT}}
    devices = str(shape.devices // shape.nodes)
    container["resources"] = {"limits": {accelerator.resource: devices}}
    return {"spec": {"containers": [container]}}


def _side_channel(pool: Pool) -> dict[str, Any]:
    """The address at which vLLM's NIXL shakes hands with other pods; nothing without roles."""
    if not pool.role:
        return {}
    own_address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return {"env": [{"name": SIDE_CHANNEL_HOST, "valueFrom": own_address}]}


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
