"""A simulation whose requests come while it runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec.structs import replace

from llmsim import _native
from llmsim.api.preparation.prepare import Compiled
from llmsim.config.plugin_calls import foreign_code
from llmsim.core import Status, Workload
from llmsim.routing import RouterSpec
from llmsim.scheduling.policies import PolicySpecs
from llmsim.simulation.errors import errors_named
from llmsim.simulation.options import SimulationOptions
from llmsim.simulation.run import native_simulation

NO_EVENT_PS = 1 << 62
"""Times from here on mean that nothing is left to happen."""
_CONTENT_BITS = 48
"""Of a content key, below the number of its adapter."""
MOST_ADAPTERS = (1 << 15) - 1
"""That a server tells apart: keys have 63 bits (`kOwnKey` of the native module)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a client sees: its request has so many tokens in all, or has ended, at that time."""

    row: int
    tokens: int
    time_ps: int
    ended: Status | None
    """REJECTED, REFUSED or CANCELLED; None: the answer goes on, or its last token has come."""


@dataclass(frozen=True)
class GroupGauges:
    """What a model serving group holds now."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks: int


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """A request as its engine knows it (`llmsim.columns.RequestColumns`); -1: it has not come so
    far.
    """

    group: int
    queued_ps: int
    scheduled_ps: int
    first_token_ps: int
    finish_ps: int
    cached_tokens: int
    preemptions: int


class LiveSimulation:
    """Requests are asked at times that are not before the last event; `advance` moves the clock.

    The same requests at the same times give the same tokens at the same times as `llmsim run` does
    with them as its trace, to the picosecond.
    """

    def __init__(self, compiled: Compiled, options: SimulationOptions, rows: int) -> None:
        """`rows`: requests that are remembered at a time, those included that have ended."""
        lowered = compiled.lowered
        workload = _empty_rows(rows, lowered.models, lowered.granularity)
        options = replace(options, record_series=False)
        self._simulation = native_simulation(lowered, workload, options, live=True)
        self._named = partial(errors_named, self._simulation, lowered, workload, options)
        self._contents = _native.ContentHasher(lowered.granularity)
        self._free = list(range(rows - 1, -1, -1))
        self._each_ps = lowered.output_processing_ps
        self.models = lowered.models

    @property
    def now_ps(self) -> int:
        """The time of the last event."""
        return int(self._simulation.now_ps)

    @property
    def next_event_ps(self) -> int:
        """When something happens next; NO_EVENT_PS or more: nothing will."""
        return int(self._simulation.next_event_ps)

    @property
    def output_processing_ps(self) -> int:
        """What token n of an answer takes n times beside the engine, before its client has it."""
        return self._each_ps

    @property
    def max_model_len(self) -> list[int]:
        """The longest prompt and answer together, a value per group."""
        return self.counters()["max_model_len"]

    def ask(
        self,
        arrival_ps: int,
        prompt: Sequence[int],
        answer: Sequence[int],
        *,
        model: int = 0,
        priority: int = 0,
        adapter: int = 0,
    ) -> int | None:
        """A request with these token ids arrives; returns its row, or None where all are in use.

        The engine learns the answer's length as vLLM does with `ignore_eos`: as a limit. What a
        LoRA adapter (its number, from 1) computes is of no use to another one, nor to the model.
        """
        if not self._free:
            self._free = sorted(self._simulation.reusable_rows(), reverse=True)
        if not self._free:
            return None
        row = self._free.pop()
        self._contents.add(list(prompt), list(answer))
        keys = self._contents.take_keys() + np.uint64(adapter << _CONTENT_BITS)
        self._simulation.ask(
            row, arrival_ps, len(prompt), len(answer), model, priority, adapter, keys
        )
        return row

    def leave(self, row: int, time_ps: int) -> None:
        """The client of a request goes at that time, if it still waits then."""
        self._simulation.leave(row, time_ps)

    def advance(self, until_ps: int) -> Iterator[Progress]:
        """Everything until then happens, that time included; what clients see of it, in order.

        Raises what `llmsim.simulation.run.simulate` raises.
        """
        with foreign_code(), self._named():
            self._simulation.run_until(until_ps)
        events = self._simulation.take_live_events()
        columns = (events[name].tolist() for name in ("row", "tokens", "status", "time_ps"))
        for row, tokens, status, time_ps in zip(*columns, strict=True):
            ended = None if status == Status.RUNNING else Status(status)
            yield Progress(row, tokens, time_ps, ended)

    def statuses(self, rows: Sequence[int]) -> list[Status]:
        """Where each of these requests stands."""
        return [Status(status) for status in self._simulation.statuses(list(rows))]

    def progress(self, row: int) -> EngineProgress:
        """What the engine knows of a request; raises ValueError where there is no such row."""
        columns = self._simulation.progress([row])
        return EngineProgress(*(int(columns[name][0]) for name in EngineProgress.__slots__))

    def engine_counters(self) -> dict[str, list[int]]:
        """Totals that only a server shows, a value per group: how prompts found their KV."""
        return {
            name: np.asarray(values).tolist()
            for name, values in self._simulation.engine_counters().items()
        }

    def accepted_at(self) -> list[list[int]]:
        """Drafts of each position that held, by group."""
        return [np.asarray(values).tolist() for values in self._simulation.accepted_at()]

    def step_tokens(self) -> list[list[tuple[int, int]]]:
        """(tokens, steps that had so many) of the steps that gave answers, by group."""
        return [list(steps) for steps in self._simulation.step_tokens()]

    def gauges(self) -> list[GroupGauges]:
        """What each group holds now."""
        return [GroupGauges(*one) for one in self._simulation.gauges()]

    def counters(self) -> dict[str, list[int]]:
        """Totals since the start, a value per group (`llmsim.columns`, table of counters)."""
        return {
            name: np.asarray(values).tolist()
            for name, values in self._simulation.counters().items()
        }


def live_simulation(
    compiled: Compiled,
    rows: int,
    *,
    router: RouterSpec,
    decode_router: RouterSpec,
    seed: int,
    policies: PolicySpecs | None,
) -> LiveSimulation:
    """A live simulation of a compiled cluster; raises InputError where a policy cannot run so."""
    options = SimulationOptions(
        router=router,
        decode_router=decode_router,
        seed=seed,
        policies=policies or PolicySpecs(),
        tiers=compiled.tiers,
    )
    return LiveSimulation(compiled, options, rows)


def _empty_rows(rows: int, models: tuple[str, ...], granularity: int) -> Workload:
    """A workload whose rows have still to be asked."""
    zeros = np.zeros(rows, np.int32)
    return Workload(
        arrival_ps=np.full(rows, -1, np.int64),
        input_tokens=zeros,
        output_tokens=zeros,
        model=np.zeros(rows, np.int16),
        models=models,
        next_call=np.full(rows, -1, np.int32),
        tool_delay_ps=np.zeros(rows, np.int64),
        key_offsets=np.zeros(rows + 1, np.int64),
        keys=np.empty(0, np.uint64),
        granularity=granularity,
        source="live requests",
    )
