"""The arguments of one server process, in the words of vLLM and of SGLang."""

import json
from typing import Any

from llmsim.sizing.plan import Plan, Pool

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
SGLANG = {
    "max_num_seqs": "--max-running-requests",
    "max_num_batched_tokens": "--chunked-prefill-size",
}
"""Engine options of the cluster file, and SGLang's names for them."""


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
    if pool.role:
        words += ["--kv-transfer-config", json.dumps(NIXL, separators=(",", ":"))]
    return words


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
            words += [SGLANG[name], str(value)]
    if pool.role:
        words += ["--disaggregation-mode", pool.role]
    return words
