"""What a router written in Python has to offer, and what it sees."""

from collections.abc import Sequence
from typing import Protocol


class RequestView(Protocol):
    """The request that arrives; read-only, and readable only until `route` returns."""

    @property
    def row(self) -> int:
        """Its row in the workload, from 0 in order of arrival."""

    @property
    def tokens(self) -> int:
        """Length of its prompt. The length of the answer is nobody's to know."""

    @property
    def session(self) -> str | None:
        """The session that it is a call of."""

    @property
    def model(self) -> str:
        """The model that it asks for."""

    @property
    def now_ps(self) -> int:
        """Simulated time of its arrival."""


class GroupView(Protocol):
    """A group that serves the request's model, as it is now; read-only, and readable only until
    `route` returns.
    """

    @property
    def index(self) -> int:
        """Its index in the cluster file, from 0."""

    @property
    def running(self) -> int:
        """Requests that have been scheduled and are not finished."""

    @property
    def waiting(self) -> int:
        """Requests that wait to be scheduled, those on their way from the API server included."""

    @property
    def free_blocks(self) -> int:
        """KV blocks that no request holds; they may still be cached."""

    @property
    def total_blocks(self) -> int:
        """KV blocks that requests can hold."""


class Router(Protocol):
    """Chooses a group for each request; called once per arrival, and not at all where one group
    serves the model.

    One object serves one run and may keep what it likes except views. An exception ends the run
    with one sentence.
    """

    def route(self, request: RequestView, groups: Sequence[GroupView]) -> int:
        """The `index` of one of `groups`, which are in order of their index and never empty."""
