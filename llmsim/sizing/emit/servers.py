"""Shell scripts: one line for each server process on a node, with its GPUs and its port."""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from llmsim.sizing.emit.accelerators import accelerator_of
from llmsim.sizing.emit.arguments import (
    SIDE_CHANNEL_HOST,
    SIDE_CHANNEL_PORT,
    sglang_arguments,
    sglang_node_arguments,
    vllm_arguments,
    vllm_node_arguments,
)
from llmsim.sizing.plan import Plan, Pool

PUBLIC_PORT = 8000
"""Where clients ask: the router's, or that of a server which is alone."""
FIRST_PORT = 8100
"""Of the servers behind a router."""
SIDE_PORT = 5600
"""First port of vLLM's NIXL side channel, which every prefill and decode server needs."""
POLICY = "power_of_two"
"""The routers' policy that looks at load, as the router does which the plan was measured with."""
BOOTSTRAP_PORT = 8998
EVERY_HOST = "0.0.0.0"
"""SGLang's servers answer only their own host without it, and the router may be on another."""


@dataclass(frozen=True)
class Process:
    """A server process: an instance, or the part of it that is on one of its nodes."""

    number: int
    """Of the instance."""
    pool: Pool
    node: int
    rank: int
    """Of the node among those of the instance; rank 0 answers HTTP."""
    first_gpu: int
    first_rank: int
    """Data-parallel ranks of the instances before."""
    alone: bool
    """Whether there is no other instance, so that nothing has to route."""

    @property
    def gpus(self) -> list[str]:
        """Numbers of its devices on the node."""
        each = self.pool.shape.devices // self.pool.shape.nodes
        return [str(self.first_gpu + i) for i in range(each)]

    @property
    def port(self) -> int:
        """Where its instance answers HTTP."""
        return PUBLIC_PORT if self.alone else FIRST_PORT + self.number

    @property
    def head(self) -> str:
        """The name of the first node of its instance."""
        return f"node{self.node - self.rank}"

    @property
    def url(self) -> str:
        """Of its instance."""
        return f"http://{self.head}:{self.port}"

    @property
    def side_channel(self) -> list[str]:
        """Variables of vLLM's NIXL, whose ranks of data parallelism take the next ports; nothing
        without roles.
        """
        if not self.pool.role:
            return []
        port = SIDE_PORT + self.first_rank
        return [f"{SIDE_CHANNEL_HOST}=node{self.node}", f"{SIDE_CHANNEL_PORT}={port}"]

    @property
    def label(self) -> str:
        """`node 1, TP16 on 2 nodes: rank 1`."""
        shape = self.pool.shape
        return f"node {self.node}, {shape.label}" + (
            f": rank {self.rank}" if shape.nodes > 1 else ""
        )


def placed(plan: Plan) -> Iterator[Process]:
    """The processes of every instance, one on each of its nodes."""
    used: Counter[int] = Counter()
    ranks = 0
    for number, ((first, *_), pool) in enumerate(plan._placed()):
        for rank in range(pool.shape.nodes):
            node = first + rank
            process = Process(number, pool, node, rank, used[node], ranks, _is_alone(plan))
            used[process.node] += len(process.gpus)
            yield process
        ranks += pool.shape.dp


def vllm_script(plan: Plan) -> str:
    """`vllm serve` lines; several servers without roles get a router, which spreads the requests
    over their ports.
    """
    lines = _head(plan)
    visible = accelerator_of(plan).visible
    for one in placed(plan):
        side = "".join(f"{variable} " for variable in one.side_channel)
        nodes = vllm_node_arguments(one.pool.shape, str(one.rank), one.head)
        words = [*vllm_arguments(plan, one.pool), *nodes]
        if one.rank == 0:
            words += ["--port", str(one.port)]
        lines += _server(one, f"{side}{_seen(visible, one)}vllm serve", words)
    if not _is_alone(plan):
        lines += _vllm_router(plan)
    return "\n".join(lines) + "\n"


