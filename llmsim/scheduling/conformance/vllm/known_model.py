"""What stands for the model of an engine whose answers are known."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from llmsim.scheduling.base import ScheduledItem
from llmsim.scheduling.conformance.model_runner import ModelRunner
from llmsim.scheduling.conformance.vllm.request import LiveRequest

DRAFT = 7
"""The token that stands for every draft: whether one holds is sampled."""


class Call(Struct, frozen=True):
    """What one call of vLLM's scheduler made run, and what the model answers to it."""

    items: list[ScheduledItem]
    preempted: list[int]
    names: list[str]
    """Of the requests, in the order of the items."""
    tokens: list[list[int]]


class KnownModel:
    """Answers batches of requests, which are known by row."""

    def __init__(
        self, requests: Sequence[LiveRequest], speculation: Any, *, schedules_ahead: bool
    ) -> None:
        """`schedules_ahead`: the engine schedules a step before it has the tokens of the last."""
        self._row = {request.name: row for row, request in enumerate(requests)}
        self._speculation, self._schedules_ahead = speculation, schedules_ahead
        self._runner = ModelRunner(requests, speculation)

    def launch(self, output: Any, held: Mapping[str, Any]) -> Call:
        """A batch of vLLM's scheduler, which holds these requests."""
        found = items_of(output)
        for name, _, before, _, starts in found:
            if starts:
                self._start(name, before, held[name])
        items, tokens = [], []
        for name, scheduled, before, drafts, starts in found:
            row = self._row[name]
            # Who starts has proposed nothing yet: none of its drafts holds.
            sampled = self._runner.sample(row, scheduled, drafts, holds=not starts)
            tokens.append(sampled)
            items.append((row, scheduled, before, drafts, bool(sampled)))
        # vLLM 0.33 has a set of names, whose order differs between processes.
        preempted = sorted(self._row[name] for name in output.preempted_req_ids or ())
        return Call(items, preempted, [name for name, *_ in found], tokens)

    def _start(self, name: str, before: int, request: Any) -> None:
        """What it samples for a batch in flight comes after what it is told now."""
        row = self._row[name]
        if getattr(request, "drop_stale_output", False):
            self._runner.forgets(row, request.num_tokens)
        known = None if self._schedules_ahead else request.num_tokens
        self._runner.starts(row, before, known)

    def drafts_after(self, names: Sequence[str]) -> list[list[int]]:
        """Drafts that follow a batch of these requests."""
        number = self._speculation.drafts_after(len(names))
        return [[DRAFT] * number if self._proposes(name) else [] for name in names]

    def _proposes(self, name: str) -> bool:
        row = self._row[name]
        return bool(self._speculation.proposes(row, self._runner.sampled(row)))


def items_of(output: Any) -> list[tuple[str, int, int, int, bool]]:
    """What vLLM's scheduler makes run, in its order: (request, tokens, computed before, drafts,
    whether it starts or starts again).
    """
    before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    started = {new.req_id for new in output.scheduled_new_reqs} | set(cached.resumed_req_ids)
    drafts = output.scheduled_spec_decode_tokens
    return [
        (name, tokens, before[name], len(drafts.get(name, ())), name in started)
        for name, tokens in output.num_scheduled_tokens.items()
    ]
