"""A backend of transfers between SGLang's prefill and decode servers, whose states change when
`llmsim emulate` has moved the KV.

The classes take the places of those of a backend of SGLang's. A receiver says that its memory is
reserved as it does with the metadata of its pages; a sender may then compute the prompt. What goes
along with the KV, the first token among it, is the row of SGLang's own metadata buffers.
"""

import base64
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from llmsim.emulation.in_engine.channel import Channel, News
from llmsim.emulation.in_engine.clock import Clock

BACKEND = "nixl"
"""The backend that these servers name, in whose place this one is."""
_FIRST_ROOM = 1
"""SGLang takes the room 0 for metadata that have not come."""


def room_of(row: int) -> int:
    """The number under which both servers know a request."""
    return row + _FIRST_ROOM


_Sent = tuple[int, int, str]
"""(row, tokens, metadata) of `Channel.sent`."""


class NoTransfers:
    """Of a server that computes prompts and answers: nothing moves."""

    def begins_turn(self) -> None:
        """The scheduler looks again."""

    def begins_pass(self) -> None:
        """So do all its micro-batches, one after the other."""

    def runs(self) -> None:
        """A step begins."""

    def computed(self, ends: Sequence[tuple[int, int]]) -> None:
        """A step has ended, behind which these rows have KV of so many leading tokens."""

    def finds_more(self) -> bool:
        """Nothing runs; whether the next pass finds something at this time all the same."""
        return False

    def brought(self) -> None:
        """First tokens have come along with KV."""


class Transfers(NoTransfers):
    """What the scheduler of a prefill or decode server knows of KV that moves, by row.

    KV that has moved at the very end of a step is heard of with the next one, unless nothing runs.
    """

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self._channel, self._clock = channel, clock
        self._asked_ps = -1
        self._may_send: dict[int, int] = {}
        """Of prompts whose KV may be sent, how many leading tokens need not be."""
        self._landed: dict[int, tuple[int, str]] = {}
        """When KV has landed that nobody has heard of, and what came along with it."""
        self._ended: dict[str, dict[int, int]] = {News.REFUSED: {}, News.DRAINED: {}}
        """When the other engine has said that of KV."""
        self._last_news_ps = -1
        """When one has said it last."""
        self._idle = False
        """Nothing runs, and nothing has begun at this time."""
        self._changed = False
        """This pass has changed what the next one finds."""
        self._computed: dict[int, int] = {}
        """By row, leading tokens of a prompt that have KV."""
        self._sent: dict[int, int] = {}
        """By row, leading tokens whose KV SGLang has sent."""
        self._held: dict[int, list[tuple[int, _Sent]]] = {}
        """By row, what SGLang has sent ahead of the step that computes it, and up to which token
        that is.
        """

    def begins_turn(self) -> None:
        """The scheduler looks again."""
        self._asked_ps = -1

    def begins_pass(self) -> None:
        """So do all its micro-batches, one after the other."""
        self.begins_turn()
        self._changed = False

    def runs(self) -> None:
        """A step begins."""
        self._idle = False

    def computed(self, ends: Sequence[tuple[int, int]]) -> None:
        """A step has ended, behind which these rows have KV of so many leading tokens."""
        for row, end in ends:
            self._computed[row] = end
            held = self._held.pop(row, [])
            for upto, sent in held:
                if upto <= end:
                    self._channel.sent(*sent)
            later = [one for one in held if one[0] > end]
            if later:
                self._held[row] = later

    def finds_more(self) -> bool:
        """What has just happened is heard of in another pass."""
        self._look()
        heard_all, self._idle = self._idle, True
        is_new = bool(self._landed) or self._last_news_ps == self._clock.now_ps()
        return self._changed or (is_new and not heard_all)

    def changes(self) -> None:
        """What this pass has done makes room for others."""
        self._changed = True

    def brought(self) -> None:
        """Who ends with its first token makes room."""
        self.changes()

    def reserved(self, row: int, cached: int) -> None:
        """There is memory for a prompt, of which so many tokens are here."""
        self.changes()
        self._channel.reserved_row(row, cached)

    def sent(self, row: int, tokens: int, metadata: str) -> None:
        """The KV of so many more tokens of a prompt leaves as soon as it is computed, at its end
        along with that. With pipeline stages SGLang says so ahead of the step's end.
        """
        self._sent[row] = self._sent.get(row, self._may_send.get(row, 0)) + tokens
        if self._sent[row] <= self._computed.get(row, 0):
            self._channel.sent(row, tokens, metadata)
        else:
            self._held.setdefault(row, []).append((self._sent[row], (row, tokens, metadata)))

    def withdraws(self, row: int) -> None:
        """There is memory for a prompt, which nobody wants any more."""
        self._channel.withdrawn(row)

    def may_send(self, row: int) -> bool:
        """The decode server has memory for the prompt."""
        self._look()
        return row in self._may_send

    def known(self, row: int) -> int:
        """Leading tokens of such a prompt that the decode server has."""
        return self._may_send[row]

    def landed(self, row: int) -> str | None:
        """What came along with the KV; None: it has not landed. It is told once."""
        self._look()
        if row not in self._landed or self._landed[row][0] > self._heard_ps():
            return None
        self.changes()
        self._may_send.pop(row, None)
        return self._landed.pop(row)[1]

    def is_refused(self, row: int) -> bool:
        """The decode server does not want it."""
        return self._has_ended(News.REFUSED, row)

    def is_drained(self, row: int) -> bool:
        """Nothing comes any more of what this server does not want."""
        return self._has_ended(News.DRAINED, row)

    def forgets(self, row: int) -> None:
        """Nobody asks again for the KV of this request."""
        self._held.pop(row, None)
        self._may_send.pop(row, None)
        self._landed.pop(row, None)

    def _has_ended(self, what: str, row: int) -> bool:
        self._look()
        ended_ps = self._ended[what].get(row)
        return ended_ps is not None and ended_ps <= self._heard_ps()

    def _heard_ps(self) -> int:
        return self._clock.now_ps() if self._idle else self._clock.now_ps() - 1

    def _look(self) -> None:
        now_ps = self._clock.now_ps()
        if self._asked_ps == now_ps:
            return
        self._asked_ps = now_ps
        for row, at_ps, what, more in self._channel.transfers():
            if what == News.MAY_SEND:
                self._may_send[row] = more
            elif what == News.LANDED:
                self._landed[row] = at_ps, more
            else:
                self._ended[what][row] = at_ps
                self._last_news_ps = at_ps


