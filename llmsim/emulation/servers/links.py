"""The links over which the KV of prompts goes from one engine to another."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from llmsim import _native
from llmsim.emulation.in_engine.channel import News
from llmsim.lowering import LoweredDeployment


def outside_network(lowered: LoweredDeployment) -> "_native.OutsideNetwork":
    """The cluster's, on which nothing moves yet."""
    assert lowered.network is not None, "KV moves on it"
    return _native.OutsideNetwork(lowered.network.config)


@dataclass(frozen=True)
class Prompts:
    """What the links have to know of requests, by row."""

    tokens: Callable[[int], int]
    prefill_of: Callable[[int], int]
    """The group that computes it."""


class Links:
    """Moves KV that decode groups pull from prefill groups, as in `llmsim run`."""

    def __init__(
        self, lowered: LoweredDeployment, prompts: Prompts, network: "_native.OutsideNetwork"
    ) -> None:
        """`network`: where steps may move something, too."""
        assert lowered.kv_transfers is not None, "engine_stages looked"
        self._prompts = prompts
        self._cores: dict[int, tuple[int, int]] = {}
        """By row whose KV is on its way, where from and where to."""
        self._transfers = _native.OutsideTransfers(lowered.kv_transfers, network)
        self._reserved: set[int] = set()
        """Rows for which blocks have been reserved."""
        self._unread: list[int] = []
        """Rows whose KV nobody will read, of which prefill engines have still to hear."""

    @property
    def next_ps(self) -> int | None:
        """When something may land; None: nothing moves."""
        return 0 if self._unread else self._transfers.next_event_ps()

    def reserved(self, core: int, row: int, cached: int, now_ps: int) -> int:
        """A decode engine has blocks for a prompt, of which it has `cached` tokens; how long its
        workers post the reads of the others, in ps.
        """
        self._reserved.add(row)
        self._cores[row] = self._prompts.prefill_of(row), core
        tokens = self._prompts.tokens(row)
        return self._transfers.reserved(row, self._cores[row], tokens, cached, now_ps)

    def sent(self, core: int, row: int, tokens: int, metadata: str) -> None:
        """A prefill engine pushes the KV of a prompt."""
        raise ValueError(f"engine core {core} pushes the KV of row {row}, which is pulled")

    def withdrawn(self, core: int, row: int, now_ps: int) -> None:
        """A decode engine has dropped a request: KV that moves arrives, else none will be read."""
        if row in self._cores or row not in self._reserved:
            self._transfers.dropped(row, (self._prompts.prefill_of(row), core), now_ps)

    def forgets(self, row: int) -> None:
        """No decode engine will have the request, whose prompt has been computed."""
        self._unread.append(row)

    def landed(self, now_ps: int) -> list[tuple[int, Any]]:
        """The requests whose KV has landed by now, or that nobody will read, for each engine core
        that is to hear of it.
        """
        rows = self._transfers.advance(now_ps)
        unread, self._unread = [*self._unread, *self._transfers.take_forgotten()], []
        heard: list[tuple[int, Any]] = [(self._prompts.prefill_of(row), row) for row in unread]
        return heard + [(core, row) for row in rows for core in self._cores.pop(row)]


