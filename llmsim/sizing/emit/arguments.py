"""The arguments of one server process, in the words of vLLM and of SGLang."""

import json
from typing import Any

from llmsim.sizing.plan import Plan, Pool, Shape

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
SIDE_CHANNEL_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"
SIDE_CHANNEL_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"
"""Variables for where a prefill or decode server shakes hands; without a host only servers of the
same one find it.
"""
SGLANG = {
    "max_num_seqs": "--max-running-requests",
    "max_num_batched_tokens": "--chunked-prefill-size",
}
"""Engine options of the cluster file, of one rank, and SGLang's names for those of all ranks."""


def vllm_arguments(plan: Plan, pool: Pool) -> list[str]:
    """What follows `vllm serve`, but for the port."""
    shape = pool.shape
    words = [plan.model, "--tensor-parallel-size", str(shape.tp // shape.dp)]
    if shape.pp > 1:
        words += ["--pipeline-parallel-size", str(shape.pp)]
    if shape.dp > 1:
        words += ["--data-parallel-size", str(shape.dp)]
    if shape.ep > 1:
        words.append("--enable-expert-parallel")
    for name, value in plan.engine:
        words += _vllm_option(name, value)
    if (longest := longest_that_starts(plan, pool)) is not None:
        words += _vllm_option("max_model_len", longest)
    if pool.role:
        words += ["--kv-transfer-config", json.dumps(NIXL, separators=(",", ":"))]
    return words


MASTER_PORT, RPC_PORT = 29500, 13345
"""Ports of the first node at which the processes of one instance find each other."""


def vllm_node_arguments(shape: Shape, rank: str, head: str) -> list[str]:
    """What joins `vllm serve` on a node to the first one, `head`; nothing on one node alone.

    `rank` is the number of the node, or a variable of a shell. Only the first node answers HTTP.
    """
    if shape.nodes == 1:
        return []
    others = [] if rank == "0" else ["--headless"]
    if shape.dp == 1:
        sizes = ["--nnodes", str(shape.nodes), "--node-rank", rank]
        return [*sizes, "--master-addr", head, "--master-port", str(MASTER_PORT), *others]
    local = shape.dp // shape.nodes
    words = ["--data-parallel-size-local", str(local), "--data-parallel-address", head]
    words += ["--data-parallel-rpc-port", str(RPC_PORT)]
    if others:
        first = str(int(rank) * local) if rank.isdecimal() else f"$(({rank.strip('$')} * {local}))"
        words += ["--data-parallel-start-rank", first]
    return [*words, *others]


def sglang_node_arguments(shape: Shape, rank: int, head: str) -> list[str]:
    """What joins SGLang's server on a node to the first one; nothing on one node alone."""
    if shape.nodes == 1:
        return []
    nodes = ["--nnodes", str(shape.nodes), "--node-rank", str(rank)]
    return [*nodes, "--dist-init-addr", f"{head}:{MASTER_PORT}"]


def longest_that_starts(plan: Plan, pool: Pool) -> int | None:
    """max_model_len where the KV cache does not hold a request of the model's own length, else
    None.
    """
    from llmsim.lowering import LoweringOptions
    from llmsim.lowering.host.startup import starts_with
    from llmsim.sizing.bounds import first_groups, views_of

    first = first_groups(plan)[plan.pools.index(pool)]
    view = views_of(plan.deployment(), pool, first, LoweringOptions())[0]
    model = view.request.model
    most = starts_with(view.ledger, model, view.request.layout, view.engine)
    if most is None or most >= model.max_position_embeddings:
        return None
    return most


def _vllm_option(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    return [option, str(value)]


def sglang_arguments(plan: Plan, pool: Pool) -> list[str]:
    """What follows `python -m sglang.launch_server`, but for the port."""
    shape = pool.shape
    words = ["--model-path", plan.model, "--tp-size", str(shape.tp)]
    if shape.pp > 1:
        words += ["--pp-size", str(shape.pp)]
    if shape.dp > 1:
        words += ["--dp-size", str(shape.dp), "--enable-dp-attention"]
    if shape.ep > 1:
        words += ["--ep-size", str(shape.ep)]
    for name, value in plan.engine:
        if name in SGLANG:
            words += [SGLANG[name], str(value * shape.dp)]
    if pool.role:
        words += ["--disaggregation-mode", pool.role]
    return words
