"""Protocols of policies and schedulers that are written in Python (docs/how-to/extending/ shows
each).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from msgspec import Struct

from llmsim.routing.base import GroupView, RequestView

if TYPE_CHECKING:
    import numpy.typing as npt

    from llmsim import _native

IntColumn = np.ndarray[tuple[int], np.dtype[Any]]
BoolColumn = np.ndarray[tuple[int], np.dtype[np.bool_]]

ScheduledItem = tuple[int, int, int, int, bool]
"""(request, tokens scheduled, tokens computed before, speculative tokens among them, whether a
token is sampled).
"""

Emitted = tuple[int, int, bool]
"""(request, tokens received, whether the request is finished)."""


class Scheduler(Protocol):
    """Decides what each step of one group runs; called once per arrival and per step, never per
    block or token.

    Requests are rows of the workload. Batches complete in the order of their building. An exception
    ends the run. One that may find something by being asked again, with nothing else having
    happened, has a method `asks_again() -> bool`, which is called when nothing is in flight and
    `build` gave nothing. One whose empty batches take places among those in flight has an attribute
    `queues_empty_batches`. One that says itself how many batches are in flight has an attribute
    `depth`. One that is a data-parallel rank in lock-step and runs its engine's loop is a
    `RankEngine`, too.
    """

    def add(self, request: int) -> None:
        """The engine sees the request from now on."""

    def build(self, now_ps: int) -> tuple[Sequence[ScheduledItem], Sequence[int]]:
        """The next step in execution order (empty: nothing can be scheduled now), and whom it
        preempted, in order.
        """

    def abort(self, request: int) -> None:
        """The client of a request that was added and is unfinished has gone; `complete` reports
        nothing of it.
        """

    def complete(self) -> Sequence[Emitted]:
        """The model's output for the oldest batch has arrived; says what each request received."""

    def gauges(self) -> tuple[int, int, int]:
        """(requests running, requests waiting, free KV blocks) after the last call."""


class RankEngine(Protocol):
    """What a `Scheduler` of a data-parallel rank has beside its methods, if it runs the loop of its
    engine itself. All ranks of a lock-step group do, or none.

    The loop goes on with `build` where it looks and has work, with `complete` where it awaits a
    batch that has ended, and else with `go_on`. Each returns where it stands next.
    """

    @property
    def turn(self) -> "_native.EngineTurn":
        """Where the loop stands."""

    def has_work(self) -> bool:
        """Whether a loop that looks runs a step, and does not idle."""

    @property
    def taken_from_ps(self) -> int:
        """When it made the call without a batch whose output it takes, where it does."""

    def go_on(self) -> None:
        """Its devices are no further behind its dummy than they may be, it has been told of what
        has moved, or all ranks have come to agree whether any has work.
        """


class Connector(Protocol):
    """What a `Scheduler` of a group whose KV comes from elsewhere, or goes there, has beside its
    methods; `connects` says whether it has.
    """

    @property
    def connects(self) -> bool:
        """Whether the methods may be called."""

    @property
    def keeps_finished(self) -> bool:
        """Whether blocks of requests that end stay taken until another group has read them."""

    def take_reserved(self) -> Sequence[tuple[int, int]]:
        """(request, tokens of it that were here) of those that the last `build` gave blocks to and
        parked until the rest has come from another group.
        """

    def transferred(self, request: int) -> bool | None:
        """The KV of a parked request is there, or that of one that ended has been read.

        True: it could not be loaded, and the request has ended with an error.
        """

    def use_tiers(self, below: "_native.PoolsBelow") -> None:
        """Pools of KV below the group, before the first request."""


class SequenceView(Protocol):
    """A request of the policy's group; a copy, true for the moment of the call."""

    @property
    def row(self) -> int:
        """Its row in the workload, from 0 in order of arrival."""

    @property
    def tokens(self) -> int:
        """Length of its prompt. The length of the answer is nobody's to know."""

    @property
    def received(self) -> int:
        """Tokens of the answer so far."""

    @property
    def computed(self) -> int:
        """Tokens whose KV is computed, or will be when the batches in flight have ended."""

    @property
    def blocks(self) -> int:
        """KV blocks that it holds."""

    @property
    def priority(self) -> int:
        """The trace's; a lower number is more urgent."""

    @property
    def arrival_ps(self) -> int:
        """When the client sent it."""


