"""What the workers of an engine do for its KV connector, in virtual time."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from vllm.v1.outputs import KVConnectorOutput

from llmsim.emulation.in_engine.channel import Channel, row_of

Looked = Callable[[], int | None]
"""When the workers looked for what has moved, in a step of theirs, in ps; None: they have still to
launch it.
"""


class KvWorkers(Protocol):
    """The workers' side of a connector."""

    def begin(self, scheduler_output: Any) -> None:
        """They are called; returns when the step may begin."""
        ...

    def launched(self, looked: Looked) -> None:
        """They have a step, behind whose launch they look."""
        ...

    def computed(self, known: dict[str, int]) -> None:
        """A step has ended, with which so many leading tokens of these requests are known."""
        ...

    def moved(self, looked: Looked | None) -> KVConnectorOutput | None:
        """What they found when they had `launched` the oldest step, which has ended; None: what
        they find now, without one.
        """
        ...


class NoKv:
    """There is no connector."""

    def begin(self, scheduler_output: Any) -> None:
        """Nothing is to be done."""

    def launched(self, looked: Looked) -> None:
        """Nothing moves."""

    def computed(self, known: dict[str, int]) -> None:
        """Nothing is written."""

    def moved(self, looked: Looked | None) -> None:
        """Nothing moves."""


class Reads:
    """KV goes from one server to another, which reads it."""

    def __init__(self, channel: Channel, calls: int, *, keeps_finished: bool) -> None:
        """`calls`: with how many more calls the scheduler may hear of what was found without a
        step. `keeps_finished`: another server reads what ended here.
        """
        self._channel, self._calls, self._keeps_finished = channel, calls, keeps_finished
        self._in_flight: deque[Looked] = deque()
        """Steps that have not ended."""

    def begin(self, scheduler_output: Any) -> None:
        """The KV of whoever runs may be read later."""
        held = scheduler_output.kv_connector_metadata.held
        if held:
            self._channel.drops(held)
        if self._keeps_finished:
            self._channel.knows(scheduler_output.num_scheduled_tokens)

    def launched(self, looked: Looked) -> None:
        """What they find then, the scheduler hears at the step's end."""
        self._in_flight.append(looked)

    def computed(self, known: dict[str, int]) -> None:
        """Nothing is written."""

    def moved(self, looked: Looked | None) -> KVConnectorOutput | None:
        """Requests whose KV has moved."""
        if looked is None:
            found = self._channel.moved(self._calls, after_ps=self._seen_ps())
        else:
            self._in_flight.popleft()
            found = self._channel.moved(self._calls, looked())
        names = set(found)
        if not names:
            return None
        if self._keeps_finished:
            return KVConnectorOutput(finished_sending=names)
        return KVConnectorOutput(finished_recving=names)

    def _seen_ps(self) -> int:
        """Until when steps in flight have looked."""
        return max((one() or 0 for one in self._in_flight), default=0)


class WritesChunks(Reads):
    """Each chunk of a prompt is written into the other server's memory when its step has ended."""

    def computed(self, known: dict[str, int]) -> None:
        """Its whole pages go; the end of a prompt goes with its request."""
        for name, tokens in known.items():
            self._channel.sent(row_of(name), tokens, "")
