"""A router: the twin of the native `LOR`."""

from collections.abc import Sequence

from llmsim.routing import GroupView, RequestView


class FewestOutstanding:
    """Chooses the group with the fewest requests."""

    def route(self, request: RequestView, groups: Sequence[GroupView]) -> int:
        return min(groups, key=lambda group: group.waiting + group.running).index
