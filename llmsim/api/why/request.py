"""The story of one request: its events, the parts of its latency, and behind whom it waited."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmsim.api.why.blockers import Blockers
from llmsim.api.why.seen import Seen
from llmsim.config.errors import InputError, nearest
from llmsim.core import PS_PER_MS, PS_PER_S, Int64, Status

MOST_BLOCKERS = 5
DIGITS = 6


@dataclass(frozen=True)
class RequestStory:
    """One request; times in ms from its arrival."""

    name: str
    status: str
    group: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    events: tuple[tuple[str, float], ...]
    before: dict[str, float]
    """Parts of the time to first token, ms."""
    after: dict[str, float]
    """Parts of the time after it, ms."""
    behind: tuple[tuple[str, int, float], ...]
    """Other requests whose prompts were computed while it waited: name, prompt tokens, ms."""

    def to_dict(self) -> dict[str, Any]:
        """The story as JSON values."""
        return {
            "request_id": self.name,
            "status": self.status,
            "group": self.group,
            "arrival_s": self.arrival_s,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "events_ms": dict(self.events),
            "before_first_token_ms": self.before,
            "after_first_token_ms": self.after,
            "behind": [
                {"request_id": name, "input_tokens": tokens, "overlap_ms": time_ms}
                for name, tokens, time_ms in self.behind
            ],
        }


def row_of(seen: Seen, request: str | int) -> int:
    """The row of a request by its name in the trace, else by its number; raises InputError."""
    names = seen.result._results.workload.request_id
    count = len(seen.result._results.workload)
    if names and str(request) in names:
        return names.index(str(request))
    if str(request).isdecimal() and int(request) < count and not names:
        return int(request)
    known = names[:1000] if names else [str(row) for row in range(min(count, 1000))]
    what = f"{known[0]} is the first" if names else f"they are numbered 0 to {count - 1}"
    raise InputError(
        f'request "{request}" is not in this run{nearest(str(request), known)}; {what}',
        field="request",
        value=request,
    )


def story_of(seen: Seen, request: str | int) -> RequestStory:
    """The story of a request; raises InputError where there is none."""
    row = row_of(seen, request)
    results = seen.result._results
    requests = results.requests
    arrival = int(requests.arrival_ps[row])
    if arrival < 0:
        raise InputError(f'request "{request}" never arrived; ask for one that did')
    others, overlap = Blockers(seen).of(row) if requests.first_token_ps[row] >= 0 else ((), ())
    order = np.argsort(-np.asarray(overlap))[:MOST_BLOCKERS] if len(overlap) else ()
    return RequestStory(
        name=seen.name(row),
        status=Status(int(requests.status[row])).name.lower(),
        group=int(requests.group[row]),
        arrival_s=round(arrival / PS_PER_S, DIGITS),
        input_tokens=int(results.workload.input_tokens[row]),
        output_tokens=int(requests.emitted_tokens[row]),
        events=tuple(_events(seen, row, arrival)),
        before=_parts_ms(seen.before, row),
        after=_parts_ms(seen.after, row),
        behind=tuple(
            (
                seen.name(int(others[at])),
                int(seen.input_tokens[others[at]]),
                round(int(overlap[at]) / PS_PER_MS, DIGITS),
            )
            for at in order
        ),
    )


def _parts_ms(parts: Mapping[str, Int64], row: int) -> dict[str, float]:
    return {part: round(int(ps[row]) / PS_PER_MS, DIGITS) for part, ps in parts.items()}


def _events(seen: Seen, row: int, arrival: int) -> list[tuple[str, float]]:
    """The events of the request in the order of their times, ms from its arrival."""
    results = seen.result._results
    times = {
        name: int(getattr(results.requests, f"{name}_ps")[row])
        for name in ("arrival", "queued", "scheduled", "first_token", "finish", "cancelled")
    }
    if results.kv_transfers is not None:
        moved = ("prefill_end", "kv_reserved", "kv_landed", "decode_scheduled")
        times |= {name: int(getattr(results.kv_transfers, f"{name}_ps")[row]) for name in moved}
    came = sorted((time, name) for name, time in times.items() if time >= 0)
    return [(name, round((time - arrival) / PS_PER_MS, DIGITS)) for time, name in came]
