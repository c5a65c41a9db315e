"""Policies in Python that the benchmarks compare with their native twins."""

from collections.abc import Sequence

from llmsim.routing import GroupView, RequestView
from llmsim.scheduling.base import SequenceView


class Python:
    """LOR: the group with the fewest requests waiting or running; the lowest index wins a tie."""

    def route(self, request: RequestView, groups: Sequence[GroupView]) -> int:
        return min(groups, key=lambda group: group.waiting + group.running).index


class Shortest:
    """The order of `--scheduling-policy sjf`."""

    def key(self, request: SequenceView) -> int:
        return request.tokens
