"""What the workers of an engine do for its KV connector, in virtual time."""

from typing import Any, Protocol

from vllm.v1.outputs import KVConnectorOutput

from llmsim.emulation.in_engine.channel import Channel


class KvWorkers(Protocol):
    """The workers' side of a connector."""

    def begin(self, scheduler_output: Any) -> None:
        """They are called; returns when the step may begin."""
        ...

    def moved(self, until_ps: int | None) -> KVConnectorOutput | None:
        """What they find when they have launched a step, at that time; None: now, without one."""
        ...


class NoKv:
    """There is no connector."""

    def begin(self, scheduler_output: Any) -> None:
        """Nothing is to be done."""

    def moved(self, until_ps: int | None) -> None:
        """Nothing moves."""


class Handover:
    """KV goes from one server to another."""

    def __init__(self, channel: Channel, calls: int, *, keeps_finished: bool) -> None:
        """`calls`: with how many more calls the scheduler may hear of what was found without a
        step. `keeps_finished`: another server reads what ended here.
        """
        self._channel, self._calls, self._keeps_finished = channel, calls, keeps_finished

    def begin(self, scheduler_output: Any) -> None:
        """The KV of whoever runs may be read later."""
        if self._keeps_finished:
            self._channel.knows(scheduler_output.num_scheduled_tokens)

    def moved(self, until_ps: int | None) -> KVConnectorOutput | None:
        """Requests whose KV has moved."""
        names = set(self._channel.moved(self._calls, until_ps))
        if not names:
            return None
        if self._keeps_finished:
            return KVConnectorOutput(finished_sending=names)
        return KVConnectorOutput(finished_recving=names)
