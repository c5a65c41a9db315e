"""What the workers of an engine do for its KV connector, in virtual time."""

from collections.abc import Callable
from typing import Any, Protocol

from vllm.v1.outputs import KVConnectorOutput

from llmsim.emulation.in_engine.channel import Channel, row_of

Looked = Callable[[], int]
"""When the workers looked for what has moved in a step that has ended, in ps."""


class KvWorkers(Protocol):
    """The workers' side of a connector."""

    def begin(self, scheduler_output: Any) -> None:
        """They are called; returns when the step may begin."""
        ...

    def computed(self, known: dict[str, int]) -> None:
        """A step has ended, with which so many leading tokens of these requests are known."""
        ...

    def moved(self, looked: Looked | None) -> KVConnectorOutput | None:
        """What they found when they had launched a step; None: what they find now, without one."""
        ...


class NoKv:
    """There is no connector."""

    def begin(self, scheduler_output: Any) -> None:
        """Nothing is to be done."""

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

    def begin(self, scheduler_output: Any) -> None:
        """The KV of whoever runs may be read later."""
        held = scheduler_output.kv_connector_metadata.held
        if held:
            self._channel.drops(held)
        if self._keeps_finished:
            self._channel.knows(scheduler_output.num_scheduled_tokens)

    def computed(self, known: dict[str, int]) -> None:
        """Nothing is written."""

    def moved(self, looked: Looked | None) -> KVConnectorOutput | None:
        """Requests whose KV has moved."""
        until_ps = None if looked is None else looked()
        names = set(self._channel.moved(self._calls, until_ps))
        if not names:
            return None
        if self._keeps_finished:
            return KVConnectorOutput(finished_sending=names)
        return KVConnectorOutput(finished_recving=names)


class WritesChunks(Reads):
    """Each chunk of a prompt is written into the other server's memory when its step has ended."""

    def computed(self, known: dict[str, int]) -> None:
        """Its whole pages go; the end of a prompt goes with its request."""
        for name, tokens in known.items():
            self._channel.sent(row_of(name), tokens, "")
