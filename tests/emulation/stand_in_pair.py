"""A prefill and a decode engine with SGLang's ways: both get a request, and KV is pushed when the
decode engine has said that it has memory.
"""

from contextlib import suppress
from typing import Any

from emulation.stand_in_engine import StandIn

from llmsim.emulation.in_engine.channel import row_of
from llmsim.emulation.in_engine.clock import Clock
from llmsim.emulation.in_engine.sglang.transfers import Transfers

Request = dict[str, Any]


class _Role(StandIn):
    """Passes over its requests as SGLang's loops without overlap do."""

    def __init__(self, socket_path: str, clock: Clock, number: int) -> None:
        """`number`: of the engine core."""
        self._clock = clock
        self._moving: list[Request] = []
        """Requests whose KV is under way."""
        super().__init__(socket_path, 0, number)

    def _run(self) -> None:
        self._transfers = Transfers(self._channel, self._clock)
        with suppress(ConnectionError, ValueError):
            while True:
                self._channel.settle()
                self._transfers.begins_pass()
                if not self._works(self._taken()) and not self._transfers.finds_more():
                    self._rest()

    def _taken(self) -> list[Request]:
        new = []
        while not self._inbox.empty():
            new.append(self._inbox.get())
        return [one for one in new if one is not None]

    def _leaves(self, name: str) -> None:
        """Clients stay until the end."""

    def _rest(self) -> None:
        with self._lock:
            if not self._inbox.empty():
                return
            self._parked = True
            self._channel.dozes()
        self._channel.goes_on()
        with self._lock:
            self._parked = False

    def _works(self, new: list[Request]) -> bool:
        """Whether there was a step."""
        raise NotImplementedError

    def _computes(self, items: list[list[Any]]) -> None:
        self._transfers.runs()
        end_ps, _, _ = self._channel.step(items)
        self._channel.wait(end_ps)
        self._transfers.computed(
            [(row_of(name), before + more) for name, more, before, *_ in items]
        )

    def _here(self) -> list[Request]:
        """Takes those whose KV has moved."""
        here = [
            one for one in self._moving if self._transfers.landed(row_of(one["name"])) is not None
        ]
        self._moving = [one for one in self._moving if one not in here]
        return here

    def _give(self, requests: list[Request]) -> list[Request]:
        """A token for each; who wants more."""
        for one in requests:
            one["wanted"] -= 1
        self._channel.produced([(one["name"], 1, one["wanted"] == 0) for one in requests])
        for one in requests:
            one["out"].put(([7], one["wanted"] == 0))
        return [one for one in requests if one["wanted"] > 0]


class Prefill(_Role):
    """Computes prompts as soon as their KV may be pushed."""

    _waiting: list[Request]

    def _works(self, new: list[Request]) -> bool:
        self._waiting = [*getattr(self, "_waiting", ()), *(one | {"wanted": 1} for one in new)]
        batch = [one for one in self._waiting if self._transfers.may_send(row_of(one["name"]))]
        if batch:
            self._waiting = [one for one in self._waiting if one not in batch]
            self._computes([[one["name"], one["left"], 0, 0, True] for one in batch])
            for one in batch:
                self._transfers.sent(row_of(one["name"]), one["left"], "the first token")
            self._moving += batch
        self._give(self._here())
        return bool(batch)


class Decode(_Role):
    """Has memory for everything, and decodes all of whom it has the KV."""

    _running: list[Request]

    def _works(self, new: list[Request]) -> bool:
        for one in new:
            self._transfers.reserved(row_of(one["name"]), 0)
        self._moving += new
        here = self._here()
        if here:
            self._channel.first_tokens([(one["name"], one["left"]) for one in here])
        self._running = [*getattr(self, "_running", ()), *self._give(here)]
        if self._running:
            self._computes([self._item(one) for one in self._running])
            self._running = self._give(self._running)
        return bool(self._running)

    def _item(self, one: Request) -> list[Any]:
        """It computes on the token that it has got last."""
        starts = one["computed"] == 0
        one["computed"] = one["computed"] + 1 if not starts else one["left"] + 1
        item = [one["name"], 1, one["computed"] - 1, 0, starts]
        return [*item, one["left"] + 1] if starts else item
