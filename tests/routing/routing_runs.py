"""Small runs of the serving core with several groups, for the tests of routers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from simulations import clients

from llmsim import _native
from llmsim.core import Workload
from llmsim.routing import RouterSpec, parse_router

MS = 10**9
STEP, PER_TOKEN, PER_SEQUENCE = 5 * MS, 10**7, 2 * 10**7
MAX_TOKENS, MAX_SEQS = 256, 64


def step_ps(tokens: int, sequences: int) -> int:
    return STEP + tokens * PER_TOKEN + sequences * PER_SEQUENCE


def program(ranks: int = 1) -> Any:
    """Each of several ranks waits for the others at the end."""
    tokens, sequences = (
        np.arange(MAX_TOKENS + 1, dtype=np.int64),
        np.arange(MAX_SEQS + 1, dtype=np.int64),
    )
    zero = np.zeros(1, np.int64)
    compute, kinds = _native.NodeKind.COMPUTE, _native.Feature
    operators = [
        _native.Operator(
            "a",
            compute,
            kinds.TOKENS,
            0,
            1,
            STEP + tokens * PER_TOKEN,
            np.zeros(len(tokens), np.uint8),
        ),
        _native.Operator(
            "b",
            compute,
            kinds.SEQUENCES,
            0,
            1,
            sequences * PER_SEQUENCE,
            np.zeros(len(sequences), np.uint8),
        ),
    ]
    if ranks > 1:
        size = ranks * MAX_TOKENS + 1
        at_the_end = np.zeros(size, np.int64), np.zeros(size, np.uint8)
        collective = _native.NodeKind.COLLECTIVE
        operators.append(_native.Operator("end", collective, kinds.GATHERED, 0, 1, *at_the_end))
    attention = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
    return _native.Program(operators, attention, tokens.astype(np.int32), _native.LowerBound(), 0)


@dataclass
class Run:
    """Requests are (arrival_ps, prompt tokens, output tokens), keys their content in blocks of 16
    tokens.
    """

    requests: Sequence[tuple[int, int, int]]
    groups: int = 2
    blocks: int = 1000
    block_sizes: Sequence[int] = (16,)
    models: Sequence[int] = (0,)
    """Model of each group, in turn, as the block sizes."""
    keys: Sequence[Sequence[int]] = ()
    model_of: Sequence[int] = ()
    next_call: Sequence[int] = ()
    session_id: list[str] | None = None
    depth: int = 1
    api_latency_ps: int = 0
    seed: int = 0
    caching: bool = True
    balancer: dict[str, Any] = field(default_factory=dict)
    """Rules of a release of vLLM (`_native.BalancerRules`) that are not those of 0.33."""
    lockstep: bool = False
    """The groups are ranks that agree every 16 rounds, and behind the first one of a wave."""
    timeouts: Sequence[int] = ()
    """In ps; -1: the client does not give up. None are given: no client does."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        n = len(self.requests)
        columns = np.array(self.requests, np.int64).reshape(n, 3)
        keys = self.keys or [[] for _ in range(n)]
        return Workload(
            arrival_ps=columns[:, 0].copy(),
            input_tokens=columns[:, 1].astype(np.int32),
            output_tokens=columns[:, 2].astype(np.int32),
            model=np.array(self.model_of or [0] * n, np.int16),
            models=tuple(f"m{i}" for i in sorted(set(self.models))),
            next_call=np.array(self.next_call or [-1] * n, np.int32),
            tool_delay_ps=np.zeros(n, np.int64),
            key_offsets=np.cumsum([0, *map(len, keys)]).astype(np.int64),
            keys=np.array([key for row in keys for key in row], np.uint64),
            granularity=16,
            source="test",
            session_id=self.session_id,
        )

    def simulation(self, router: str | RouterSpec) -> Any:
        """Runs to the end; the router is one of the command line's names, or a specification."""
        groups = []
        for index in range(self.groups):
            kv = _native.KvCacheConfig()
            kv.num_blocks, kv.block_size = (
                self.blocks,
                self.block_sizes[index % len(self.block_sizes)],
            )
            kv.max_model_len, kv.prefix_caching = 100_000, self.caching
            scheduler = _native.SchedulerConfig()
            scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = MAX_SEQS, MAX_TOKENS
            scheduler.async_scheduling, scheduler.kv = self.depth == 2, kv
            group = _native.GroupConfig()
            group.index, group.depth, group.api_latency_ps = index, self.depth, self.api_latency_ps
            group.model = self.models[index % len(self.models)]
            for name, value in self.balancer.items():
                setattr(group.balancer, name, value)
            ranks = self.groups if self.lockstep else 1
            groups.append(_native.GroupSpec(group, scheduler, program(ranks)))
        spec = parse_router(router) if isinstance(router, str) else router
        w = self.workload
        source = _native.Source(
            w.arrival_ps, w.input_tokens, w.output_tokens, w.model, w.next_call, w.tool_delay_ps,
            np.empty(0, np.int32), w.key_offsets, w.keys, w.granularity,
            clients(list(self.timeouts) or None),
        )  # fmt: skip
        frontend = _native.Frontend(spec.native(self.seed, w.models, w))
        together = [_native.LockstepSpec(list(range(self.groups)), 16, syncs_first=True)]
        lockstep = together if self.lockstep else []
        config = _native.SimulationConfig(source, groups, frontend=frontend, lockstep=lockstep)
        sim = _native.Simulation(config)
        while not sim.run(1000):
            pass
        return sim

    def routes(self, router: str | RouterSpec) -> list[int]:
        """The group of each request."""
        chosen: list[int] = self.simulation(router).requests()["group"].tolist()
        return chosen


def python(router: Any) -> RouterSpec:
    """The specification of an object with a method `route`."""
    return RouterSpec(text="test", name=f"test:{type(router).__name__}", python=lambda: router)