class PushLinks(Links):
    """Moves KV that prefill groups push to decode groups, as in `llmsim run`.

    What engine cores do at one time comes here in any order. It takes place when all of them have
    said it, in the order of their numbers.
    """

    def __init__(
        self, lowered: LoweredDeployment, prompts: Prompts, network: "_native.OutsideNetwork"
    ) -> None:
        super().__init__(lowered, prompts, network)
        self._said: list[tuple[int, _Does, int, int]] = []
        """(core, what it does, row, tokens), of the present time."""
        self._known: dict[int, int] = {}
        """By row, the leading tokens that the decode engine has, or will have."""
        self._metadata: dict[int, str] = {}
        """By row, what goes along with the end of its KV."""

    @property
    def next_ps(self) -> int | None:
        """When something may happen; None: nothing will."""
        return 0 if self._said else super().next_ps

    def reserved(self, core: int, row: int, cached: int, now_ps: int) -> int:
        """A decode engine has memory for a prompt; nobody posts reads."""
        self._said.append((core, _Does.RESERVES, row, cached))
        return 0

    def sent(self, core: int, row: int, tokens: int, metadata: str) -> None:
        """A prefill engine pushes the KV of so many more tokens of a prompt; its end comes with
        metadata.
        """
        does = _Does.SENDS_END if metadata else _Does.SENDS
        self._said.append((core, does, row, tokens))
        if metadata:
            self._metadata[row] = metadata

    def withdrawn(self, core: int, row: int, now_ps: int) -> None:
        """A decode engine no longer wants it, and keeps its memory until it hears that nothing of
        it is under way.
        """
        self._said.append((core, _Does.WITHDRAWS, row, 0))

    def landed(self, now_ps: int) -> list[tuple[int, Any]]:
        """What has happened by now, for each engine core that is to hear of it: row, when, what
        (`News`), and what came along with its KV.
        """
        self._take_place(now_ps)
        whole = self._transfers.advance(now_ps)
        told, refused = self._transfers.take_told(), self._transfers.take_refused()
        drained = self._transfers.take_drained()
        heard: list[tuple[int, Any]] = [
            *(self._heard(row, _PREFILL, now_ps, News.MAY_SEND, self._known[row]) for row in told),
            *(self._heard(row, _PREFILL, now_ps, News.REFUSED) for row in refused),
            *(self._heard(row, _DECODE, now_ps, News.DRAINED) for row in drained),
        ]
        for row in whole:
            metadata = self._metadata.pop(row)
            heard += [
                self._heard(row, side, now_ps, News.LANDED, metadata)
                for side in (_PREFILL, _DECODE)
            ]
        return heard

    def _heard(
        self, row: int, side: int, now_ps: int, what: str, more: object = None
    ) -> tuple[int, Any]:
        return self._cores[row][side], (row, now_ps, what, more)

    def _take_place(self, now_ps: int) -> None:
        said, self._said = sorted(self._said, key=_turn), []
        for core, does, row, tokens in said:
            if does is _Does.RESERVES:
                self._known[row] = tokens
                super().reserved(core, row, tokens, now_ps)
            elif does is _Does.WITHDRAWS:
                self._transfers.withdrawn(row, self._cores[row], now_ps)
            else:
                self._send(row, tokens, now_ps, is_last=does is _Does.SENDS_END)

    def _send(self, row: int, tokens: int, now_ps: int, *, is_last: bool) -> None:
        """The end of a prompt is sent whether or not there are tokens left."""
        self._known[row] += tokens
        known = self._prompts.tokens(row) if is_last else self._known[row]
        self._transfers.sends(row, known, now_ps)


class WrittenLinks(PushLinks):
    """Moves KV that prefill groups write into decode groups when these have reserved memory, of
    which the proxy hears.
    """

    def __init__(
        self,
        lowered: LoweredDeployment,
        prompts: Prompts,
        network: "_native.OutsideNetwork",
        tells: Callable[[int], None],
    ) -> None:
        """`tells`: called with a row whose prompt may be computed."""
        super().__init__(lowered, prompts, network)
        self._tells = tells
        self._pages = {
            one.info.index: one.scheduler.kv.block_size
            for one in lowered.groups
            if one.scheduler is not None
        }

    def landed(self, now_ps: int) -> list[tuple[int, Any]]:
        """The requests whose KV has landed by now, for each engine core that is to hear of it."""
        self._take_place(now_ps)
        whole = self._transfers.advance(now_ps)
        for row in self._transfers.take_told():
            self._tells(row)
        return [(core, row) for row in whole for core in self._cores.pop(row)]

    def _send(self, row: int, tokens: int, now_ps: int, *, is_last: bool) -> None:
        """So many leading tokens of a prompt are computed, of which whole pages go, or its end."""
        prompt, page = self._prompts.tokens(row), self._pages[self._cores[row][_PREFILL]]
        to = prompt if is_last else tokens // page * page
        if is_last or (tokens < prompt and to > self._known[row]):
            self._transfers.sends(row, to, now_ps)
            self._known[row] = to


class _Does(IntEnum):
    """What engine cores do at one time, in this order."""

    RESERVES = 0
    SENDS = 1
    SENDS_END = 2
    WITHDRAWS = 3


_PREFILL, _DECODE = 0, 1
"""Places of engine cores."""


def _turn(said: tuple[int, _Does, int, int]) -> tuple[int, int]:
    core, does, *_ = said
    sends = does in (_Does.SENDS, _Does.SENDS_END)  # in the order of the batch
    return _Does.SENDS if sends else does, core