class RankView(Protocol):
    """All requests of a group before a step, as numpy columns that are copied when read."""

    def __len__(self) -> int:
        """Requests that wait, run, or are parked until their KV has come."""

    @property
    def row(self) -> IntColumn:
        """Rows in the workload."""

    @property
    def running(self) -> BoolColumn:
        """True for a request that runs; False for one that waits or is parked."""

    @property
    def parked(self) -> BoolColumn:
        """True for a request that holds blocks and waits for its KV."""

    @property
    def position(self) -> IntColumn:
        """Places among the waiting requests (in order of arrival at the engine, preempted ones in
        front), among the running ones (in the order in which they run), or among the parked ones.
        """

    @property
    def tokens(self) -> IntColumn:
        """Lengths of prompts. The length of an answer is nobody's to know."""

    @property
    def received(self) -> IntColumn:
        """Tokens of the answers so far."""

    @property
    def computed(self) -> IntColumn:
        """Tokens whose KV is computed, or will be when the batches in flight have ended."""

    @property
    def left(self) -> IntColumn:
        """Known tokens without KV: the rest of a prompt, or 1."""

    @property
    def blocks(self) -> IntColumn:
        """KV blocks that each request holds."""

    @property
    def preemptions(self) -> IntColumn:
        """How often each request has lost its blocks."""

    @property
    def priority(self) -> IntColumn:
        """The trace's; a lower number is more urgent."""

    @property
    def arrival_ps(self) -> IntColumn:
        """When clients sent the requests."""

    @property
    def session(self) -> IntColumn:
        """The row of the first call of each request's session."""

    @property
    def round(self) -> IntColumn:
        """The place of each request among the calls of its session, from 0."""


class Ranking(Protocol):
    """Orders a group's requests anew before each step; one object per group.

    The class attribute `orders` names what it decides, ("waiting",) if there is none: "waiting"
    (who starts next), "running" (who takes the token budget first), "victims" (the last one loses
    its blocks first), and "pauses" with all of these (requests beyond max_num_seqs pause and keep
    their KV). Methods `added(request, seen_ps)`, `scheduled(requests, tokens, computed, now_ps)`,
    `executed(requests, tokens)` and `left(request)` are called for what happens to requests, if the
    class has them; `requests`, `tokens` and `computed` (before the step) are arrays of one batch.
    """

    def keys(self, view: RankView, now_ps: int) -> "npt.ArrayLike":
        """A number, or a row of numbers, for each request of the view; lower comes first, then the
        lower row.
        """


class Admission(Protocol):
    """Takes requests in or turns them away; called once per arrival, after the router. One object
    per run.
    """

    def admit(self, request: RequestView, group: GroupView) -> bool:
        """Whether the group takes the request."""


class QueueOrder(Protocol):
    """Orders a group's waiting queue; one object per group.

    With a class attribute `preempted_first = False` a preempted request gets a new key; else it
    goes in front.
    """

    def key(self, request: SequenceView) -> int:
        """Lower starts sooner, ties by arrival. Asked once when the request joins the queue."""


class Victim(Protocol):
    """Chooses whom the scheduler `vllm_v1` preempts when KV runs out; called at each preemption."""

    def choose(self, running: Sequence[SequenceView], needy: SequenceView) -> int:
        """An index into `running`, which is in order of admission; `needy`, one of them, is short
        of a block.
        """


class Eviction(Protocol):
    """Chooses which cached blocks lose their content; one object per group, called per request and
    per 64 evictions.
    """

    def freed(self, blocks: Sequence[int]) -> None:
        """Cached blocks that nobody holds from now on, in the order in which they were
        given back.
        """

    def reused(self, blocks: Sequence[int]) -> None:
        """A request holds these again: they are no longer to be chosen, nor evicted if
        they were.
        """

    def evict(self, count: int) -> Sequence[int]:
        """`count` of the blocks that were freed and neither reused nor chosen since, the first to
        go first.
        """


class EngineLimits(Struct, frozen=True):
    """What a group's engine allows."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    """That requests can hold."""


class StepPolicy(Protocol):
    """A whole scheduler for `--scheduler module:Class`: made with the group's EngineLimits, one
    object per group.

    One batch is in flight at a time. The loop keeps count of tokens and blocks, and refuses what
    does not fit.
    """

    def add(self, request: int, tokens: int) -> None:
        """The engine sees the request, whose prompt has so many tokens."""

    def build(self, now_ps: int) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
        """([(request, tokens to compute), ...], [requests to preempt first, ...]).

        A preempted request loses its blocks and starts again, its answer so far included.
        """

    def complete(self, received: Sequence[tuple[int, int, bool]]) -> None:
        """The step is over: (request, tokens that it received, whether it is finished) of all that
        it ran.
        """

    def abort(self, request: int) -> None:
        """The client of an unfinished request has gone."""
