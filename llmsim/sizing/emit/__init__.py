"""Files that start a planned deployment in an engine or an orchestrator."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmsim.sizing.emit import compose, kubernetes, servers
from llmsim.sizing.emit.accelerators import NVIDIA, accelerator_of, vendor_of
from llmsim.sizing.emit.arguments import longest_that_starts
from llmsim.sizing.plan import Plan, Pool
from llmsim.sizing.shapes import AFD

SCRIPT = "vllm.sh"
SGLANG_SCRIPT = "sglang.sh"
DYNAMO = "dynamo.yaml"
WRITERS: dict[str, Callable[[Plan], str]] = {
    SCRIPT: servers.vllm_script,
    SGLANG_SCRIPT: servers.sglang_script,
    "compose.yaml": compose.compose,
    DYNAMO: kubernetes.dynamo,
    "llm-d-values.yaml": kubernetes.llm_d,
    "lws.yaml": kubernetes.leader_worker_sets,
}
"""File name -> its text for a plan."""
CLUSTER, RUN = "cluster.json", "llmsim.sh"


def cluster_fields(plan: Plan) -> dict[str, Any]:
    """The keys of the cluster file; its nodes have the host memory of `llmsim init`, so that KV
    tiers and offloading can be tried, and its instances the max_model_len of vLLM's lines.
    """
    from llmsim.api.cluster import HOST_MEMORY

    fields = plan.fields()
    fields["description"] = fields["description"].replace(
        "latencies are", "latencies and host memory are"
    )
    for pool in plan.pools:
        longest = None if pool.shape.ffn else longest_that_starts(plan, pool)
        if longest is not None:
            for instance in _instances_of(fields, pool):
                instance["max_model_len"] = longest
    fields["nodes"] = [{"cpu_mem": dict(HOST_MEMORY), **node} for node in fields["nodes"]]
    return fields


def _instances_of(fields: dict[str, Any], pool: Pool) -> list[dict[str, Any]]:
    """The instances of a cluster file that are of a pool; no two pools have one role."""
    instances = [one for node in fields["nodes"] for one in node["instances"]]
    return [one for one in instances if one.get("pd_type") == pool.role]


def _run_script(run: Sequence[str]) -> str:
    """A script that gives the figures of a plan; `run` follows the cluster file of `llmsim run`."""
    return (
        "#!/bin/sh\n# The simulation whose latencies and throughput llmsim size has printed.\n"
        f'llmsim run --cluster-config "$(dirname "$0")/{CLUSTER}" {shlex.join(run)} "$@"\n'
    )


def _writable(plan: Plan) -> list[str]:
    """The files for a plan's engine and the devices of its vendor; Dynamo is NVIDIA's."""
    if plan.runs_sglang:
        return [SGLANG_SCRIPT]
    if not accelerator_of(plan).image:
        return [SCRIPT]
    return [name for name in WRITERS if name != DYNAMO or vendor_of(plan) == NVIDIA]


def not_written(plan: Plan) -> str:
    """Why some of the files are not written for a plan; empty where all are."""
    if plan.architecture == AFD:
        return (
            "released engines run attention and FFN on the same devices, so that no server of "
            f"theirs starts this deployment: {CLUSTER} describes it for llmsim alone"
        )
    missing = [name for name in WRITERS if name not in _writable(plan)]
    if not missing:
        return ""
    engine = "SGLang" if plan.runs_sglang else f"vLLM on {plan.device}"
    return f"{', '.join(missing)} are not written for {engine}"


def emit(plan: Plan, folder: Path, run: Sequence[str] = ()) -> list[Path]:
    """Writes all files into a folder; raises InputError where that is not possible.

    With `run`, the arguments of `llmsim run` beside the cluster file, a script that runs it, too.

    Manifests are for devices whose containers are known; `not_written` says what is left out.
    """
    from llmsim.export.files import atomic_writer, check_writable_folder
    from llmsim.export.json import json_text

    check_writable_folder(folder)
    texts = {CLUSTER: json_text(cluster_fields(plan))}
    if run:
        texts[RUN] = _run_script(run)
    if plan.architecture != AFD:
        texts |= {name: WRITERS[name](plan) for name in _writable(plan)}
    for name, text in texts.items():
        with atomic_writer(folder / name) as stream:
            stream.write(text)
        if name.endswith(".sh"):
            (folder / name).chmod(0o755)
    return [folder / name for name in texts]