_TRANSFERS: Transfers | None = None


def begin(channel: Channel, clock: Clock) -> Transfers:
    """This process has the scheduler of a prefill or decode server."""
    global _TRANSFERS
    _TRANSFERS = Transfers(channel, clock)
    return _TRANSFERS


def _transfers() -> Transfers:
    assert _TRANSFERS is not None, "the sockets are made before the first request"
    return _TRANSFERS


def use_backend() -> None:
    """From now on SGLang's servers with a role get these classes, whatever backend they name."""
    from sglang.srt.disaggregation import decode, prefill
    from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class
    from sglang.srt.managers import disagg_service

    makers: dict[Any, Callable[[Any], Any]] = {
        KVClassType.MANAGER: _manager,
        KVClassType.SENDER: _sender,
        KVClassType.RECEIVER: _receiver,
        KVClassType.BOOTSTRAP_SERVER: lambda _: _NoBootstrap,
    }
    classes = {
        kind: make(get_kv_class(TransferBackend.FAKE, kind)) for kind, make in makers.items()
    }

    def class_of(backend: Any, kind: Any) -> Any:
        return classes.get(kind) or get_kv_class(backend, kind)

    for module in (decode, prefill, disagg_service):
        module.get_kv_class = class_of


class _NoBootstrap:
    """SGLang's servers would ask it who the others are."""

    def __init__(self, host: str, port: int) -> None:
        """Nobody asks."""


class _OneRank:
    """What a decode server knows of a prefill server."""

    dp_size = 1


class _EveryPrefill:
    """Every address is that of such a server."""

    def get(self, address: str) -> type[_OneRank]:
        return _OneRank


def _manager(base: Any) -> Any:
    class Manager(base):  # type: ignore[misc]
        """Of one server; `kv_args` says where its metadata buffers are."""

        prefill_info_table = _EveryPrefill()
        enable_deferred_decode_kv_release = True

        def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:
            """Nothing of the KV of an aborted request is under way."""
            return _transfers().is_drained(bootstrap_room - _FIRST_ROOM)

        def clear_deferred_abort_state(self, bootstrap_room: int) -> None:
            """Its memory is free."""

    return Manager


def _conclude(sender: Any, row: int, states: Any) -> None:
    """A sender ends when nobody wants its KV, or when all of it is there."""
    if _transfers().is_refused(row):
        sender.abort()
    elif sender.has_sent and _transfers().landed(row) is not None:
        sender.conclude_state = states.Success


def _state_of(sender: Any, row: int, states: Any) -> Any:
    """Of a sender that has not ended."""
    if sender.has_sent:
        return states.Transferring
    may_send = sender.inited or _transfers().may_send(row)
    return states.WaitingForInput if may_send else states.Bootstrapping


