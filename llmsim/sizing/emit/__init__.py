"""Files that start a planned deployment in an engine or an orchestrator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmsim.sizing.emit import compose, kubernetes, servers
from llmsim.sizing.emit.accelerators import NVIDIA, accelerator_of, vendor_of
from llmsim.sizing.plan import Plan
from llmsim.sizing.shapes import AFD

SCRIPT = "vllm.sh"
DYNAMO = "dynamo.yaml"
WRITERS: dict[str, Callable[[Plan], str]] = {
    SCRIPT: servers.vllm_script,
    "sglang.sh": servers.sglang_script,
    "compose.yaml": compose.compose,
    DYNAMO: kubernetes.dynamo,
    "llm-d-values.yaml": kubernetes.llm_d,
    "lws.yaml": kubernetes.leader_worker_sets,
}
"""File name -> its text for a plan."""
CLUSTER = "cluster.json"


def cluster_fields(plan: Plan) -> dict[str, Any]:
    """The keys of the cluster file; its nodes have the host memory of `llmsim init`, so that KV
    tiers and offloading can be tried.
    """
    from llmsim.api.cluster import HOST_MEMORY

    fields = plan.fields()
    fields["description"] = fields["description"].replace(
        "latencies and", "latencies, host memory and"
    )
    fields["nodes"] = [{"cpu_mem": dict(HOST_MEMORY), **node} for node in fields["nodes"]]
    return fields


def _writable(plan: Plan) -> list[str]:
    """The files for the devices of a plan's vendor; Dynamo is NVIDIA's."""
    if not accelerator_of(plan).image:
        return [SCRIPT]
    return [name for name in WRITERS if name != DYNAMO or vendor_of(plan) == NVIDIA]


def emit(plan: Plan, folder: Path) -> list[Path]:
    """Writes all files into a folder; raises InputError where that is not possible.

    Released engines run attention and FFN on the same devices, so that a plan that has them apart
    is written as a cluster file alone. Manifests are for devices whose containers are known.
    """
    from llmsim.export.files import atomic_writer, check_writable_folder
    from llmsim.export.json import json_text

    check_writable_folder(folder)
    texts = {CLUSTER: json_text(cluster_fields(plan))}
    if plan.architecture != AFD:
        texts |= {name: WRITERS[name](plan) for name in _writable(plan)}
    for name, text in texts.items():
        with atomic_writer(folder / name) as stream:
            stream.write(text)
        if name.endswith(".sh"):
            (folder / name).chmod(0o755)
    return [folder / name for name in texts]
