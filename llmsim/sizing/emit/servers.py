"""Shell scripts: one line for each server process, with its GPUs and its port."""

import shlex
from collections.abc import Iterator

from llmsim.sizing.emit.accelerators import accelerator_of
from llmsim.sizing.emit.arguments import sglang_arguments, vllm_arguments
from llmsim.sizing.plan import Plan, Pool

FIRST_PORT = 8100
ROUTER_PORT = 8000
SIDE_PORT = 5600
"""First port of vLLM's NIXL side channel, which every prefill and decode server needs."""
POLICY = "power_of_two"
"""The routers' policy that looks at load, as the router does which the plan was measured with."""
BOOTSTRAP_PORT = 8998


def placed(plan: Plan) -> Iterator[tuple[int, int, int, Pool]]:
    """(node, first GPU on it, number, pool) of every instance, none of which is on two nodes."""
    first: dict[int, int] = {}
    for number, ((node, *_), pool) in enumerate(plan._placed()):
        gpu = first.get(node, 0)
        first[node] = gpu + pool.shape.devices
        yield node, gpu, number, pool


def vllm_script(plan: Plan) -> str:
    """`vllm serve` lines; without roles a router spreads the requests over the ports."""
    lines = _head(plan)
    visible = accelerator_of(plan).visible
    for node, gpu, number, pool in placed(plan):
        side = f"VLLM_NIXL_SIDE_CHANNEL_PORT={SIDE_PORT + number} " if pool.role else ""
        words = [*vllm_arguments(plan, pool), "--port", str(FIRST_PORT + number)]
        lines += _server(node, pool, f"{side}{_seen(visible, gpu, pool)}vllm serve", words)
    roles = {role: _urls(plan, role) for role in ("prefill", "decode")}
    if plan.architecture == "pd":
        lines.append("# vllm-router sends each prompt to a prefill and then to a decode server.")
        words = ["--vllm-pd-disaggregation", "--policy", POLICY]
        words += [word for url in roles["prefill"] for word in ("--prefill", url)]
        words += [word for url in roles["decode"] for word in ("--decode", url)]
    else:
        lines.append("# vllm-router spreads the requests over the servers.")
        words = ["--worker-urls", *_urls(plan, None), "--policy", POLICY]
    lines.append(f"vllm-router {shlex.join([*words, '--port', str(ROUTER_PORT)])}")
    return "\n".join(lines) + "\n"


def sglang_script(plan: Plan) -> str:
    """SGLang's servers and its router."""
    lines = _head(plan)
    if not plan.runs_sglang:
        lines += [
            "# The plan follows vLLM's rules; that of `llmsim size --engine-profile sglang-0.5.23`",
            "# follows SGLang's.",
        ]
    visible = accelerator_of(plan).visible
    for node, gpu, number, pool in placed(plan):
        words = [*sglang_arguments(plan, pool), "--port", str(FIRST_PORT + number)]
        if pool.role == "prefill":
            words += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT + number)]
        command = f"{_seen(visible, gpu, pool)}python -m sglang.launch_server"
        lines += _server(node, pool, command, words)
    router = ["--port", str(ROUTER_PORT), "--policy", POLICY]
    if plan.architecture == "pd":
        router.append("--pd-disaggregation")
        for node, _, number, pool in placed(plan):
            url = _url(node, number)
            if pool.role == "prefill":
                router += ["--prefill", url, str(BOOTSTRAP_PORT + number)]
            else:
                router += ["--decode", url]
    else:
        router += ["--worker-urls", *_urls(plan, None)]
    lines.append(f"python -m sglang_router.launch_router {shlex.join(router)}")
    return "\n".join(lines) + "\n"


def _head(plan: Plan) -> list[str]:
    return [
        "#!/bin/sh",
        f"# {plan.label} of {plan.model} on {plan.devices} {plan.device}.",
        "# Run the lines of node 0 on one host, those of node 1 on another; node0, node1, ... are",
        "# their names.",
    ]


def _seen(visible: str, gpu: int, pool: Pool) -> str:
    """The assignment that leaves a process its devices, with a blank behind it."""
    if not visible:
        return ""
    return f"{visible}={','.join(str(gpu + i) for i in range(pool.shape.devices))} "


def _server(node: int, pool: Pool, command: str, words: list[str]) -> list[str]:
    return [f"# node {node}, {pool.shape.label}", f"{command} {shlex.join(words)} &"]


def _urls(plan: Plan, role: str | None) -> list[str]:
    return [_url(node, number) for node, _, number, pool in placed(plan) if pool.role == role]


def _url(node: int, number: int) -> str:
    return f"http://node{node}:{FIRST_PORT + number}"
