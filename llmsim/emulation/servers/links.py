"""The links over which the KV of prompts goes from one engine to another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmsim import _native
from llmsim.lowering import LoweredDeployment


@dataclass(frozen=True)
class Prompts:
    """What the links have to know of requests, by row."""

    tokens: Callable[[int], int]
    prefill_of: Callable[[int], int]
    """The group that computes it."""


class Links:
    """Moves KV that decode groups pull from prefill groups, as in `llmsim run`."""

    def __init__(self, lowered: LoweredDeployment, prompts: Prompts) -> None:
        assert lowered.kv_transfers is not None, "engine_stages looked"
        assert lowered.network is not None, "KV moves on it"
        self._prompts = prompts
        self._cores: dict[int, tuple[int, int]] = {}
        """By row whose KV is on its way, where from and where to."""
        self._transfers = _native.OutsideTransfers(lowered.kv_transfers, lowered.network.config)

    @property
    def next_ps(self) -> int | None:
        """When something may land; None: nothing moves."""
        return self._transfers.next_event_ps()

    def reserved(self, core: int, row: int, cached: int, now_ps: int) -> int:
        """A decode engine has blocks for a prompt, of which it has `cached` tokens; how long its
        workers post the reads of the others, in ps.
        """
        self._cores[row] = self._prompts.prefill_of(row), core
        tokens = self._prompts.tokens(row)
        return self._transfers.reserved(row, self._cores[row], tokens, cached, now_ps)

    def sent(self, core: int, row: int, metadata: str) -> None:
        """A prefill engine pushes the KV of a prompt."""
        raise ValueError(f"engine core {core} pushes the KV of row {row}, which is pulled")

    def landed(self, now_ps: int) -> list[tuple[int, Any]]:
        """The requests whose KV has landed by now, for each engine core that is to hear of it."""
        rows = self._transfers.advance(now_ps)
        return [(core, row) for row in rows for core in self._cores.pop(row)]


class PushLinks(Links):
    """Moves KV that prefill groups push to decode groups, as in `llmsim run`.

    What engine cores do at one time comes here in any order. It takes place when all of them have
    said it, in the order of their numbers.
    """

    def __init__(self, lowered: LoweredDeployment, prompts: Prompts) -> None:
        super().__init__(lowered, prompts)
        self._reserved: list[tuple[int, int, int]] = []
        """(core, row, tokens that it has), of the present time."""
        self._sent: list[tuple[int, int]] = []
        """(core, row), of the present time."""
        self._metadata: dict[int, str] = {}
        """By row, what goes along with its KV."""

    @property
    def next_ps(self) -> int | None:
        """When something may happen; None: nothing will."""
        return 0 if self._reserved or self._sent else super().next_ps

    def reserved(self, core: int, row: int, cached: int, now_ps: int) -> int:
        """A decode engine has memory for a prompt; nobody posts reads."""
        self._reserved.append((core, row, cached))
        return 0

    def sent(self, core: int, row: int, metadata: str) -> None:
        """A prefill engine pushes the KV of a prompt, with what goes along with it."""
        self._sent.append((core, row))
        self._metadata[row] = metadata

    def landed(self, now_ps: int) -> list[tuple[int, Any]]:
        """What has happened by now, for each engine core that is to hear of it: row, when, and what
        came along with its KV; None: a prefill engine hears that it may push the KV.
        """
        self._take_place(now_ps)
        whole = super().landed(now_ps)
        told = [(self._cores[row][0], row) for row in self._transfers.take_told()]
        heard: list[tuple[int, Any]] = [(core, (row, now_ps, None)) for core, row in told]
        heard += [(core, (row, now_ps, self._metadata[row])) for core, row in whole]
        for _, row in whole:
            self._metadata.pop(row, None)
        return heard

    def _take_place(self, now_ps: int) -> None:
        reserved, self._reserved = sorted(self._reserved, key=_core), []
        sent, self._sent = sorted(self._sent, key=_core), []
        for core, row, cached in reserved:
            super().reserved(core, row, cached, now_ps)
        for _, row in sent:
            self._transfers.prefilled(row, now_ps)


def _core(said: tuple[int, ...]) -> int:
    return said[0]