def _sender(base: Any) -> Any:
    """SGLang's fake sender, which waits for the decode server and for the links."""
    from sglang.srt.disaggregation.base import KVPoll

    class Sender(base):  # type: ignore[misc]
        """Of one request, whose room says which. It sends the KV of each chunk of its prompt."""

        conclude_state: Any

        def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *_: Any, **__: Any):
            super().__init__(mgr, bootstrap_addr, bootstrap_room)
            self._row = bootstrap_room - _FIRST_ROOM
            self._pages_left, self._slot = 0, -1

        def pop_decode_prefix_len(self) -> int:
            """The decode server has so many leading tokens."""
            return _transfers().known(self._row)

        def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
            """So many pages will be sent, and a row of the metadata buffers."""
            super().init(num_kv_indices, aux_index)
            self._pages_left = num_kv_indices
            self._slot = -1 if aux_index is None else aux_index

        def send(
            self,
            kv_indices: Any,
            state_indices: Any = None,
            num_kv_tokens: int | None = None,
            **_: Any,
        ) -> None:
            """Pages of a chunk; with the last ones, the row of metadata is complete."""
            self._pages_left -= len(kv_indices)
            is_last = self._pages_left == 0
            self.has_sent |= is_last
            if not _transfers().is_refused(self._row):
                metadata = _row_of(self.kv_mgr.kv_args, self._slot) if is_last else ""
                _transfers().sent(self._row, num_kv_tokens or 0, metadata)

        def poll(self) -> Any:
            """As of SGLang's."""
            if self.conclude_state is None:
                _conclude(self, self._row, KVPoll)
            if self.conclude_state is not None:
                return self.conclude_state
            return _state_of(self, self._row, KVPoll)

        def clear(self) -> None:
            """The prompt's memory is free."""
            _transfers().changes()

        def abort(self) -> None:
            """The client has left; what has been sent arrives."""
            super().abort()
            _transfers().forgets(self._row)
            _transfers().changes()

    return Sender


def _receiver(base: Any) -> Any:
    """SGLang's fake receiver, which waits for the links."""
    from sglang.srt.disaggregation.base import KVPoll

    class Receiver(base):  # type: ignore[misc]
        """Of one request, whose room says which."""

        abort_notified: bool

        bootstrap_infos = (None,)
        """Of the ranks of the prefill server that say when nothing is under way any more."""

        def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int) -> None:
            super().__init__(mgr, bootstrap_addr, bootstrap_room)
            self._row, self._slot = bootstrap_room - _FIRST_ROOM, -1

        def send_metadata(
            self,
            kv_indices: Any,
            aux_index: int | None = None,
            state_indices: Any = None,
            decode_prefix_len: int | None = None,
            **_: Any,
        ) -> None:
            """The prefill server hears where the KV and the row of metadata belong."""
            super().send_metadata(kv_indices, aux_index, state_indices, decode_prefix_len)
            self._slot = -1 if aux_index is None else aux_index
            _transfers().reserved(self._row, decode_prefix_len or 0)

        def poll(self) -> Any:
            """As of SGLang's."""
            if self.has_sent_metadata and self.conclude_state is None:
                metadata = _transfers().landed(self._row)
                if metadata is None:
                    return KVPoll.Transferring
                _write_row(self.kv_mgr.kv_args, self._slot, metadata)
            elif self.abort_notified:
                _transfers().changes()  # it no longer counts in the next pass
            return super().poll()

        def abort(self) -> None:
            """The client has left; what the prefill server has sent arrives."""
            super().abort()
            self.ensure_abort_notified()

        def ensure_abort_notified(self, *, force_arm: bool = False) -> None:
            """Its memory stays until the prefill server has said that it sends nothing more."""
            if self.has_sent_metadata and not self.abort_notified:
                self.abort_notified = True
                _transfers().forgets(self._row)
                _transfers().withdraws(self._row)

    return Receiver


def _row_of(arguments: Any, slot: int) -> str:
    """That row of all metadata buffers."""
    parts = [
        ctypes.string_at(start + slot * size, size)
        for start, size in zip(arguments.aux_data_ptrs, arguments.aux_item_lens, strict=True)
    ]
    return base64.b64encode(b"".join(parts)).decode()


def _write_row(arguments: Any, slot: int, row: str) -> None:
    left = base64.b64decode(row)
    for start, size in zip(arguments.aux_data_ptrs, arguments.aux_item_lens, strict=True):
        ctypes.memmove(start + slot * size, left[:size], size)
        left = left[size:]
