"""The simulated devices behind an engine core: what its steps take, and what they answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from llmsim import _native
from llmsim.emulation.in_engine.channel import row_of
from llmsim.emulation.step_counts import Encodes, no_counts
from llmsim.lowering import LoweredGroup

Item = tuple[int, int, int]
"""(row, tokens, computed before) of one request of a batch."""
Batch = list[Item]


@dataclass
class Schedule:
    """The batches of a group, in the order of its steps."""

    formed_ps: list[int] = field(default_factory=list)
    end_ps: list[int] = field(default_factory=list)
    items: list[list[Item]] = field(default_factory=list)

    def add(self, formed_ps: int, end_ps: int, items: list[Item]) -> None:
        """One more step."""
        self.formed_ps.append(formed_ps)
        self.end_ps.append(end_ps)
        self.items.append(items)


class Begun(NamedTuple):
    """A step that has begun."""

    end: int
    """In ps; in lock-step, its number."""
    tokens: list[list[int]]
    """Of each item of its batch."""
    looks_ps: int
    """When its workers look for KV that has moved."""


class Model(Protocol):
    """What the model answers (`llmsim.scheduling.conformance.model_runner.ModelRunner`)."""

    def starts(self, row: int, computed: int) -> None:
        """A request runs for the first time, or again."""
        ...

    def forgets(self, row: int, known: int) -> None:
        """A request holds so many tokens, and what was sampled behind them has been dropped."""
        ...

    def sample(self, row: int, scheduled: int, drafts: int, *, holds: bool) -> list[int]:
        """Its tokens of a step."""
        ...

    def sampled(self, row: int) -> int:
        """Tokens that it has had so far."""
        ...


def answered(model: Model, items: list[list[Any]]) -> tuple[Batch, list[list[int]]]:
    """The batch of these items (`Channel.step`), and the tokens that it gives each of them."""
    batch: Batch = []
    tokens = []
    for name, scheduled, before, drafts, started, *held in items:
        row = row_of(name)
        if held:
            model.forgets(row, *held)
        if started:
            model.starts(row, before)
        # SGLang's decode servers begin with drafts, which came along with the KV.
        tokens.append(model.sample(row, scheduled, drafts, holds=not started or bool(held)))
        batch.append((row, scheduled, before))
    return batch, tokens


DraftsAfter = Callable[["_native.SpeculationConfig", list[list[Any]]], int]
"""How many drafts of each sequence follow a step of these items (`Channel.step`)."""


Counts = Callable[[list[list[Any]], Encodes], list[int]]
"""What a step of these items (`Channel.step`) has beside tokens (`BatchRunner.run`)."""


def drafts_by_sequences(speculation: "_native.SpeculationConfig", items: list[list[Any]]) -> int:
    """As vLLM's drafters."""
    return speculation.drafts_after(len(items))


class Proposer:
    """Who gets drafts behind the steps of one group, and how many."""

    def __init__(
        self, speculation: "_native.SpeculationConfig", model: Model, drafts_after: DraftsAfter
    ) -> None:
        self._speculation, self._model, self._drafts_after = speculation, model, drafts_after
        self._rows: list[int] = []
        """Of the last step."""

    def begin_step(self, items: list[list[Any]]) -> int:
        """How many drafts of each sequence follow a step of these items (`Channel.step`)."""
        self._rows = [row_of(item[0]) for item in items]
        return self._drafts_after(self._speculation, items)

    def drafts(self) -> list[int]:
        """How many drafts each request of the last step gets at its end."""
        most = self._speculation.drafts_after(len(self._rows))
        proposes, sampled = self._speculation.proposes, self._model.sampled
        return [most if proposes(row, sampled(row)) else 0 for row in self._rows]


def sizes_of(batch: Batch, items: list[list[Any]]) -> list[tuple[int, int, int]]:
    """(tokens, computed before, drafts) of each request of a batch of these items."""
    return [
        (tokens, before, item[3]) for (_, tokens, before), item in zip(batch, items, strict=True)
    ]


