"""The engine core's side of the Timekeeper: one connection, a line of JSON for each message."""

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterable
from typing import Any

_NAME = re.compile(r"(?:cmpl-|chatcmpl-|generate-tokens-)?(\d{9})")


def row_of(name: str) -> int:
    """The row of a request by the name that the engine has made of ours."""
    found = _NAME.match(name)
    if found is None:
        raise ValueError(f'the engine runs a request "{name}" that no client sent')
    return int(found[1])


class News:
    """What happens to KV that is pushed."""

    MAY_SEND = "may send"
    """Blocks are reserved for it, which its prefill engine is told, with the number of leading
    tokens that the decode engine has.
    """
    LANDED = "landed"
    """It is there, which both engines are told, with the metadata of the prompt."""
    REFUSED = "refused"
    """Nobody wants it, which its prefill engine is told."""
    DRAINED = "drained"
    """Nothing of it is under way any more, which a decode engine is told that has withdrawn."""


class Channel:
    """Says what the engine core does, and waits for its time.

    Notices may come from any thread. Questions (`settle`, `step`, `wait`) come from one.
    """

    def __init__(self, path: str, rank: int) -> None:
        """`rank`: the number of the engine core."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._answers = self._socket.makefile("rb")
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        """Of requests whose KV may move, by row."""
        self._restless = 0
        """How often it does not rest, since the scheduler has still to hear something."""
        self._has_output = False
        """Since the last call of the workers, a step has ended, of which the scheduler hears."""
        self._said(["join", rank, os.getpid()])

    def park(self) -> None:
        """It has nothing to do."""
        self._said(["park"])

    def unpark(self) -> None:
        """It has something to do again."""
        self._said(["unpark"])

    def asked_for(self) -> None:
        """Somebody waits for an answer of the engine core itself, which does not settle before."""
        self._said(["asked for"])

    def answers(self) -> None:
        """The engine core answers that now."""
        self._said(["answers"])

    def received(self, request: str, tokens: int) -> None:
        """A request that a client sent is here, with so many tokens."""
        self._said(["received", request, tokens])

    def left(self, requests: list[str]) -> None:
        """That the clients of these requests have left is heard here."""
        self._said(["left", requests])

    def produced(self, answers: list[tuple[str, int, bool]]) -> None:
        """On their way to clients: request, tokens, whether they are its last."""
        self._said(["produced", answers])

    def reports(self) -> None:
        """A report of its load is on its way to the coordinator."""
        self._said(["reported"])

    def ended(self, messages: int) -> None:
        """So many messages are on their way to the balancer that requests have ended."""
        self._said(["ended", messages])

    def empty_step(self) -> None:
        """The workers are called without a batch."""
        self._said(["empty step"])

    def knows(self, names: Iterable[str]) -> None:
        """The KV of these requests may move."""
        self._names |= {row_of(name): name for name in names}

    def reserved(self, name: str, cached: int) -> None:
        """Blocks are reserved for a prompt, of which so many tokens are here."""
        self.knows([name])
        self.reserved_row(row_of(name), cached)

    def reserved_row(self, row: int, cached: int) -> None:
        """The same, by the request's row."""
        self._said(["reserved", row, cached])

    def sent(self, row: int, tokens: int, metadata: str) -> None:
        """The KV of a prompt's leading tokens is pushed to its decode engine; what goes along with
        it comes with its end.
        """
        self._said(["sent", row, tokens, metadata])

    def withdrawn(self, row: int) -> None:
        """A decode engine no longer wants the KV of a prompt, for which it has reserved blocks."""
        self._said(["withdrawn", row])

    def transfers(self) -> list[tuple[int, int, str, Any]]:
        """What has happened to KV that is pushed since it was asked: row, when, what (one of
        `News`), and what came along with that.
        """
        return [
            (row, at_ps, what, more) for row, at_ps, what, more in self._asked(["moved", None, -1])
        ]

    def first_tokens(self, prompts: list[tuple[str, int]]) -> None:
        """The KV of these requests, with prompts of so many tokens, has come along with the first
        tokens of their answers.
        """
        self._said(["first tokens", prompts])

    def moved(self, calls: int, until_ps: int | None = None, after_ps: int = -1) -> list[str]:
        """Requests whose KV has `arrived`."""
        return [self._names.pop(row) for row in self.arrived(calls, until_ps, after_ps)]

    def arrived(self, calls: int, until_ps: int | None = None, after_ps: int = -1) -> list[int]:
        """The numbers of what has moved by that time since it was asked, and later than `after_ps`:
        rows, or jobs of `copies`.

        Without a time it is now, and the scheduler hears of it with one of the next `calls` calls.
        """
        numbers: list[int] = self._asked(["moved", until_ps, after_ps])
        if numbers and until_ps is None:
            self._restless = calls
        return numbers

    def copies(self, asked: dict[str, list[Any]], *, runs: bool, waits: bool) -> None:
        """The workers are called, with requests (`runs`) or without, and copy this to host memory
        and back (`HostCopies.asked`). `waits`: it returns when what the step waits for is there.
        """
        if waits:
            self._asked(["copies", asked, runs, waits])
        else:
            self._said(["copies", asked, runs, waits])

    def rest(self) -> None:
        """Returns when a request is there that was not when it last settled, or KV has moved; at
        once where the scheduler has heard of something else since it found nothing to run.
        """
        if self._has_output:
            self._has_output = False
        elif self._restless:
            self._restless -= 1
        else:
            self._asked(["rest"])

    def dozes(self, until_ps: int | None = None) -> None:
        """It has seen all that has come, and has nothing to do before that time, if there is one;
        `goes_on` tells when something is there for it.
        """
        self._said(["doze", until_ps])

    def settle(self) -> None:
        """Returns when no message is under way, at the same virtual time."""
        self.settles()
        self.goes_on()

    def settles(self) -> None:
        """It waits until no message is under way; `goes_on` tells when that is so."""
        self._said(["settle"])

    def step(
        self,
        items: list[list[Any]],
        waits: list[int] | None = None,
        encodes: dict[str, list[int]] | None = None,
    ) -> tuple[int, list[list[int]], int]:
        """The end in ps of a step of these items, or in lock-step its number, the tokens that it
        gives each of them, and when its workers look for KV that has moved. `waits`: what copies it
        waits for (`Devices.step`); `encodes`: the places of the encoder inputs that it encodes, by
        request.

        An item is [request, tokens, computed before, drafts, whether it has just started], with the
        tokens that such a request holds at the end where the engine may have dropped some.
        """
        self._has_output = False
        message: list[Any] = ["step", items]
        if waits is not None or encodes:
            message += [waits, encodes]
        end_ps, tokens, looks_ps = self._asked(message)
        return end_ps, tokens, looks_ps

    def drops(self, held: dict[str, int]) -> None:
        """These requests start again with the next step, with so many tokens; the engine drops
        what steps in flight give them.
        """
        self._said(["drops", held])

    def drafts(self) -> list[int]:
        """How many drafts each item of the last step gets at its end."""
        counts: list[int] = self._asked(["drafts"])
        return counts

    def woken(self) -> None:
        """The coordinator's message that a wave begins is here."""
        self._said(["woken"])

    def dummy(self) -> None:
        """A rank in lock-step joins a round without work, and returns when it may go on."""
        self._asked(["dummy"])

    def ends(self, number: int) -> None:
        """Returns at the end of that step of a rank in lock-step."""
        self._asked(["ends", number])
        self._has_output = True

    def looks_of(self, number: int) -> int | None:
        """When the workers of a rank in lock-step look for KV that has moved, in that step; None:
        other ranks have still to join its round.
        """
        looks_ps: int | None = self._asked(["looks of", number])
        return looks_ps

    def end_of(self, number: int) -> int:
        """When that step of a rank in lock-step ends, in ps; it returns when the other ranks have
        joined the round.
        """
        end_ps: int = self._asked(["end of", number])
        return end_ps

    def agree(self, *, unfinished: bool, pauses: bool) -> tuple[bool, bool]:
        """What ranks in lock-step agree on: whether work is left, and whether all pause."""
        work, all_pause = self._asked(["agree", unfinished, pauses])
        return work, all_pause

    def meet(self) -> None:
        """Returns when all ranks in lock-step have come here."""
        self._asked(["meet"])

    def goes_on(self) -> None:
        """Returns when a core that `dozes` has something to do: when that is here (`unpark`), at
        another rank in lock-step, when KV has moved, or at its time; or when it has settled, or is
        `asked_for` something.
        """
        self._heard()

    def wait(self, until_ps: int) -> None:
        """Returns at that virtual time, when a step has ended."""
        self._asked(["wait", until_ps])
        self._has_output = True

    def close(self) -> None:
        """The engine core ends, and says so: one that dies cannot. A thread that waits for an
        answer has a ConnectionError.
        """
        with contextlib.suppress(OSError):
            self._said(["bye"])
            self._socket.shutdown(socket.SHUT_RDWR)
        self._answers.close()  # it would keep the socket open
        self._socket.close()

    def _said(self, message: list[Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def _asked(self, message: list[Any]) -> Any:
        self._said(message)
        return self._heard()

    def _heard(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise ConnectionError("llmsim emulate has ended")
        return json.loads(line)


_CHANNEL: Channel | None = None


def opened(path: str, rank: int) -> Channel:
    """This process's channel, which is made on the first call."""
    global _CHANNEL
    if _CHANNEL is None:
        _CHANNEL = Channel(path, rank)
    return _CHANNEL


def current() -> Channel | None:
    """This process's channel; None: it is no engine core."""
    return _CHANNEL