def _vllm_router(plan: Plan) -> list[str]:
    roles = {role: _urls(plan, role) for role in ("prefill", "decode")}
    if plan.architecture == "pd":
        does = "# vllm-router sends each prompt to a prefill and then to a decode server."
        words = ["--vllm-pd-disaggregation", "--policy", POLICY]
        words += [word for url in roles["prefill"] for word in ("--prefill", url)]
        words += [word for url in roles["decode"] for word in ("--decode", url)]
    else:
        does = "# vllm-router spreads the requests over the servers."
        words = ["--worker-urls", *_urls(plan, None), "--policy", POLICY]
    return [does, f"vllm-router {shlex.join([*words, '--port', str(PUBLIC_PORT)])}"]


def sglang_script(plan: Plan) -> str:
    """SGLang's servers and its router."""
    lines = _head(plan)
    if not plan.runs_sglang:
        lines += [
            "# The plan follows vLLM's rules; that of `llmsim size --engine-profile sglang-0.5.23`",
            "# follows SGLang's.",
        ]
    visible = accelerator_of(plan).visible
    for one in placed(plan):
        nodes = sglang_node_arguments(one.pool.shape, one.rank, one.head)
        address = ["--host", EVERY_HOST, "--port", str(one.port)]
        words = [*sglang_arguments(plan, one.pool), *nodes, *address]
        if one.pool.role == "prefill":
            words += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT + one.number)]
        command = f"{_seen(visible, one)}python -m sglang.launch_server"
        lines += _server(one, command, words)
    if not _is_alone(plan):
        lines.append(_sglang_router(plan))
    return "\n".join(lines) + "\n"


def _sglang_router(plan: Plan) -> str:
    router = ["--port", str(PUBLIC_PORT), "--policy", POLICY]
    if plan.architecture == "pd":
        router.append("--pd-disaggregation")
        for one in _heads(plan):
            if one.pool.role == "prefill":
                router += ["--prefill", one.url, str(BOOTSTRAP_PORT + one.number)]
            else:
                router += ["--decode", one.url]
    else:
        router += ["--worker-urls", *_urls(plan, None)]
    return f"python -m sglang_router.launch_router {shlex.join(router)}"


SEVERAL_HOSTS: tuple[str, ...] = (
    "# Run the lines of node 0 on one host, those of node 1 on another; node0, node1, ... are",
    "# their names.",
)
ONE_HOST = ("# Run all lines on one host; node0 is its name.",)


def _head(plan: Plan) -> list[str]:
    label = f"# {plan.label} of {plan.model} on {plan.devices} {plan.device}."
    return ["#!/bin/sh", label, *_hosts(plan)]


def _hosts(plan: Plan) -> tuple[str, ...]:
    """Where the lines run; one line alone has no other host to name."""
    if plan.nodes > 1:
        return SEVERAL_HOSTS
    return () if _is_alone(plan) else ONE_HOST


def _seen(visible: str, process: Process) -> str:
    """The assignment that leaves a process its devices, with a blank behind it."""
    return f"{visible}={','.join(process.gpus)} " if visible else ""


def _server(process: Process, command: str, words: list[str]) -> list[str]:
    """The line that starts a process; beside others it goes on in the background."""
    background = "" if process.alone else " &"
    return [f"# {process.label}", f"{command} {shlex.join(words)}{background}"]


def _is_alone(plan: Plan) -> bool:
    """Whether a plan has one instance, which clients ask themselves."""
    return sum(pool.count for pool in plan.pools) == 1


def _heads(plan: Plan) -> list[Process]:
    """The processes that answer HTTP."""
    return [one for one in placed(plan) if one.rank == 0]


def _urls(plan: Plan, role: str | None) -> list[str]:
    return [one.url for one in _heads(plan) if one.pool.role == role]
