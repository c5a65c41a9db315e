"""A queue order, a victim, an eviction and an admission: each the twin of what is built in."""

from collections.abc import Sequence

from llmsim.routing.base import GroupView, RequestView
from llmsim.scheduling.base import SequenceView


class ShortestPrompt:
    """The twin of `--scheduling-policy sjf`."""

    def key(self, request: SequenceView) -> int:
        return request.tokens


class LastAdmitted:
    """The twin of vLLM's victim under first come, first served."""

    def choose(self, running: Sequence[SequenceView], needy: SequenceView) -> int:
        return len(running) - 1


class LeastRecentlyFreed:
    """The twin of the built-in eviction."""

    def __init__(self) -> None:
        self.order: dict[int, bool] = {}

    def freed(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.order[block] = True

    def reused(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.order.pop(block, None)

    def evict(self, count: int) -> list[int]:
        victims = list(self.order)[:count]
        for block in victims:
            del self.order[block]
        return victims


class Limit:
    """The twin of `QUEUE_LIMIT`."""

    def __init__(self, requests: int = 100) -> None:
        self.requests = requests

    def admit(self, request: RequestView, group: GroupView) -> bool:
        return group.waiting < self.requests
