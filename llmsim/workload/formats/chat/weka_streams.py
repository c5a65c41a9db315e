"""The calls of Weka conversations as streams: which call follows which, and how long after it."""

from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from llmsim.core import Int64

BLOCK_TOKENS = 64
OVERLAP_NS = 1_000_000
"""Recorded times are rounded: a call may seem to begin this much before the last one's end."""
NS_PER_S = 1_000_000_000
_AGENT = "agent"
"""How the type of an entry ends that stands for a sub-agent's calls."""
_time = attrgetter("t")
Seconds = Annotated[float, Meta(ge=0, le=4e9)]
Count = Annotated[int, Meta(ge=0, le=2**61)]


class Request(msgspec.Struct, gc=False, rename={"input": "in", "output": "out"}):
    t: Seconds = 0.0
    type: str = "n"
    model: str | None = None
    input: Count = 0
    output: Count = 0
    hash_ids: list[int] | None = None
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    requests: list["Request"] | None = None


class Conversation(msgspec.Struct, gc=False):
    requests: list[Request]
    id: str | int | None = None
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)] = BLOCK_TOKENS
    hash_id_scope: str = "local"
    models: Any = None
    tool_tokens: Any = None
    system_tokens: Any = None


class Streams(Struct, frozen=True):
    """Calls of conversations, one conversation after the other, each call before those that came
    later in its stream.

    `stream` and `conversation` say whose a call is; a stream has a name and, where it is a
    sub-agent's, the time at which it was spawned (else -1). `relative`: some sub-agent's call has a
    time before that.
    """

    calls: list[Request]
    at_ns: Int64
    stream: Int64
    conversation: Int64
    names: list[str]
    spawned_ns: list[int]
    relative: bool

    def follow(self, kept: NDArray[np.bool_]) -> tuple[Int64, NDArray[np.bool_]]:
        """Of the calls that are kept: ns after the call before (-1: at its own time), and whether a
        call is aside of its stream because it overlaps the call before, and nothing follows it.
        """
        rows = np.flatnonzero(kept)
        if len(rows) == 0:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
        order = np.argsort(self.stream[rows], kind="stable")
        rows = rows[order]
        at_ns, stream = self.at_ns[rows], self.stream[rows]
        end_ns = at_ns + self._lasted_ns()[rows]
        head = np.diff(stream, prepend=-1) != 0
        ready_ns = np.concatenate((np.zeros(1, dtype=np.int64), end_ns[:-1]))
        overlaps = ~head & (at_ns + OVERLAP_NS < ready_ns)
        if overlaps.any():
            for one in np.unique(stream[overlaps]):
                _wait(at_ns, end_ns, ready_ns, *np.searchsorted(stream, (one, one + 1)).tolist())
            overlaps = ~head & (at_ns + OVERLAP_NS < ready_ns)
        gap_ns = np.maximum(at_ns - ready_ns, 0)
        thought_ns = self._thought_ns()
        if thought_ns is not None:
            gap_ns = np.where(thought_ns[rows] >= 0, thought_ns[rows], gap_ns)
        after_ns, aside = np.empty_like(at_ns), np.empty_like(overlaps)
        after_ns[order] = np.where(head | overlaps, -1, gap_ns)
        aside[order] = overlaps
        return after_ns, aside

    def _lasted_ns(self) -> Int64:
        return _ns([call.api_time or 0.0 for call in self.calls])

    def _thought_ns(self) -> Int64 | None:
        """The time before each call, where it is said instead of how long calls lasted
        (else -1).
        """
        if [call.think_time for call in self.calls].count(None) == len(self.calls):
            return None
        given = [call.think_time if call.api_time is None else None for call in self.calls]
        return np.where([each is None for each in given], -1, _ns([each or 0.0 for each in given]))


def _wait(at_ns: Int64, end_ns: Int64, ready_ns: Int64, low: int, high: int) -> None:
    """Sets when one stream is ready for each of its calls but the first: at the end of the last one
    not aside.
    """
    ready = int(end_ns[low])
    for row in range(low + 1, high):
        ready_ns[row] = ready
        if at_ns[row] + OVERLAP_NS >= ready:
            ready = int(end_ns[row])


def streams_of(conversations: list[Conversation], taken: int) -> Streams:
    """The streams of conversations; those without a name are called by their number, the first of
    them `taken`.
    """
    names = [
        f"conversation-{number}" if each.id is None else str(each.id)
        for number, each in enumerate(conversations, taken)
    ]
    lists = [conversation.requests for conversation in conversations]
    calls = list(chain.from_iterable(lists))
    nested = [call.requests for call in calls].count(None) < len(calls)
    if nested or any(kind.endswith(_AGENT) for kind in {call.type for call in calls}):
        return _nested(lists, names)
    of = np.repeat(
        np.arange(len(lists)), np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    )
    at_ns = _ns([call.t for call in calls])
    if ((np.diff(at_ns) < 0) & (np.diff(of) == 0)).any():
        order = np.lexsort((np.array([call.t for call in calls]), of))
        calls, at_ns = [calls[row] for row in order.tolist()], at_ns[order]
    return Streams(calls, at_ns, of, of, names, [-1] * len(names), False)


def _nested(lists: list[list[Request]], names: list[str]) -> Streams:
    """Streams where a call may stand for a sub-agent's: a stream of its own, at its
    position in time.
    """
    calls: list[Request] = []
    stream, conversation = list[int](), list[int]()
    names, spawned_ns, relative = [*names], [-1] * len(names), False

    def walk(index: int, mine: int, requests: list[Request]) -> None:
        nonlocal relative
        agents = 0
        for call in sorted(requests, key=_time):
            at_ns = round(call.t * NS_PER_S)
            relative = relative or at_ns < spawned_ns[mine]
            if call.type.endswith(_AGENT) or call.requests:
                agents += 1
                names.append(f"{names[mine]}/{agents}")
                spawned_ns.append(at_ns)
                walk(index, len(names) - 1, call.requests or [])
            else:
                calls.append(call)
                stream.append(mine)
                conversation.append(index)

    for index, requests in enumerate(lists):
        walk(index, index, requests)
    of, inside = np.array(stream, dtype=np.int64), np.array(conversation, dtype=np.int64)
    return Streams(calls, _ns([call.t for call in calls]), of, inside, names, spawned_ns, relative)


def tokens_of(calls: list[Request], side: Literal["input", "output"]) -> Int64:
    """Prompt or answer tokens of each call."""
    return np.fromiter(map(attrgetter(side), calls), dtype=np.int64, count=len(calls))


def _ns(seconds: list[float]) -> Int64:
    return np.rint(np.fromiter(seconds, dtype=np.float64, count=len(seconds)) * NS_PER_S).astype(
        np.int64
    )
