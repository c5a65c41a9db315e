"""The comparator of figure 20 as the paper's public code has it: skip-join in two queues.

The paper calls it skip-join MLFQ. Its repository (github.com/NetX-lab/Frontier, replica scheduler
`sj2q_fastserve_lite`) orders vLLM's own queues by two levels and leaves the batch builder alone:
nobody pauses for others or sinks for the time that it has run, as in FastServe.
"""

from typing import Any

import numpy as np


class TwoQueues:
    """Rounds with few new prompt tokens first.

    A round of more than `long` new tokens is low, and so is each round of a session that had one,
    or whose prompt was cut, unless it has at most `short`. Above, small prompts come before
    decodes, and those before other prompts. The thresholds are the repository's defaults.
    """

    orders = ("waiting", "running", "victims")

    def __init__(self, long: int = 2048, short: int = 512) -> None:
        self.long, self.short = long, short
        self.long_sessions: set[int] = set()
        self.last: dict[int, int] = {}
        self.rounds: dict[int, tuple[int, int, int]] = {}
        self.low: set[int] = set()

    def keys(self, view: Any, now_ps: int) -> Any:
        """Level, place inside of it, arrival."""
        rows = view.row.tolist()
        for row, session, prompt in zip(
            rows, view.session.tolist(), view.tokens.tolist(), strict=True
        ):
            if row not in self.rounds:
                self._begin(row, session, prompt)
        low = np.array([row in self.low for row in rows], dtype=np.int64)
        small = np.array([self.rounds[row][2] <= self.short for row in rows])
        decodes = view.computed >= view.tokens
        inside = np.where(decodes, 1, np.where(small, 0, 2))
        return np.column_stack([low, np.where(low == 1, 0, inside), view.arrival_ps])

    def _begin(self, row: int, session: int, prompt: int) -> None:
        new = max(prompt - self.last.get(session, 0), 0)
        self.rounds[row] = session, prompt, new
        if new > self.long:
            self.long_sessions.add(session)
        if new > self.long or (session in self.long_sessions and new > self.short):
            self.low.add(row)

    def scheduled(self, requests: Any, tokens: Any, computed: Any, now_ps: int) -> None:
        """A cut prompt marks its session; behind its prompt, a long session's round is low."""
        for row, end in zip(requests.tolist(), (computed + tokens).tolist(), strict=True):
            session, prompt, _ = self.rounds[row]
            if end < prompt:
                self.long_sessions.add(session)
            if session in self.long_sessions:
                self.low.add(row)

    def left(self, request: int) -> None:
        """The next round's prompt counts from here."""
        if request in self.rounds:
            session, prompt, _ = self.rounds[request]
            self.last[session] = prompt
