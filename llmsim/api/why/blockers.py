"""Behind whom a request waits: the prompts that its group computed while it waited."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from llmsim.api.why.seen import Rows, Seen
from llmsim.core import Int64


@dataclass(frozen=True)
class Blocker:
    """A request whose prompt was computed while others waited."""

    row: int
    input_tokens: int
    delayed: int
    """Requests of the cohort that waited meanwhile."""
    overlap_ps: int
    """Time that the prompt took while they waited, summed over them."""


@dataclass(frozen=True, eq=False)
class Blockers:
    """Overlaps of the waiting of requests with the prefill of others in the same group."""

    seen: Seen

    @cached_property
    def _by_group(self) -> dict[int, tuple[Rows, Int64, Int64]]:
        """Rows, begin and end of the prefills of each group, in order of their begin."""
        requests, found = self.seen.result._results.requests, {}
        begin, end = requests.scheduled_ps, self.seen.prompt_done_ps
        for group in np.unique(self.seen.prompt_group):
            rows = np.flatnonzero((self.seen.prompt_group == group) & (begin >= 0) & (end > begin))
            rows = rows[np.argsort(begin[rows], kind="stable")]
            found[int(group)] = (rows, begin[rows], end[rows])
        return found

    def of(self, row: int) -> tuple[Rows, Int64]:
        """Requests whose prefill overlapped the wait of `row` for its first token, and how long.

        Only requests that were scheduled before `row` count.
        """
        requests = self.seen.result._results.requests
        rows, begin, end = self._by_group[int(self.seen.prompt_group[row])]
        arrived, done = int(requests.arrival_ps[row]), int(self.seen.prompt_done_ps[row])
        earlier = (begin <= int(requests.scheduled_ps[row])) & (end > arrived) & (rows != row)
        overlap = np.minimum(end[earlier], done) - np.maximum(begin[earlier], arrived)
        return rows[earlier], np.maximum(overlap, 0)

    def of_cohort(self, most: int = 5) -> list[Blocker]:
        """The requests that delayed the cohort most."""
        total: dict[int, list[int]] = {}
        for row in self.seen.cohort.tolist():
            others, overlap = self.of(row)
            for other, time_ps in zip(others.tolist(), overlap.tolist(), strict=True):
                entry = total.setdefault(other, [0, 0])
                entry[0] += 1
                entry[1] += time_ps
        ranked: Sequence[tuple[int, list[int]]] = sorted(
            total.items(), key=lambda item: (-item[1][1], item[0])
        )
        tokens = self.seen.input_tokens
        return [Blocker(row, int(tokens[row]), *entry) for row, entry in ranked[:most]]

    def covered_by(self, blocking: Rows) -> float:
        """The share of the cohort's time to first token in which prompts of `blocking` ran."""
        wanted, covered, whole = set(blocking.tolist()), 0, 0
        requests = self.seen.result._results.requests
        for row in self.seen.cohort.tolist():
            others, overlap = self.of(row)
            mine = [
                o for r, o in zip(others.tolist(), overlap.tolist(), strict=True) if r in wanted
            ]
            span = int(self.seen.prompt_done_ps[row] - requests.arrival_ps[row])
            covered += min(sum(mine), span)
            whole += span
        return covered / whole if whole else 0.0