class HostLoads:
    """When steps may begin that read KV which comes back from host memory."""

    def __init__(self, group: LoweredGroup) -> None:
        assert group.scheduler is not None, "engine_stages looked"
        self._program, self._layers = group.program, group.scheduler.host_cache.layers
        self._stages = group.layout.pp

    def ready_ps(self, sizes: list[tuple[int, int, int]], waits: list[int] | None) -> int:
        """The earliest start with which the first layer and the last one have their KV in time, as
        in the core (`Group::copied`). `sizes`: (tokens, computed before, drafts) of each request;
        `waits` as of `Devices.step`.
        """
        not_before_ps, began_ps, ended_ps = waits or (0, 0, 0)
        if ended_ps == 0:
            return not_before_ps
        layers = self._layers
        step_ps = self._program.step_ps(sizes) // self._stages
        first_ps = began_ps + (ended_ps - began_ps) // layers
        last_ps = ended_ps - step_ps // layers * (layers - 1)
        return max(not_before_ps, first_ps, last_ps)


class Devices:
    """The devices of one group."""

    def __init__(
        self,
        group: LoweredGroup,
        model: Model,
        drafts_after: DraftsAfter = drafts_by_sequences,
        counts: Counts = no_counts,
    ) -> None:
        """`counts`: what steps have beside tokens."""
        assert group.scheduler is not None, "check_deployment looked"
        self._runner = _native.BatchRunner(group.native, group.program, group.expanded)
        self._model = model
        self._proposer = Proposer(group.scheduler.speculation, model, drafts_after)
        self._counts = counts
        self._host_loads = HostLoads(group)
        self._stages = group.layout.pp
        self._waits_for_batch = group.native.stages_wait
        self._posted_reads = _native.PostedReads()
        self._formed_ps: int | None = None
        """When the next batch was formed, if before it is launched."""
        self._given_ps = [0]
        """After each call, the end of the last step that gave tokens."""
        self.schedule = Schedule()

    def posts_reads(self, posts_ps: int, now_ps: int) -> None:
        """The workers' hosts post reads of KV for so long, before they launch the next step."""
        self._posted_reads.add(posts_ps, now_ps)

    def forms(self, now_ps: int) -> None:
        """The next batch is formed, and may wait for copies."""
        self._formed_ps = now_ps

    def step(
        self,
        items: list[list[Any]],
        now_ps: int,
        waits: list[int] | None = None,
        encodes: Encodes | None = None,
    ) -> Begun:
        """The next step (`Channel.step`). `waits`: when it may begin, and when KV that its layers
        read begins to come and is there; 0: none comes.
        """
        batch, tokens = answered(self._model, items)
        posting_ps = self._posted_reads.take(now_ps)
        # The host prepares the step from now on, whenever its tokens are known.
        sizes = sizes_of(batch, items)
        proposed = self._proposer.begin_step(items)
        known_ps = max(self._tokens_known_ps(), self._host_loads.ready_ps(sizes, waits))
        counts = self._counts(items, encodes or {})
        _, end_ps = self._runner.run(sizes, now_ps, known_ps, proposed, posting_ps, counts)
        formed_ps, self._formed_ps = self._formed_ps, None
        self.schedule.add(now_ps if formed_ps is None else formed_ps, end_ps, batch)
        self._given_ps.append(end_ps if any(tokens) else self._given_ps[-1])
        return Begun(end_ps, tokens, now_ps + posting_ps)

    def drops(self, held: dict[str, int]) -> None:
        """What steps in flight give these requests, which hold so many tokens, is dropped."""
        for name, tokens in held.items():
            self._model.forgets(row_of(name), tokens)

    def drafts(self) -> list[int]:
        """How many drafts each request of the last step gets at its end."""
        return self._proposer.drafts()

    def empty_step(self) -> None:
        """The engine has called its workers without a batch."""
        self._given_ps.append(self._given_ps[-1])

    def first_tokens(self, prompts: list[tuple[str, int]], now_ps: int) -> None:
        """First tokens of these requests, with prompts of so many tokens, have come with their KV:
        a step that takes no time.
        """
        self.schedule.add(now_ps, now_ps, [(row_of(name), 0, tokens) for name, tokens in prompts])

    def _tokens_known_ps(self) -> int:
        """When the first of several stages has the tokens that it computes on, as in the core
        (`Group::tokens_from`).
        """
        if self._stages == 1:
            return 0
        calls = 1 if self._waits_for_batch else self._stages
        return self._given_ps[-calls] if len(self._given_ps) > calls else 0
